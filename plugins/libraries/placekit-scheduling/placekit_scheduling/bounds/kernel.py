"""The compiled loops of makespan.py, which has the proofs; importing this imports numba.

The loops compute heads: lower bounds on the time from the start of the schedule to the start of an operation. Tails are the
heads of the reversed graph, where an operation reads from its consumers. Arguments:

- A *place* is a set of devices of one kind. `streams` [P]; `seconds` [n, P] of each operation there; `possible` [n, P]
  whether it can be there. Operations with the same `cluster` number are on one device. `main` is the place of the single
  device of one cluster, or -1.
- Row v of (`ptr`, `other`) holds the operations that v reads from. `cost[edge, a, b]` is the seconds of a transfer from
  place a to another device of place b (inf if there is none).
- `order` [n] is topological, `position` its inverse. Bit b of `reach[v]` is set if the operation b + 1 positions before v is
  an ancestor of v; ancestors further back are ignored. `before[v]` is the last operation of v's cluster before v in that
  order, `before_main[v]` the last one of the main cluster; -1 if there is none.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placekit_scheduling.jit import counted_inner, njit

BRANCHES = 16  # most branches that `_join_start` considers; with fewer, a bound is lower but valid
LENGTH = 12  # most operations of a branch
INF = np.inf


class Branches(NamedTuple):
    """The branches of one operation, as in `makespan.communication_bound`, with their operations in one list.

    Attributes:
        arrival: A_bj; branch b has `length` values.
        length: [b] one more than the number of its operations that can be on the device.
        local: [b] how many of these are on the device.
        head, seconds: of each operation.
        of, rank: branch of each operation, and its position there.
        order, limits: working space.
    """

    arrival: NDArray[np.float64]
    length: NDArray[np.int64]
    local: NDArray[np.int64]
    head: NDArray[np.float64]
    seconds: NDArray[np.float64]
    of: NDArray[np.int64]
    rank: NDArray[np.int64]
    order: NDArray[np.int64]
    limits: NDArray[np.float64]


@njit(cache=True)
def reach_back(order: Any, position: Any, ptr: Any, other: Any, words: int) -> Any:
    """`reach` [n, words] uint64, which covers 64 * words positions."""
    n = len(order)
    reach = np.zeros((n, words), np.uint64)
    for i in range(n):
        v = order[i]
        for e in range(ptr[v], ptr[v + 1]):
            u = other[e]
            back = i - position[u]
            if back > 64 * words:
                continue
            reach[v, (back - 1) >> 6] |= np.uint64(1) << np.uint64((back - 1) & 63)
            skip, bits = back >> 6, np.uint64(back & 63)
            for w in range(skip, words):
                moved = reach[u, w - skip] << bits
                if bits > 0 and w > skip:
                    moved |= reach[u, w - skip - 1] >> (np.uint64(64) - bits)
                reach[v, w] |= moved
    return reach


@counted_inner
def _earliest_arrival(u: int, edge: int, place: int, cost: Any, seconds: Any, possible: Any, head: Any) -> Any:
    """Earliest arrival of the output of `u` on a device of `place`, if `u` is on another device."""
    least = INF
    for other_place in range(head.shape[1]):
        if possible[u, other_place]:
            arrival = head[u, other_place] + seconds[u, other_place] + cost[edge, other_place, place]
            least = min(least, arrival)
    return least


@counted_inner
def _after_own_ancestors(
    v: int, u: int, place: int, order_position: Any, before: Any, reach: Any, seconds: Any, possible: Any, streams: Any,
    head: Any, least: Any,
) -> Any:  # fmt: skip
    """When the device of `v` has run the ancestors of v that must be on it, from `u` back: see `forced_bound`."""
    work, first = 0.0, INF
    while u >= 0:
        back = order_position[v] - order_position[u] - 1
        if back >= 64 * reach.shape[1]:
            break
        if (reach[v, back >> 6] >> np.uint64(back & 63)) & np.uint64(1):
            if not possible[u, place]:
                return INF
            work += seconds[u, place]
            first = min(first, head[u, place])
            least = max(least, first + work / streams[place])
        u = before[u]
    return least


@counted_inner
def _latest_input(v: int, place: int, ptr: Any, other: Any, seconds: Any, possible: Any, head: Any) -> Any:
    """Edge to the input of `v` on `place` that ends last if all inputs are on its device; -1 without inputs."""
    latest, edge = -1.0, -1
    for e in range(ptr[v], ptr[v + 1]):
        u = other[e]
        end = head[u, place] + seconds[u, place] if possible[u, place] else INF
        if seconds[u, place] > 0 and end > latest:
            latest, edge = end, e
    return edge


@counted_inner
def _fill_branches(
    v: int, place: int, ptr: Any, other: Any, cost: Any, seconds: Any, possible: Any, cluster: Any, head: Any, branch: Any,
    mark: Any, tick: int,
) -> Any:  # fmt: skip
    """Fill `branch` for `v`. Returns the number of branches, and of operations in them."""
    branches = nodes = 0
    mark[v] = tick
    for first in range(ptr[v], ptr[v + 1]):
        if branches == BRANCHES:
            break
        if (
            mark[other[first]] == tick or seconds[other[first], place] == 0
        ):  # without a duration, its device does not matter
            continue
        edge, reader, u, j, path = first, v, other[first], 0, 0.0
        end = head[u, place] + seconds[u, place]
        while True:
            branch.arrival[branches, j] = INF
            if cluster[u] != cluster[reader]:
                remote = _earliest_arrival(u, edge, place, cost, seconds, possible, head) + path
                branch.arrival[branches, j] = max(remote, end) if j else remote
            if not possible[u, place]:
                break
            mark[u] = tick
            branch.head[nodes], branch.seconds[nodes] = head[u, place], seconds[u, place]
            branch.of[nodes], branch.rank[nodes] = branches, j
            nodes, j, path = nodes + 1, j + 1, path + seconds[u, place]
            edge = _latest_input(u, place, ptr, other, seconds, possible, head) if j < LENGTH else -1
            if edge < 0 or mark[other[edge]] == tick:
                branch.arrival[branches, j] = end
                break
            reader, u = u, other[edge]
        branch.length[branches] = j + 1
        branches += 1
    return branches, nodes


@counted_inner
def _start_within(limit: float, least: float, branch: Any, branches: int, nodes: int, streams: float) -> Any:
    """W(limit) of `communication_bound`, but at least `least`; inf if a branch cannot keep the limit."""
    for b in range(branches):
        local = 0
        while branch.arrival[b, local] > limit:
            local += 1
            if local == branch.length[b]:
                return INF
        branch.local[b] = local
    work = 0.0
    for k in range(nodes):
        i = branch.order[k]
        if branch.rank[i] < branch.local[branch.of[i]]:
            work += branch.seconds[i]
            least = max(least, branch.head[i] + work / streams)
    return least


@counted_inner
def _join_start(
    v: int, place: int, least: float, ptr: Any, other: Any, cost: Any, seconds: Any, possible: Any, streams: Any,
    cluster: Any, head: Any, branch: Any, mark: Any, tick: int,
) -> Any:  # fmt: skip
    """Earliest start of `v` on `place`, at least `least`, over the choices of how much of each branch is on its device."""
    branches, nodes = _fill_branches(v, place, ptr, other, cost, seconds, possible, cluster, head, branch, mark, tick)
    if branches < 2:
        return least
    for i in range(nodes):  # by falling head; sorted by insertion, as numpy's sorting takes seconds to compile
        k = i
        while k > 0 and branch.head[branch.order[k - 1]] < branch.head[i]:
            branch.order[k] = branch.order[k - 1]
            k -= 1
        branch.order[k] = i
    if _start_within(least, least, branch, branches, nodes, streams[place]) <= least:
        return least
    some = 0
    for b in range(branches):
        for j in range(branch.length[b]):
            limit, k = branch.arrival[b, j], some
            if least < limit < INF:
                while k > 0 and branch.limits[k - 1] > limit:
                    branch.limits[k] = branch.limits[k - 1]
                    k -= 1
                branch.limits[k] = limit
                some += 1
    low, high, best = 0, some - 1, INF
    while low <= high:
        middle = (low + high) // 2
        limit = branch.limits[middle]
        start = _start_within(limit, least, branch, branches, nodes, streams[place])
        best = min(best, max(start, limit))
        if start <= limit:
            high = middle - 1
        else:
            low = middle + 1
    return min(best, _start_within(least, least, branch, branches, nodes, streams[place]))


@njit(cache=True)
def raise_heads(
    order: Any, position: Any, ptr: Any, other: Any, cost: Any, seconds: Any, streams: Any, cluster: Any, main: int,
    before: Any, before_main: Any, reach: Any, possible: Any, head: Any,
) -> None:  # fmt: skip
    """Raise `head` [n, P], and clear `possible` [n, P] where an operation cannot be. One pass in topological order."""
    mark, tick = np.full(len(order), -1, np.int64), 0
    most = BRANCHES * LENGTH
    branch = Branches(
        np.empty((BRANCHES, LENGTH + 1)), np.empty(BRANCHES, np.int64), np.empty(BRANCHES, np.int64), np.empty(most),
        np.empty(most), np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64),
        np.empty(most + BRANCHES),
    )  # fmt: skip
    for v in order:
        for place in range(head.shape[1]):
            if not possible[v, place]:
                continue
            least = head[v, place]
            for e in range(ptr[v], ptr[v + 1]):
                u = other[e]
                soonest = head[u, place] + seconds[u, place] if possible[u, place] else INF
                if cluster[u] != cluster[v]:
                    soonest = min(soonest, _earliest_arrival(u, e, place, cost, seconds, possible, head))
                least = max(least, soonest)
            if least < INF and ptr[v + 1] > ptr[v] + 1:
                tick += 1
                least = _join_start(
                    v, place, least, ptr, other, cost, seconds, possible, streams, cluster, head, branch, mark, tick
                )
            least = _after_own_ancestors(
                v, before[v], place, position, before, reach, seconds, possible, streams, head, least
            )
            if place == main:
                least = _after_own_ancestors(
                    v, before_main[v], place, position, before, reach, seconds, possible, streams, head, least
                )
            head[v, place] = least
            possible[v, place] = least < INF


@njit(cache=True)
def restrict(head: Any, tail: Any, seconds: Any, possible: Any, cluster: Any, most: float) -> Any:
    """Clear `possible` where a path would be longer than `most`, for whole clusters.

    Returns how many entries were cleared by a path; -1 if an operation has no place left.
    """
    n, places = head.shape
    changed = 0
    for v in range(n):
        for place in range(places):
            if possible[v, place] and head[v, place] + seconds[v, place] + tail[v, place] > most:
                possible[v, place] = False
                changed += 1
    for v in range(n):
        for place in range(places):
            possible[cluster[v], place] &= possible[v, place]
    for v in range(n):
        for place in range(places):
            possible[v, place] = possible[cluster[v], place]
        if not possible[v].any():
            return -1
    return changed


@njit(cache=True)
def merge(
    producer: Any, consumer: Any, cost: Any, head: Any, tail: Any, seconds: Any, possible: Any, cluster: Any, most: float
) -> Any:  # fmt: skip
    """Unite the clusters of two operations if a transfer between them would make a path longer than `most`.

    `cluster[v]` is an operation of v's cluster, with `cluster[cluster[v]] == cluster[v]`. Returns how many were united.
    """
    united = 0
    for e in range(len(producer)):
        u, v = producer[e], consumer[e]
        a, b = cluster[u], cluster[v]
        while cluster[a] != a:
            a = cluster[a]
        while cluster[b] != b:
            b = cluster[b]
        if a == b:
            continue
        least = INF
        for place in range(head.shape[1]):
            if possible[v, place]:
                after = seconds[v, place] + tail[v, place]
                least = min(least, _earliest_arrival(u, e, place, cost, seconds, possible, head) + after)
        if least > most:
            cluster[max(a, b)] = min(a, b)
            united += 1
    for v in range(len(cluster)):  # a root has the lowest number of its cluster, so operations before v point to roots
        cluster[v] = cluster[cluster[v]]
    return united
