"""Coarsening: units of groups that exchange many bytes, from single groups to few per device (Hendrickson, Leland 1995)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from placekit_partitioning.exchange import Exchange

from placekit_core import Grouping, Problem

UNITS_PER_DEVICE = 4  # units of the coarsest level, about
GROWTH = 3.0
HEAVY = 0.5  # an edge lighter than this share of a unit's heaviest is no reason to join
SHRINK = 0.95  # a level that keeps more than this share of the units ends the coarsening


def coarsen(problem: Problem) -> list[NDArray[np.int64]]:
    """Levels of units, finest first: [g] unit of each group, numbered from 0. Single groups are not among them.

    From level to level each unit, in random order, joins the neighbour that it exchanges most bytes with, or the unit that
    this neighbour has already joined (first choice: Karypis and Kumar 2000, hMETIS), as long as the whole is no more than
    `GROWTH` average units and no more than `1 / UNITS_PER_DEVICE` of the work of an average device, and some device may run
    all of it. Parameters, which are no work, go with their readers.
    """
    size = problem.cluster.size
    seconds = np.where(problem.allowed, problem.group_s, np.inf).min(axis=1)
    allowed, edges = problem.allowed, Exchange.of(problem)
    largest = float(seconds.sum()) / size / UNITS_PER_DEVICE
    rng = np.random.default_rng(0)  # the same for all runs: the levels are a property of the problem
    of, levels = np.arange(problem.g), []
    while largest > 0 and len(seconds) > UNITS_PER_DEVICE * size:
        limit = min(largest, GROWTH * float(seconds.sum()) / np.count_nonzero(seconds > 0))
        _, unit = np.unique(_join(edges, seconds, allowed, limit, rng), return_inverse=True)
        count = int(unit.max()) + 1
        if count > SHRINK * len(seconds):
            break
        of = unit[of]
        levels.append(of)
        seconds = np.bincount(unit, seconds, minlength=count)
        merged = np.ones((count, size), np.bool_)
        np.logical_and.at(merged, unit, allowed)
        allowed, edges = merged, _merge(edges, unit, count)
    return levels


def coarse(problem: Problem, unit_of: NDArray[np.int64]) -> Problem:
    """The problem whose groups are the units."""
    return Problem(
        problem.graph, Grouping(unit_of[problem.grouping.group_of].astype(np.int32)), problem.cluster, problem.costs
    )


def _join(
    edges: Exchange, seconds: NDArray[np.float64], allowed: NDArray[np.bool_], limit: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """[u] the unit that each unit joins, itself if none."""
    into = list(range(len(seconds)))
    ptr, near, weight, work = edges.ptr.tolist(), edges.neighbour.tolist(), edges.bytes_.tolist(), seconds.tolist()
    able = [int.from_bytes(row.tobytes(), "big") for row in np.packbits(allowed, axis=1)]
    alone = [True] * len(seconds)
    for v in rng.permutation(len(seconds)).tolist():
        if not alone[v]:
            continue
        best, heaviest = v, HEAVY * max(weight[ptr[v] : ptr[v + 1]], default=0.0)
        for k in range(ptr[v], ptr[v + 1]):
            w = into[near[k]]
            if (
                weight[k] >= heaviest
                and (weight[k] > heaviest or best == v)
                and w != v
                and work[v] + work[w] <= limit
                and able[v] & able[w]
            ):
                best, heaviest = w, weight[k]
        if best != v:
            into[v], alone[best] = best, False
            work[best] += work[v]
            able[best] &= able[v]
    return np.asarray(into)


def _merge(edges: Exchange, unit: NDArray[np.int64], count: int) -> Exchange:
    """The graph of the units."""
    u, v = unit[edges.source], unit[edges.neighbour]
    once = u < v
    key, row = np.unique(u[once] * count + v[once], return_inverse=True)
    bytes_ = np.bincount(row, edges.bytes_[once], minlength=len(key)).astype(np.int64)
    return Exchange.from_edges(count, key // count, key % count, bytes_)
