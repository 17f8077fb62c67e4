"""The compiled part of annealing: proposing moves, taking them back, and the whole loop over a backend's kernel.

Random numbers come from SplitMix64 (Steele, Lea and Flood 2014), whose state is one word of the checkpoint.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from placekit_core.measurement import kernel_signature
from placekit_core.problem import Problem

# Part of the penalty that any excess costs, however small: else a search settles a few bytes over capacity.
STEP = 0.01


class Neighbourhood(NamedTuple):
    """What moves are made of; g groups, D devices.

    Attributes:
        movable: groups that may run on more than one device.
        allowed: [g, D].
        near_ptr, near: groups that each group exchanges tensors with, in compressed rows.
        tree, tree_first, tree_end: groups in preorder of the forest in which a group's parent is its only consumer;
            `tree[tree_first[v]:tree_end[v]]` is v with its producers that have no other consumer, theirs, and so on.
        region_ptr, region, region_of: groups of the same call of the same module, in compressed rows; the row of each.
        share: [4] shares of swaps, of cluster moves, of region moves, and of moves to a neighbour's device.
    """

    movable: NDArray[np.int32]
    allowed: NDArray[np.bool_]
    near_ptr: NDArray[np.int32]
    near: NDArray[np.int32]
    tree: NDArray[np.int32]
    tree_first: NDArray[np.int32]
    tree_end: NDArray[np.int32]
    region_ptr: NDArray[np.int32]
    region: NDArray[np.int32]
    region_of: NDArray[np.int32]
    share: NDArray[np.float64]


def neighbourhood(problem: Problem, swap: float, cluster: float, region: float, near: float) -> Neighbourhood:
    """The moves of `problem`, from its graph of groups and the modules that they came from."""
    quotient, g = problem.grouped, problem.g
    producers: list[list[int]] = [[] for _ in range(g)]
    consumers: list[list[int]] = [[] for _ in range(g)]
    for u, v in zip(*(a.tolist() for a in quotient.op_edges), strict=True):
        producers[v].append(u)
        consumers[u].append(v)
    movable = np.flatnonzero(problem.allowed.sum(axis=1) > 1).astype(np.int32)
    near_rows = [a + b for a, b in zip(producers, consumers, strict=True)]
    share = np.asarray([swap, cluster, region, near], np.float64)
    tree, tree_first, tree_end = _forest(producers, consumers)
    return Neighbourhood(
        movable, problem.allowed, *_rows(near_rows), tree, tree_first, tree_end, *_regions(problem), share
    )


Rows = NDArray[np.int32]


def _forest(producers: list[list[int]], consumers: list[list[int]]) -> tuple[Rows, Rows, Rows]:
    """Preorder of the forest of only consumers; first and end of each subtree in it."""
    g = len(producers)
    tree: list[int] = []
    first, end = [0] * g, [0] * g
    for root in (v for v in range(g) if len(consumers[v]) != 1):
        stack = [(root, False)]
        while stack:
            v, left = stack.pop()
            if left:
                end[v] = len(tree)
                continue
            first[v] = len(tree)
            tree.append(v)
            stack.append((v, True))
            stack += [(u, False) for u in producers[v] if len(consumers[u]) == 1]
    return np.asarray(tree, np.int32), np.asarray(first, np.int32), np.asarray(end, np.int32)


def _regions(problem: Problem) -> tuple[Rows, Rows, Rows]:
    """Groups by the module and call that their longest operation came from; alone where it came from none."""
    graph, group = problem.graph, problem.grouping.group_of
    longest = np.zeros(problem.g, np.int64)
    order = np.argsort(problem.op_s.min(axis=1), kind="stable")
    longest[group[order]] = order  # of several, the last one stays
    keys = zip(graph.module.codes[longest].tolist(), graph.call[longest].tolist(), strict=True)
    row_of: dict[object, int] = {}
    rows: list[list[int]] = []
    region_of = []
    for i, key in enumerate(keys):
        row = row_of.setdefault(key if graph.module[longest[i]] else i, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(i)
        region_of.append(row)
    return *_rows(rows), np.asarray(region_of, np.int32)


def _rows(rows: list[list[int]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    ptr = np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int32)
    return ptr, np.asarray([x for r in rows for x in r], np.int32)


@njit(cache=True, nogil=True)
def _next(state: Any) -> Any:
    """The next random word."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def uniform(state: Any) -> Any:
    """A float in [0, 1)."""
    return (_next(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def below(state: Any, n: Any) -> Any:
    """An integer in 0..n-1."""
    return np.int64(uniform(state) * n)


@njit(cache=True, nogil=True)
def propose(state: Any, device: Any, moves: Any, changed: Any, before: Any) -> Any:
    """Change `device` [g] by one move. Returns how many groups changed: `changed` has them, `before` their devices."""
    movable, allowed, near_ptr, near, tree, tree_first, tree_end, region_ptr, region, region_of, share = moves
    v = movable[below(state, len(movable))]
    old = device[v]
    kind = uniform(state)
    if kind < share[0]:
        w = movable[below(state, len(movable))]
        other = device[w]
        if other != old and allowed[v, other] and allowed[w, old]:
            changed[0], before[0], changed[1], before[1] = v, old, w, other
            device[v], device[w] = other, old
            return 2
    target = np.int64(-1)
    degree = near_ptr[v + 1] - near_ptr[v]
    if degree > 0 and uniform(state) < share[3]:
        d = device[near[near_ptr[v] + below(state, degree)]]
        if d != old and allowed[v, d]:
            target = np.int64(d)
    while target < 0:  # v has at least two devices, so this ends
        d = np.int64(below(state, allowed.shape[1]))
        if d != old and allowed[v, d]:
            target = d
    count = 0
    member, first = tree, tree_first[v]
    end = first + 1  # the group alone: it stands first in its subtree
    if share[0] <= kind < share[0] + share[1]:
        end = tree_end[v]
    elif share[0] + share[1] <= kind < share[0] + share[1] + share[2]:
        member, first, end = region, region_ptr[region_of[v]], region_ptr[region_of[v] + 1]
    for i in range(first, end):
        u = member[i]
        if device[u] != target and allowed[u, target]:
            changed[count], before[count] = u, device[u]
            device[u] = target
            count += 1
    return count


@njit(cache=True, nogil=True)
def undo(device: Any, changed: Any, before: Any, count: Any) -> None:
    """Take the last move back."""
    for i in range(count):
        device[changed[i]] = before[i]


@njit(cache=True, nogil=True)
def step(state: Any, energy: Any, new: Any, fits: Any, temperature: Any) -> Any:
    """Whether to keep a move to energy `new`; updates `energy` ([3], see `anneal`).

    The rule of Metropolis (better always, worse with probability exp(-difference / temperature)) until something fits;
    from then on only among placements that fit. The first that fits is always kept, and so is a new best one.
    """
    known = energy[2] > 0
    if fits and not known:
        energy[:] = new
        energy[2] = 1.0
        return True
    if known and not fits:
        return False
    if new > energy[0] and not uniform(state) < math.exp((energy[0] - new) / temperature):
        return False
    energy[0] = new
    energy[1] = min(energy[1], new)
    return True


_moves = types.NamedTuple(  # type: ignore[no-untyped-call]
    (types.int32[::1], types.boolean[:, ::1], *[types.int32[::1]] * 8, types.float64[::1]), Neighbourhood,
)  # fmt: skip
_anneal = types.float64(
    types.FunctionType(kernel_signature()), types.int32[::1], types.float64[::1], types.int64, types.int64,
    types.int16[::1], types.float32[::1], types.int16[::1], types.float64[::1], types.uint64[::1], _moves,
    types.float64[::1], types.float64, types.int64, types.float64[::1],
)  # fmt: skip


@njit(_anneal, cache=True, nogil=True)
def anneal(  # type: ignore[no-untyped-def]
    evaluate, ints, floats, scratch_ints, scratch_floats, device, priority, best_device, energy, state, moves,
    memory_bytes, penalty_s, count, temperature,
):  # fmt: skip
    """`count` evaluations. Returns the sum of their energies, seconds.

    Args:
        evaluate, ints, floats, scratch_ints, scratch_floats: see `placekit_core.measurement.Kernel`.
        device: [g] current placement, changed in place; `priority`: [g] or of length 0.
        best_device: [g] the best placement so far; `energy`: [3] of the current and of the best one, and 1 if that fits.
        state: [1] of the random numbers.
        memory_bytes: [D] capacities; `penalty_s`: what the whole of a device over capacity costs.
        temperature: [2] seconds before the first of these evaluations, and the factor of each.
    """
    work_ints, work_floats = np.empty(scratch_ints, np.int32), np.empty(scratch_floats)
    changed, before = np.empty(max(len(device), 2), np.int32), np.empty(max(len(device), 2), np.int16)
    peak = np.empty(len(memory_bytes))
    total, t = 0.0, temperature[0]
    for _ in range(count):
        moved = propose(state, device, moves, changed, before)
        value = evaluate(device, priority, ints, floats, work_ints, work_floats, peak)
        over = 0.0
        for d in range(len(peak)):
            if peak[d] > memory_bytes[d]:
                over += STEP + peak[d] / memory_bytes[d] - 1.0
        value += penalty_s * over
        total += value
        if step(state, energy, value, over == 0.0, t):
            if energy[0] == energy[1]:
                best_device[:] = device
        else:
            undo(device, changed, before, moved)
        t *= temperature[1]
    temperature[0] = t
    return total
