"""Evaluates several proposals, and takes the best."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from placekit_core import Checkpoint, Placement, Placements, State, Task

BATCH = 16  # proposals per batch; a checkpoint follows each


def best_of(
    task: Task,
    samples: int,
    propose: Callable[[int], Placement],
    rng: Generator,
    state: State | None = None,
    checkpoint: Checkpoint | None = None,
) -> Placement:
    """The best of `propose(0)` .. `propose(samples - 1)`, evaluated in batches. A single proposal is not evaluated.

    Proposals draw from `rng`. Checkpoints hold its state, so that a later call continues exactly from `state`. If no proposal
    fits, the result is the first one. BudgetExhausted passes through, and the run keeps the best evaluated placement.
    """
    if samples == 1:
        return propose(0)
    done, score = (0, np.inf) if state is None else (int(state["done"]), float(state["score"]))
    device: NDArray[Any] = np.zeros(0, np.int16) if state is None else np.asarray(state["device"])
    priority: NDArray[Any] | None = None if state is None else state.get("priority")
    while done < samples:
        proposals = [propose(i) for i in range(done, min(done + BATCH, samples))]
        batch = Placements.of(
            np.stack([p.device for p in proposals]),
            None if any(p.priority is None for p in proposals) else np.stack([p.priority for p in proposals]),  # type: ignore[misc]
        )
        scores = task.evaluate.scores(task.evaluate(batch))
        row = int(np.argmin(scores))
        if done == 0 or scores[row] < score:
            score = float(scores[row])
            device, priority = batch.one(row)
        done += len(proposals)
        if checkpoint is not None:
            best = {"done": done, "score": score, "device": device}
            checkpoint(best if priority is None else {**best, "priority": priority})
    return task.problem.placement(device, priority)
