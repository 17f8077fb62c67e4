"""Policy `my_method`: the best of a number of random placements."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from placekit_core import Placement, Placements, Policy, Task
from placekit_my_method import MyMethodOptions

BATCH = 16  # placements per evaluation


class MyMethod(Policy):
    """Puts every group on one of its allowed devices, each with the same probability; keeps the best of `samples`."""

    name = "my_method"
    options_class = MyMethodOptions

    def place(self, task: Task, rng: Generator) -> Placement:
        """The best placement drawn. BudgetExhausted passes through: the run keeps the best that was evaluated."""
        allowed = task.problem.allowed  # [g, D]
        best_s, best = np.inf, allowed.argmax(axis=1)
        for done in range(0, self.options.samples, BATCH):
            b = min(BATCH, self.options.samples - done)
            device = np.where(allowed, rng.random((b, *allowed.shape)), -1.0).argmax(axis=2)  # [b, g]
            scores = task.evaluate.scores(task.evaluate(Placements.of(device)))  # [b] seconds, huge if it does not fit
            if scores.min() < best_s:
                best_s, best = scores.min(), device[scores.argmin()]
        return task.problem.placement(best)
