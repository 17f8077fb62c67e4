"""Starts where memory binds: where a placement that does not fit is faster than all that do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from placekit_partitioning.repair import ROUNDS, repair
from placekit_scheduling import b_level, group_priority

from placekit_core import Placements, Problem, Task, report_progress
from placekit_search.starts import Start
from placekit_search.walk import FAILURE

MOST = 32  # the most cuts for each number of devices
REPAIRED = 4  # starts that do not fit and are made to
SLID = 2  # cuts whose borders slide on from where they are
AT_ONCE = 4  # cuts that are measured before the clock is looked at

Borders = tuple[int, ...]  # of each run of groups, the number of groups before its end; the last run has the rest
Measure = Callable[[Placements], list[Start]]
"""The starts of placements, in their order."""


def too_large(starts: Sequence[Start]) -> list[Start]:
    """Starts that do not fit and are faster than all that do, all different; first what is fast and close to fitting."""
    best = min((value_s for value_s, over, *_ in starts if over == 0), default=math.inf)
    fast = [s for s in starts if s[1] > 0 and s[1] != FAILURE and s[0] < best]
    fast.sort(key=_near)
    distinct: dict[bytes, Start] = {}
    for start in fast:
        distinct.setdefault(start[2].tobytes(), start)
    return list(distinct.values())


def _near(start: Start) -> float:
    """How promising a start is that may not fit: its seconds, longer by its excess."""
    return start[0] * (1 + start[1])


class Cuts:
    """The groups in the order of their b-levels, a run of them on each of the fastest 2, 3, ... devices.

    Needs two groups and two devices. In a training step whose gradients are grouped with what they belong to, a run is a part of
    the network.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, allowed = problem, problem.allowed
        graph = problem.graph
        self.level = group_priority(problem, b_level(problem))
        self.order = np.argsort(-self.level, kind="stable")
        written = np.bincount(problem.grouping.group_of[graph.tensor_producer], graph.owned_bytes, problem.g)
        self.bytes = np.cumsum((problem.group_persistent_bytes + written)[self.order])
        self.sent = _sent(problem, self.order)[:-1]
        seconds = np.where(allowed, problem.group_s, problem.group_s[allowed].max())
        self.fastest = np.argsort(seconds.sum(axis=0), kind="stable")
        self.other = self.fastest[allowed[:, self.fastest].argmax(axis=1)]  # the fastest one that may run the group

    def first(self, count: int) -> list[Borders]:
        """At most `count` cuts. The share of the bytes on the first device varies; the others have equal shares of the rest.

        Near each border, runs end where sending takes the fewest seconds. Bytes are those of parameters and state, and those
        that are written.
        """
        if self.bytes[-1] == 0 or count < 1:
            return []
        found = list[Borders]()
        each = max(1, min(MOST, count // (self.problem.cluster.size - 1)))
        for devices in range(2, self.problem.cluster.size + 1):
            for share in ((np.arange(each) + 0.5) / each)[: count - len(found)]:
                shares = share + (1 - share) * np.arange(devices - 1) / (devices - 1)
                found.append(tuple(sorted(self._border(x, 0.5 / each) for x in shares)))
        return found

    def _border(self, share: float, near: float) -> int:
        """The number of groups before the border that is closest to `share` of the bytes, or the cheapest `near` it."""
        ends = self.bytes[:-1] / self.bytes[-1]
        first, last = np.searchsorted(ends, [share - near, share + near])
        if first == last:
            return 1 + int(np.abs(ends - share).argmin())
        return 1 + int(first + self.sent[first:last].argmin())

    def beside(self, borders: Borders) -> list[Borders]:
        """The cuts with one border one group earlier or later."""
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
            row[:] = np.where(allowed[groups, row], row, self.other)
        return Placements.of(device, np.broadcast_to(self.level, device.shape))


def cut(problem: Problem, count: int, measure: Measure, enough: Callable[[], bool]) -> list[Start]:
    """At most `count` starts by cuts: `Cuts.first`, and from the best of them with borders that slide while that helps.

    The cut that sends least may not fit where the next one does. No further cuts are measured once there are `enough`.
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
    at = sorted(found, key=lambda c: _near(found[c]))[:SLID]
    while at:
        add(b for c in at for b in cuts.beside(c))
        best = [min((b for b in (c, *cuts.beside(c)) if b in found), key=lambda b: _near(found[b])) for c in at]
        at = list(dict.fromkeys(b for b, c in zip(best, at, strict=True) if b != c))
    return list(found.values())


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
