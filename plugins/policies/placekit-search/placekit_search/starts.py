"""The starts of local searches."""

from __future__ import annotations

import math

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_scheduling import RULES, ListScheduler, b_level, group_priority

from placekit_core import Placements, Problem, Task
from placekit_search.chain import Chain, excess, penalised
from placekit_search.coarsening import coarse
from placekit_search.walk import PRICE


def list_schedules(problem: Problem, count: int, rng: Generator) -> Placements:
    """`count` starts with b-level priorities: list schedules by every rule in turn with random ties, single devices last.

    The first of each rule breaks ties by index. Single devices take at most a quarter of the places.
    """
    level = b_level(problem)
    priority = group_priority(problem, level)
    rows = []
    together = [d for d in np.argsort(problem.group_s.sum(axis=0), kind="stable") if problem.allowed[:, d].all()]
    singles = [np.full(problem.g, d, np.int16) for d in together[: math.ceil(count / 4) if count > 1 else 0]]
    scheduler = ListScheduler(problem)
    for i in range(count - len(singles)):
        rule = RULES[i % len(RULES)]
        scheduler.reset()
        seed = None if i < len(RULES) else int(rng.integers(2**62))
        rows.append(scheduler.run(rule, seed=seed).devices())
    device = np.stack([*rows, *singles])
    return Placements.of(device, np.broadcast_to(priority, device.shape))


def coarse_schedules(problem: Problem, levels: list[NDArray[np.int64]]) -> Placements:
    """For every level of units, a list schedule that places whole units, onto the device of earliest finish."""
    priority = group_priority(problem, b_level(problem))
    rows = [ListScheduler(coarse(problem, unit_of)).run("earliest_finish").devices()[unit_of] for unit_of in levels]
    device = np.stack(rows) if rows else np.empty((0, problem.g), np.int16)
    return Placements.of(device, np.broadcast_to(priority, device.shape))


def best_start(task: Task, count: int, rng: Generator) -> dict[str, object]:
    """The state of a chain at the best of `count` list schedules; they take at most a quarter of the budget left."""
    limit = int(max(1, min(count, task.evaluate.remaining / 4)))
    starts = list_schedules(task.problem, limit, rng)
    measurements = task.evaluate(starts)
    value, over = excess(measurements, task)
    price_s = PRICE * float(value.min())
    row = int(np.lexsort((penalised(value, over, price_s), over > 0))[0])
    return Chain.begin(*starts.one(row), value[row], over[row], price_s, rng.integers(0, 2**64, 1, np.uint64))
