"""Trainer `my_method`: REINFORCE (Williams 1992) with the mean of the batch as the baseline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from placekit_core import Checkpoint, LearnablePolicy, State, Task, Trainer
from placekit_my_method import MyMethodOptions


class MyMethod(Trainer):
    """Ascends the gradient of the mean over episodes of (mean score - score) / deviation * log-probability.

    A score is the value in seconds, or the failing signal; lower is better. The programs of a family take turns.
    """

    name = "my_method"
    options_class = MyMethodOptions

    def fit(
        self,
        policy: LearnablePolicy,
        tasks: Sequence[Task],
        rng: Generator,
        state: State | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        """Train until the budget ends, by BudgetExhausted. The state is the number of updates."""
        updates = 0 if state is None else int(state["updates"])
        while True:
            task = tasks[updates % len(tasks)]
            rollouts = policy.rollout(task.problem, self.options.batch, rng, explore=1.0)
            scores = task.evaluate.scores(task.evaluate(rollouts.placements))  # [b] seconds
            advantage = (scores.mean() - scores) / (scores.std() + 1e-12)
            weight = np.where(rollouts.group >= 0, advantage[:, None], 0.0) / len(scores)  # [b, T]
            gradients = policy.gradients(task.problem, rollouts, weight)
            policy.apply({name: self.options.learning_rate * gradient for name, gradient in gradients.items()})
            updates += 1
            if checkpoint is not None:
                checkpoint({"updates": updates})
