"""Coarsening: units of groups that exchange many bytes, down to a few units per device (Hendrickson and Leland 1995)."""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_partitioning.exchange import Exchange
from placekit_scheduling.jit import by_size, inner, njit

from placekit_core import Grouping, Problem

LARGE = 20_000  # groups; a larger problem has starts by `multilevel`, and chains that move no smaller units
UNITS_PER_DEVICE = 4  # in the coarsest level, about
GROWTH = 3.0  # most work of a new unit, in average units of the level before
HEAVY = 0.5  # edges lighter than this share of a unit's heaviest edge are ignored
SHRINK = 0.95  # coarsening ends at a level that keeps more than this share of the units


def coarsen(
    problem: Problem, edges: Exchange | None = None, span: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
) -> list[NDArray[np.int64]]:
    """Levels of units, the finest first: [g] the unit of each group, numbered from 0. Single groups are not a level.

    At each level every unit, in random order, joins the neighbour with which it exchanges most bytes, or the unit that this
    neighbour has already joined (first choice: Karypis and Kumar 2000, hMETIS). The result must have at most the work of
    `GROWTH` average units and `1 / UNITS_PER_DEVICE` of the work of an average device, and some device must be allowed to
    run all of it. Parameters, which take no time, go with their readers.

    `edges` replaces the bytes by other weights. `span` has the seconds [g] at which each group begins and ends. With it, groups
    that run in parallel stay apart: no unit gets more work than one device can do from its first beginning to its last end.
    """
    size = problem.cluster.size
    seconds = np.where(problem.allowed, problem.group_s, np.inf).min(axis=1)
    allowed, edges = problem.allowed, edges or Exchange.of(problem)
    first, last = span or (np.zeros(problem.g), np.full(problem.g, np.inf))
    largest = float(seconds.sum()) / size / UNITS_PER_DEVICE
    rng = np.random.default_rng(0)  # the same for all runs: the levels are a property of the problem
    of, levels = np.arange(problem.g), []
    while largest > 0 and len(seconds) > UNITS_PER_DEVICE * size:
        limit = min(largest, GROWTH * float(seconds.sum()) / np.count_nonzero(seconds > 0))
        _, unit = np.unique(_join(edges, seconds, allowed, (first, last), limit, rng), return_inverse=True)
        count = int(unit.max()) + 1
        if count > SHRINK * len(seconds):
            break
        of = unit[of]
        levels.append(of)
        seconds = np.bincount(unit, seconds, minlength=count)
        merged = np.ones((count, size), np.bool_)
        one, device = np.nonzero(~allowed)
        merged[unit[one], device] = False
        allowed, edges = merged, edges.merged(unit, count)
        first, last = _extremes(unit, count, first, last)
    return levels


def coarse(problem: Problem, unit_of: NDArray[np.int64]) -> Problem:
    """The problem whose groups are the units."""
    return Problem(
        problem.graph, Grouping(unit_of[problem.grouping.group_of].astype(np.int32)), problem.cluster, problem.costs
    )


def _extremes(
    unit: NDArray[np.int64], count: int, first: NDArray[np.float64], last: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[count] the least of `first` and the greatest of `last` in each unit."""
    begin, end = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(begin, unit, first)
    np.maximum.at(end, unit, last)
    return begin, end


def _join(
    edges: Exchange,
    seconds: NDArray[np.float64],
    allowed: NDArray[np.bool_],
    span: tuple[NDArray[np.float64], NDArray[np.float64]],
    limit: float,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """[u] the unit that each unit joins; itself if it joins no other."""
    into = np.arange(len(seconds))
    order, able = rng.permutation(len(seconds)), np.packbits(allowed, axis=1)
    first, last = (x.copy() for x in span)
    fill = by_size(_fill, len(into))
    fill(into, order, edges.ptr, edges.neighbour, edges.bytes_, seconds.copy(), able, first, last, limit)
    return into


@inner
def _parallel(v: int, w: int, work: Any, first: Any, last: Any) -> bool:
    """Whether two units together are more work than one device can do from the first beginning to the last end."""
    if work[v] == 0.0 or work[w] == 0.0:
        return False
    return bool(work[v] + work[w] > max(last[v], last[w]) - min(first[v], first[w]))


@njit(cache=True)
def _fill(
    into: Any, order: Any, ptr: Any, near: Any, weight: Any, work: Any, able: Any, first: Any, last: Any, limit: float
) -> None:
    """Visit the units in `order` and fill `into` [u], where each unit first stands for itself.

    Also updates `work` [u], `first` [u], `last` [u] and `able` [u, bytes]: the devices that may run each unit, as bits.
    """
    alone = np.ones(len(into), np.bool_)
    for v in order:
        if not alone[v]:
            continue
        heaviest = 0.0
        for k in range(ptr[v], ptr[v + 1]):
            if not _parallel(v, into[near[k]], work, first, last):
                heaviest = max(heaviest, float(weight[k]))
        best, heaviest = v, HEAVY * heaviest
        for k in range(ptr[v], ptr[v + 1]):
            w = into[near[k]]
            if weight[k] < heaviest or (weight[k] == heaviest and best != v) or w == v or work[v] + work[w] > limit:
                continue
            if _parallel(v, w, work, first, last):
                continue
            for byte in range(able.shape[1]):
                if able[v, byte] & able[w, byte]:
                    best, heaviest = w, float(weight[k])
        if best != v:
            into[v], alone[best] = best, False
            work[best] += work[v]
            first[best], last[best] = min(first[best], first[v]), max(last[best], last[v])
            for byte in range(able.shape[1]):
                able[best, byte] &= able[v, byte]


def movable(problem: Problem, unit_of: NDArray[np.int64]) -> bool:
    """Whether some unit may run on more than one device; `unit_of` is [g]."""
    return bool((allowed_for_units(problem, unit_of).sum(axis=1) > 1).any())


def allowed_for_units(problem: Problem, unit_of: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[u, D] the devices that may run all groups of a unit; `unit_of` is [g]."""
    allowed = np.ones((int(unit_of.max(initial=-1)) + 1, problem.cluster.size), np.bool_)
    np.logical_and.at(allowed, unit_of, problem.allowed)
    return allowed
