"""Placements that local searches start from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_layers import sequence
from placekit_layers.splits import even_splits
from placekit_scheduling import RULES, ListScheduler, b_level, group_priority
from placekit_scheduling.jit import by_size
from placekit_scheduling.list_scheduling.placement_levels import set_levels

from placekit_core import Placements, Problem, Task
from placekit_search.coarsening import coarse
from placekit_search.local_search import LocalSearch, excess, penalised
from placekit_search.neighbourhood import Flow
from placekit_search.streaming import streamed
from placekit_search.walk import PRICE

LEVELLED, LEVELLED_SHARE = 16, 0.01  # most starts in `levelled`, and their share of the remaining evaluations
FACTORS = (1.0, 3.0)  # factors of the transfers' seconds in the priorities of `levelled`
START_SHARE = 0.25  # share of the seconds after which no more list schedules begin


class Start(NamedTuple):
    """A measured placement.

    Attributes:
        value_s, over: value, and excess over capacity; see `local_search.excess`.
        device, priority: [g].
        level: level of the units that a search moves first; 0 for single groups.
    """

    value_s: float
    over: float
    device: NDArray[np.int16]
    priority: NDArray[np.float32] | None
    level: int


def distinct(starts: Iterable[Start]) -> list[Start]:
    """The starts without duplicates: of starts with the same devices, the first one."""
    found: dict[bytes, Start] = {}
    for start in starts:
        found.setdefault(start.device.tobytes(), start)
    return list(found.values())


def simplest(task: Task) -> Placements | None:
    """If seconds are limited, evaluate one placement before anything that may take long. None if they are not.

    Everything that may run there is on one device, the fastest that holds all parameters and state; priorities are b-levels.
    """
    if task.evaluate.ledger.limit_s is None:
        return None
    problem = task.problem
    holds = problem.cluster.memory_bytes >= problem.group_persistent_bytes.sum()
    seconds = np.where(problem.allowed, problem.group_s, 0.0).sum(axis=0)
    one = np.lexsort((seconds, ~holds, -problem.allowed.sum(axis=0)))[0]
    device = np.where(problem.allowed[:, one], one, problem.allowed.argmax(axis=1)).astype(np.int16)
    found = Placements.of(device, group_priority(problem, b_level(problem)))
    task.evaluate(found)
    return found


def is_late(task: Task, share: float) -> bool:
    """Whether seconds are limited and more than this share of the budget is used."""
    return task.evaluate.ledger.limit_s is not None and task.evaluate.progress > share


def list_schedules(
    problem: Problem, count: int, rng: Generator, enough: Callable[[], bool] = lambda: False
) -> Placements:
    """`count` starts with b-level priorities: list schedules by every rule in turn, then single devices.

    The first schedule of each rule breaks ties by index, the others at random. At most a quarter of the starts are single
    devices. After the first schedule, none begins once `enough()`.
    """
    level = b_level(problem)
    priority = group_priority(problem, level)
    rows = list[NDArray[np.int16]]()
    together = [d for d in np.argsort(problem.group_s.sum(axis=0), kind="stable") if problem.allowed[:, d].all()]
    singles = [np.full(problem.g, d, np.int16) for d in together[: math.ceil(count / 4) if count > 1 else 0]]
    scheduler = ListScheduler(problem, few=True)
    for i in range(count - len(singles)):
        if rows and enough():
            break
        rule = RULES[i % len(RULES)]
        scheduler.reset()
        seed = None if i < len(RULES) else int(rng.integers(2**62))
        rows.append(scheduler.run(rule, seed=seed).devices())
    device = np.stack([*rows, *singles])
    return Placements.of(device, np.broadcast_to(priority, device.shape))


def coarse_schedules(
    problem: Problem, levels: list[NDArray[np.int64]], enough: Callable[[], bool] = lambda: False
) -> Placements:
    """A list schedule for each level of units. It places whole units on the device of earliest finish.

    No schedule begins once `enough()`.
    """
    priority = group_priority(problem, b_level(problem))
    rows = []
    for unit_of in levels:
        if enough():
            break
        rows.append(ListScheduler(coarse(problem, unit_of), few=True).run("earliest_finish").devices()[unit_of])
    device = np.stack(rows) if rows else np.empty((0, problem.g), np.int16)
    return Placements.of(device, np.broadcast_to(priority, device.shape))


def levelled(task: Task, flow: Flow, starts: Sequence[Start], most: int) -> tuple[Placements, list[int]]:
    """The best `most` starts with different devices, for each of `FACTORS` with new priorities; and the level of each.

    The priorities are the b-levels on the start's own devices. Fewer starts are taken if few evaluations remain.
    """
    left = task.evaluate.remaining
    count = math.ceil(min(most, LEVELLED_SHARE * left)) if left > len(FACTORS) else 0
    by_value = distinct(sorted(starts, key=lambda s: (s.over, s.value_s)))
    best = [start for start in by_value[:count] for _ in FACTORS]
    device = np.array([start.device for start in best], np.int16).reshape(-1, task.problem.g)
    priority, tail = np.empty(device.shape, np.float32), np.zeros(task.problem.graph.n)
    for i in range(len(device)):
        by_size(set_levels, task.problem.graph.n)(flow.levels, device[i], FACTORS[i % len(FACTORS)], tail, priority[i])
    return Placements.of(device, priority), [start.level for start in best]


def is_makespan(task: Task) -> bool:
    """Whether the objective is a makespan: then schedules guide moves, and priorities matter."""
    return task.evaluate.objective in (None, "makespan")


def best_start(task: Task, count: int, rng: Generator) -> dict[str, object]:
    """The state of a chain at the best of `count` list schedules, which use at most a quarter of the remaining budget.

    For other objectives than a makespan, contiguous splits are starts too, and there are no priorities. If parameters may be
    copied for use, half of the starts do so.
    """
    first, prefetch = simplest(task), task.evaluate.session.prefetch
    limit = int(max(1, min(count, task.evaluate.remaining / 4)))
    batches = [list_schedules(task.problem, limit, rng, lambda: is_late(task, START_SHARE))]
    if first is not None:
        batches.insert(0, first)
    if prefetch is not None:
        batches.insert(0, streamed(task.problem, prefetch, max(1, limit // 2)))
    device, priority = (
        np.concatenate(rows)[:limit] for rows in zip(*((b.device, b.priority) for b in batches), strict=True)
    )
    starts = Placements(device, priority)
    if not is_makespan(task):
        some = even_splits(sequence(task.problem), max(1, limit // 2))
        starts = Placements.of(np.concatenate([some, starts.device])[:limit])
    measurements = task.evaluate(starts)
    value, over = excess(measurements, task)
    price_s = PRICE * float(value.min())
    row = int(np.lexsort((penalised(value, over, price_s), over > 0))[0])
    return LocalSearch.begin(*starts.one(row), value[row], over[row], price_s, rng.integers(0, 2**64, 1, np.uint64))
