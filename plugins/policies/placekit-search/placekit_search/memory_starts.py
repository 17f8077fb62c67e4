"""Starts where memory binds: where a placement that does not fit is faster than all that do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from placekit_partitioning.repair import ROUNDS, repair
from placekit_scheduling import b_level, group_priority

from placekit_core import Placements, Problem, Task, report_progress
from placekit_search.starts import Start
from placekit_search.walk import FAILURE

CUTS = 32  # the most cuts for each number of devices
REPAIRED = 4  # starts that do not fit and are made to


def too_large(starts: Sequence[Start]) -> list[Start]:
    """Starts that do not fit and are faster than all that do, all different; first what is fast and close to fitting."""
    best = min((value_s for value_s, over, *_ in starts if over == 0), default=math.inf)
    fast = [s for s in starts if s[1] > 0 and s[1] != FAILURE and s[0] < best]
    fast.sort(key=lambda s: s[0] * (1 + s[1]))
    distinct: dict[bytes, Start] = {}
    for start in fast:
        distinct.setdefault(start[2].tobytes(), start)
    return list(distinct.values())


def cuts(problem: Problem, count: int) -> Placements:
    """At most `count` placements of the groups in the order of their b-levels, a run of them on each of some devices.

    The devices are the fastest 2, 3, ...; the first gets a share of the bytes, which varies, and the others get equal shares of
    the rest. Near each border, runs end where sending takes the fewest seconds. In a training step whose gradients are in the
    groups of what they are of, a run is a part of the network. Bytes are those of parameters and state, and those that are
    written.
    """
    graph, allowed = problem.graph, problem.allowed
    written = np.bincount(problem.grouping.group_of[graph.tensor_producer], graph.owned_bytes, problem.g)
    level = group_priority(problem, b_level(problem))
    order = np.argsort(-level, kind="stable")
    ends = np.cumsum((problem.group_persistent_bytes + written)[order])
    if problem.g < 2 or ends[-1] == 0 or problem.cluster.size < 2 or count < 1:
        return Placements.of(np.empty((0, problem.g), np.int16))
    ends, sent = ends[:-1] / ends[-1], _sent(problem, order)[:-1]
    fastest = np.argsort(np.where(allowed, problem.group_s, problem.group_s[allowed].max()).sum(axis=0), kind="stable")
    other = fastest[allowed[:, fastest].argmax(axis=1)]  # the fastest one that may run the group
    rows = list[NDArray[np.int16]]()
    each = max(1, min(CUTS, count // (problem.cluster.size - 1)))
    for devices in range(2, problem.cluster.size + 1):
        for share in ((np.arange(each) + 0.5) / each)[: count - len(rows)]:
            borders = [
                _border(ends, sent, share + (1 - share) * i / (devices - 1), 0.5 / each) for i in range(devices - 1)
            ]
            device = np.empty(problem.g, np.int16)
            device[order] = fastest[np.searchsorted(np.sort(borders), np.arange(problem.g), side="right")]
            rows.append(np.where(allowed[np.arange(problem.g), device], device, other).astype(np.int16))
    return Placements.of(np.stack(rows), np.broadcast_to(level, (len(rows), problem.g)))


def _sent(problem: Problem, order: NDArray[np.int64]) -> NDArray[np.float64]:
    """[g] seconds in which the groups up to the i-th of `order` and those beyond send each other tensors, on a mean route."""
    apart, routes = ~np.eye(problem.cluster.size, dtype=np.bool_), problem.cluster.routes
    seconds = routes.latency_s[apart].mean() + problem.grouped.tensor_bytes * routes.s_per_byte[apart].mean()
    grouped, place = problem.grouped, np.empty(problem.g, np.int64)
    place[order] = np.arange(problem.g)
    first = place[grouped.tensor_producer]
    last = first.copy()
    np.minimum.at(first, grouped.input_tensor, place[grouped.edge_op])
    np.maximum.at(last, grouped.input_tensor, place[grouped.edge_op])
    begun = np.bincount(first, seconds, problem.g)
    return np.asarray(np.cumsum(begun - np.bincount(last, seconds, problem.g)))


def _border(ends: NDArray[np.float64], sent: NDArray[np.float64], share: float, near: float) -> int:
    """The number of groups before the border that is closest to `share` of the bytes, or the cheapest of those `near` it."""
    first, last = np.searchsorted(ends, [share - near, share + near])
    if first == last:
        return 1 + int(np.abs(ends - share).argmin())
    return 1 + int(first + sent[first:last].argmin())


def repaired(task: Task, fast: Sequence[Start], evaluations: float, enough: Callable[[], bool]) -> list[Start]:
    """Some starts of `fast`, with groups moved until they fit, with at most so many evaluations; values are not known yet.

    No further one is begun once there are `enough`.
    """
    notes, found = list(task.evaluate.notes), list[Start]()
    for value_s, over, device, priority, level in fast[: int(min(REPAIRED, evaluations / (ROUNDS + 1)))]:
        if enough():
            break
        report_progress("starts: memory")
        found.append((value_s, over, repair(task, device, priority), priority, level))
    task.evaluate.notes[:] = notes  # those of repair are about a start
    return found
