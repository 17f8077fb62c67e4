"""More starts if memory is tight: if a start that does not fit is faster than every start that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from placekit_partitioning.repair import ROUNDS, repair
from placekit_scheduling import b_level, group_priority

from placekit_core import Placements, Problem, Task, report_progress
from placekit_search.starts import Start, distinct
from placekit_search.walk import FAILURE

MOST_CUTS = 32  # most cuts for each number of devices
REPAIRED = 4  # most starts to repair
SLIDING = 2  # best cuts, whose borders are moved group by group
AT_ONCE = 4  # cuts to measure before the clock is checked again

Borders = tuple[int, ...]  # number of groups before the end of each run of groups; the last run has the rest
Measure = Callable[[Placements], list[Start]]
"""Measures placements; returns a start for each, in their order."""


def too_large(starts: Sequence[Start]) -> list[Start]:
    """The starts that do not fit but are faster than all that fit, without duplicates, the most promising first."""
    best = min((s.value_s for s in starts if s.over == 0), default=math.inf)
    return distinct(sorted((s for s in starts if s.over > 0 and s.over != FAILURE and s.value_s < best), key=_rank_s))


def _rank_s(start: Start) -> float:
    """Sort key: the seconds of a start, increased by its excess over capacity; lower is more promising."""
    return start.value_s * (1 + start.over)


class Cuts:
    """Cuts the groups, in the order of their b-levels, into a run for each of the fastest 2, 3, ... devices.

    Needs two groups and two devices. In a training step whose gradients are grouped with their forward operations, a run is a
    part of the network.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, allowed = problem, problem.allowed
        graph = problem.graph
        self.level = group_priority(problem, b_level(problem))
        self.order = np.argsort(-self.level, kind="stable")
        written = np.bincount(problem.grouping.group_of[graph.tensor_producer], graph.owned_bytes, problem.g)
        self.bytes = np.cumsum((problem.group_persistent_bytes + written)[self.order])
        self.sent = _transfer_s_at(problem, self.order)[:-1]
        seconds = np.where(allowed, problem.group_s, problem.group_s[allowed].max())
        self.fastest = np.argsort(seconds.sum(axis=0), kind="stable")
        self.fallback = self.fastest[allowed[:, self.fastest].argmax(axis=1)]  # [g] the fastest allowed device

    def first(self, count: int) -> list[Borders]:
        """At most `count` cuts. The first device's share of the bytes varies; the others have equal shares of the rest.

        Near each border, runs end where transfers take the fewest seconds. Bytes are those of parameters, state and outputs.
        """
        if self.bytes[-1] == 0 or count < 1:
            return []
        found = list[Borders]()
        each = max(1, min(MOST_CUTS, count // (self.problem.cluster.size - 1)))
        for devices in range(2, self.problem.cluster.size + 1):
            for share in ((np.arange(each) + 0.5) / each)[: count - len(found)]:
                shares = share + (1 - share) * np.arange(devices - 1) / (devices - 1)
                found.append(tuple(sorted(self._border(x, 0.5 / each) for x in shares)))
        return found

    def _border(self, share: float, near: float) -> int:
        """The number of groups before the cheapest border within `near` of this share of the bytes, else before the closest."""
        ends = self.bytes[:-1] / self.bytes[-1]
        first, last = np.searchsorted(ends, [share - near, share + near])
        if first == last:
            return 1 + int(np.abs(ends - share).argmin())
        return 1 + int(first + self.sent[first:last].argmin())

    def neighbours(self, borders: Borders) -> list[Borders]:
        """The cuts that differ from `borders` in one border, which is one group earlier or later."""
        found = list[Borders]()
        for i, border in enumerate(borders):
            for b in (border - 1, border + 1):
                moved = (*borders[:i], b, *borders[i + 1 :])
                if 1 <= b < self.problem.g and list(moved) == sorted(moved):
                    found.append(moved)
        return found

    def placements(self, cuts: Sequence[Borders]) -> Placements:
        """Placements of `cuts`, with b-levels as priorities."""
        allowed, groups = self.problem.allowed, np.arange(self.problem.g)
        device = np.empty((len(cuts), self.problem.g), np.int16)
        for row, borders in zip(device, cuts, strict=True):
            row[self.order] = self.fastest[np.searchsorted(borders, groups, side="right")]
            row[:] = np.where(allowed[groups, row], row, self.fallback)
        return Placements.of(device, np.broadcast_to(self.level, device.shape))


def cut(problem: Problem, count: int, measure: Measure, enough: Callable[[], bool]) -> list[Start]:
    """At most `count` starts: `Cuts.first`, then neighbours of the best cuts as long as these improve (hill climbing).

    The cut with the fewest transfers may not fit where the next one does. Measures no cut once `enough()` is true.
    """
    found: dict[Borders, Start] = {}
    if problem.g < 2 or problem.cluster.size < 2 or count < 1:
        return []
    cuts = Cuts(problem)

    def add(some: Iterable[Borders]) -> None:
        report_progress("starts: cuts")
        new = [c for c in dict.fromkeys(some) if c not in found][: count - len(found)]
        for i in range(0, len(new), AT_ONCE):
            if not enough():
                part = new[i : i + AT_ONCE]
                found.update(zip(part, measure(cuts.placements(part)), strict=True))

    add(cuts.first(count - count // 4))
    at = sorted(found, key=lambda c: _rank_s(found[c]))[:SLIDING]
    while at:
        add(b for c in at for b in cuts.neighbours(c))
        best = [min((b for b in (c, *cuts.neighbours(c)) if b in found), key=lambda b: _rank_s(found[b])) for c in at]
        at = list(dict.fromkeys(b for b, c in zip(best, at, strict=True) if b != c))
    return list(found.values())


def _transfer_s_at(problem: Problem, order: NDArray[np.int64]) -> NDArray[np.float64]:
    """[g] for a border after the i-th group of `order`: seconds of all transfers across it, on a mean route."""
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


def repaired(task: Task, fast: Sequence[Start], evaluations: float, enough: Callable[[], bool]) -> list[Start]:
    """The first few starts of `fast`, with groups moved until they fit. Their values are not measured again.

    Uses at most `evaluations`. Begins no repair once `enough()` is true.
    """
    notes, found = list(task.evaluate.notes), list[Start]()
    for start in fast[: int(min(REPAIRED, evaluations / (ROUNDS + 1)))]:
        if enough():
            break
        report_progress("starts: memory")
        found.append(start._replace(device=repair(task, start.device, start.priority)))
    task.evaluate.notes[:] = notes  # drop the notes of `repair`: they are about a start
    return found
