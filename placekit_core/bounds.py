"""Lower bounds of the makespan: seconds that no placement of a Problem can beat, whatever the order of execution.

They hold for the machine model of docs/machine-model.md (work conserving or bulk synchronous, without noise): an operation
takes its cost on the device of its group, runs once, on one stream, after all that it reads from; sources take no time.
Communication and memory are left out, which only lowers the bounds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placekit_core.list_scheduling import b_level, op_cost, t_level
from placekit_core.problem import Problem

ROUNDING = 1e-9  # the sums behind a bound and a makespan are rounded differently; a bound gives way by this, relatively
THRESHOLDS = 256
STEPS = 200


def makespan_bound(problem: Problem) -> float:
    """The highest of the bounds below, in seconds, less the relative `ROUNDING`. 0 for a graph without kernels."""
    return window_bound(problem, max(critical_path_bound(problem), work_bound(problem), group_bound(problem))) * (
        1 - ROUNDING
    )


def critical_path_bound(problem: Problem) -> float:
    """Longest path, with every operation on its fastest allowed device and free communication.

    Proof: the operations of a path run one after another, and none is faster than on its fastest allowed device.
    """
    return float(b_level(problem, "min", communication=0.0).max(initial=0.0))


def group_bound(problem: Problem) -> float:
    """The largest group on the device that is fastest for it.

    Proof: all operations of a group run on one allowed device d, whose s streams give at most s * T seconds in time T;
    so T >= (seconds of the group on d) / s.
    """
    per_device = np.where(problem.allowed, problem.group_s / problem.cluster.streams, np.inf)
    return float(per_device.min(axis=1).max(initial=0.0)) if problem.g else 0.0


def work_bound(problem: Problem) -> float:
    """Total work over the capacity of all streams, which heterogeneous devices are weighted for.

    Proof: let S_k be the number of streams of kind k, and y_k >= 0 any weights with sum_k S_k y_k = 1. In a schedule of
    length T the operations on kind k take at most S_k T seconds in all, so weighting every operation's seconds by y of
    the kind that it runs on gives at most sum_k y_k S_k T = T. A group on any allowed kind contributes at least
    min_k y_k P_gk, with P_gk its seconds there: T >= sum_g min_k y_k P_gk.

    Equal weights y_k = 1 / sum S give the usual sum of least times over streams; better ones (the dual of fractional
    assignment) are looked for by exponentiated gradient ascent. Every weight tried is valid, so the best one is.
    """
    streams, seconds = _by_kind(problem)
    return float((_weights(problem) * seconds).min(axis=1).sum()) if len(streams) and problem.g else 0.0


def window_bound(problem: Problem, at_least: float = 0.0) -> float:
    """Longest head plus work plus longest tail; never less than `at_least`.

    Proof: let head(v) and tail(v) be the longest paths before and after v at least times, and V the operations with
    head >= h and tail >= q. Each of V starts at h or later and ends q or more before the end: all of them run within
    T - h - q seconds. As in `work_bound`, for V alone: T - h - q >= sum over V of min_k y_k p_vk, with p_vk the seconds
    of v on kind k, at the weights y found there.

    All pairs of up to `THRESHOLDS` values of h and of q are tried.
    """
    kernel = np.flatnonzero(problem.graph.kernel)
    if not len(kernel):
        return at_least
    own = op_cost(problem, "min")
    head = t_level(problem, "min", communication=0.0)[kernel]
    tail = (b_level(problem, "min", communication=0.0) - own)[kernel]
    devices = _first_of_kind(problem)
    allowed = problem.allowed[problem.grouping.group_of[kernel]][:, devices]
    work = np.where(allowed, problem.op_s[kernel][:, devices] * _weights(problem), np.inf).min(axis=1)
    h, q = _thresholds(head), _thresholds(tail)
    # total[i, j]: work with i thresholds at or below the head, j at or below the tail
    cell = (np.searchsorted(h, head, "right") - 1) * len(q) + np.searchsorted(q, tail, "right") - 1
    total = np.bincount(cell, work, minlength=len(h) * len(q)).reshape(len(h), len(q))
    inside = total[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
    some = np.bincount(cell, minlength=total.size).reshape(total.shape)[::-1, ::-1].cumsum(0).cumsum(1)[::-1, ::-1] > 0
    bound = np.where(some, h[:, None] + inside + q[None, :], 0.0)  # an empty V proves nothing
    return max(at_least, float(bound.max()))


def _thresholds(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Up to THRESHOLDS of the distinct values, the least among them."""
    distinct = np.unique(values)
    if len(distinct) <= THRESHOLDS:
        return distinct
    return distinct[np.unique(np.linspace(0, len(distinct) - 1, THRESHOLDS).astype(np.int64))]


def _first_of_kind(problem: Problem) -> NDArray[np.int64]:
    """[K] one device of each kind: those of one kind are alike."""
    return np.unique(problem.cluster.kind_of, return_index=True)[1]


def _by_kind(problem: Problem) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[K] streams of each kind, and [g, K] seconds of each group there (inf where it may not run)."""
    devices = _first_of_kind(problem)
    streams = np.bincount(problem.cluster.kind_of, problem.cluster.streams.astype(np.float64)).astype(np.float64)
    return streams, np.where(problem.allowed[:, devices], problem.group_s[:, devices], np.inf)


def _weights(problem: Problem) -> NDArray[np.float64]:
    """[K] positive weights y with sum S_k y_k = 1 that make `work_bound` high."""
    streams, seconds = _by_kind(problem)
    best = np.full(len(streams), 1.0 / streams.sum())
    if len(streams) == 1 or not problem.g:
        return best
    share = streams / streams.sum()  # S_k y_k
    highest = 0.0
    for step in range(1, STEPS + 1):
        weighted = share / streams * seconds
        choice = weighted.argmin(axis=1)
        value = float(weighted[np.arange(len(choice)), choice].sum())
        if value > highest:
            highest, best = value, share / streams
        load = np.bincount(choice, seconds[np.arange(len(choice)), choice], minlength=len(streams)) / streams
        if load.max() <= 0:
            break
        share = np.maximum(share * np.exp((load / load.max() - 1) * 2 / np.sqrt(step)), 1e-12)
        share /= share.sum()
    return best
