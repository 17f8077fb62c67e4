"""Policy `my_method`: the best of a number of random placements."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from placekit_core.interfaces import Checkpoint, Policy, State
from placekit_core.placement import Placement, Placements
from placekit_core.problem import Task
from placekit_my_method import MyMethodOptions

BATCH = 16  # placements per evaluation and checkpoint


class MyMethod(Policy):
    """Puts every group on one of its allowed devices, each with the same probability; keeps the best of `samples`."""

    name = "my_method"
    options_class = MyMethodOptions

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        """The best placement drawn. BudgetExhausted passes through: the run keeps the best that was evaluated."""
        allowed = task.problem.allowed  # [g, D]
        now = state or {"done": 0, "score": np.inf, "device": allowed.argmax(axis=1)}
        while now["done"] < self.options.samples:
            b = min(BATCH, self.options.samples - now["done"])
            device = np.where(allowed, rng.random((b, *allowed.shape)), -1.0).argmax(axis=2)  # [b, g]
            scores = task.evaluate.scores(task.evaluate(Placements.of(device)))  # [b] seconds, huge if it does not fit
            best = int(scores.argmin())
            if scores[best] < now["score"]:
                now = {**now, "score": float(scores[best]), "device": device[best]}
            now = {**now, "done": now["done"] + b}
            if checkpoint is not None:
                checkpoint(now)
        return task.problem.placement(now["device"])
