"""The compiled loops of `makespan.communication_bound`, where the proof is; importing this imports numba.

A *head* is a lower bound of the start of an operation. Tails are the heads of the reversed graph, where an operation reads
from its consumers. The names are:

- K kinds of devices have `streams` [K]; `seconds` [n, K] of each operation on each kind; `possible` [n, K] whether it may be
  there. Operations of one `cluster` number are on one device.
- Row v of (`ptr`, `other`) holds the operations that v reads from, `cost[edge, a, b]` the seconds of a transfer from a device of
  kind a to another device of kind b (inf if there is none). `order` [n] is topological.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placekit_scheduling.jit import counted_inner, njit

BRANCHES = 16  # most branches that `_join` looks at; leaving some out lowers a bound, but keeps it valid
LENGTH = 12  # operations of a branch
INF = np.inf


class Branches(NamedTuple):
    """The branches of one operation, as in `makespan.communication_bound`, and their operations one after another.

    Attributes:
        arrival: A_bj; `length` values of branch b.
        length: [b] one more than the operations that can be on the device.
        local: [b] how many of them are.
        head, seconds: of each operation.
        of, rank: branch of each operation, and how many come before it in that branch.
    """

    arrival: NDArray[np.float64]
    length: NDArray[np.int64]
    local: NDArray[np.int64]
    head: NDArray[np.float64]
    seconds: NDArray[np.float64]
    of: NDArray[np.int64]
    rank: NDArray[np.int64]


@counted_inner
def _arrival(u: int, edge: int, kind: int, cost: Any, seconds: Any, possible: Any, head: Any) -> Any:
    """Earliest arrival, of what `u` writes on another device, on a device of `kind`."""
    least = INF
    for other_kind in range(head.shape[1]):
        if possible[u, other_kind]:
            arrival = head[u, other_kind] + seconds[u, other_kind] + cost[edge, other_kind, kind]
            least = min(least, arrival)
    return least


@counted_inner
def _binding(v: int, kind: int, ptr: Any, other: Any, seconds: Any, possible: Any, head: Any) -> Any:
    """Edge to the kernel that `v` on `kind` would wait for longest if all were on its device; -1 if there is none."""
    latest, edge = -1.0, -1
    for e in range(ptr[v], ptr[v + 1]):
        u = other[e]
        end = head[u, kind] + seconds[u, kind] if possible[u, kind] else INF
        if seconds[u, kind] > 0 and end > latest:
            latest, edge = end, e
    return edge


@counted_inner
def _grow(
    v: int, kind: int, ptr: Any, other: Any, cost: Any, seconds: Any, possible: Any, cluster: Any, head: Any, branch: Any,
    mark: Any, tick: int,
) -> Any:  # fmt: skip
    """Fill the branches of `v`: see `Branches`. Returns the number of branches, and of operations in them."""
    branches = nodes = 0
    mark[v] = tick
    for first in range(ptr[v], ptr[v + 1]):
        if branches == BRANCHES:
            break
        if mark[other[first]] == tick or seconds[other[first], kind] == 0:  # what takes no time can be on any device
            continue
        edge, reader, u, j, path = first, v, other[first], 0, 0.0
        end = head[u, kind] + seconds[u, kind]
        while True:
            branch.arrival[branches, j] = INF
            if cluster[u] != cluster[reader]:
                remote = _arrival(u, edge, kind, cost, seconds, possible, head) + path
                branch.arrival[branches, j] = max(remote, end) if j else remote
            if not possible[u, kind]:
                break
            mark[u] = tick
            branch.head[nodes], branch.seconds[nodes] = head[u, kind], seconds[u, kind]
            branch.of[nodes], branch.rank[nodes] = branches, j
            nodes, j, path = nodes + 1, j + 1, path + seconds[u, kind]
            edge = _binding(u, kind, ptr, other, seconds, possible, head) if j < LENGTH else -1
            if edge < 0 or mark[other[edge]] == tick:
                branch.arrival[branches, j] = end
                break
            reader, u = u, other[edge]
        branch.length[branches] = j + 1
        branches += 1
    return branches, nodes


@counted_inner
def _start(limit: float, least: float, branch: Any, branches: int, by_head: Any, streams: float) -> Any:
    """W(limit) of `communication_bound`, and at least `least`; inf if a branch cannot keep the limit."""
    for b in range(branches):
        local = 0
        while branch.arrival[b, local] > limit:
            local += 1
            if local == branch.length[b]:
                return INF
        branch.local[b] = local
    work = 0.0
    for i in by_head:
        if branch.rank[i] < branch.local[branch.of[i]]:
            work += branch.seconds[i]
            least = max(least, branch.head[i] + work / streams)
    return least


@counted_inner
def _join(
    v: int, kind: int, least: float, ptr: Any, other: Any, cost: Any, seconds: Any, possible: Any, streams: Any,
    cluster: Any, head: Any, branch: Any, mark: Any, tick: int,
) -> Any:  # fmt: skip
    """Earliest start of `v` on `kind`, at least `least`, by how much of each branch is on the device of v."""
    branches, nodes = _grow(v, kind, ptr, other, cost, seconds, possible, cluster, head, branch, mark, tick)
    if branches < 2:
        return least
    by_head = np.argsort(-branch.head[:nodes])
    if _start(least, least, branch, branches, by_head, streams[kind]) <= least:
        return least
    limits = np.empty(nodes + branches)
    some = 0
    for b in range(branches):
        for j in range(branch.length[b]):
            if least < branch.arrival[b, j] < INF:
                limits[some] = branch.arrival[b, j]
                some += 1
    rising = np.argsort(limits[:some])  # and not `np.sort`, which would be compiled besides
    low, high, best = 0, some - 1, INF
    while low <= high:
        middle = (low + high) // 2
        limit = limits[rising[middle]]
        start = _start(limit, least, branch, branches, by_head, streams[kind])
        best = min(best, max(start, limit))
        if start <= limit:
            high = middle - 1
        else:
            low = middle + 1
    return min(best, _start(least, least, branch, branches, by_head, streams[kind]))


@njit(cache=True)
def raise_heads(
    order: Any, ptr: Any, other: Any, cost: Any, seconds: Any, streams: Any, cluster: Any, possible: Any, head: Any
) -> None:  # fmt: skip
    """Raise `head` [n, K], and clear `possible` [n, K] where an operation cannot be. One pass in topological order."""
    mark, tick = np.full(len(order), -1, np.int64), 0
    most = BRANCHES * LENGTH
    branch = Branches(
        np.empty((BRANCHES, LENGTH + 1)), np.empty(BRANCHES, np.int64), np.empty(BRANCHES, np.int64), np.empty(most),
        np.empty(most), np.empty(most, np.int64), np.empty(most, np.int64),
    )  # fmt: skip
    for v in order:
        for kind in range(head.shape[1]):
            if not possible[v, kind]:
                continue
            least = head[v, kind]
            for e in range(ptr[v], ptr[v + 1]):
                u = other[e]
                soonest = head[u, kind] + seconds[u, kind] if possible[u, kind] else INF
                if cluster[u] != cluster[v]:
                    soonest = min(soonest, _arrival(u, e, kind, cost, seconds, possible, head))
                least = max(least, soonest)
            if least < INF and ptr[v + 1] > ptr[v] + 1:
                tick += 1
                least = _join(
                    v, kind, least, ptr, other, cost, seconds, possible, streams, cluster, head, branch, mark, tick
                )
            head[v, kind] = least
            possible[v, kind] = least < INF
