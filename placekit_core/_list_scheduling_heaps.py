"""Heaps for the compiled loops of list_scheduling.py; importing it imports numba."""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numba.core.options import DefaultOptions
from numpy.typing import NDArray

# Without reference counts of the many arrays, calls take a fifth of the time. What allocates does not compile then. It is
# an internal option of numba: a version that drops it costs time, not results.
UNCOUNTED: dict[str, Any] = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}
compiled: Any = njit(cache=True, **UNCOUNTED)


@compiled
def push(heap: NDArray[np.int64], size: int, key: int) -> int:
    """Binary heap of integers, smallest first. Returns the new size."""
    i = size
    while i > 0 and heap[(i - 1) >> 1] > key:
        heap[i] = heap[(i - 1) >> 1]
        i = (i - 1) >> 1
    heap[i] = key
    return size + 1


@compiled
def pop(heap: NDArray[np.int64], size: int) -> int:
    """Drop the first of a heap. Returns the new size."""
    size -= 1
    key, i = heap[size], 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[i] = heap[child]
        i = child
    heap[i] = key
    return size


FIRST: Any = np.int64(0)  # not a literal: numba would compile `sift` once more for it


class Pairs(NamedTuple):
    """Ready operations per device (ETF). Those whose inputs are there wait for the device, ordered by rank; the others

    are a heap by when their inputs will be there. An operation is in one of the two per device that may run it.
    """

    waiting: NDArray[np.int64]  # [D, n] heaps of ranks
    coming: NDArray[np.int64]  # [D, n] heaps of operations, by (key, rank)
    key: NDArray[np.float64]  # [D, n]
    position: NDArray[np.int64]  # [D, n] in `coming`; -1 is not there
    size: NDArray[np.int64]  # [2, D] of `waiting`, of `coming`
    blocked: NDArray[np.float64]  # [D] most live bytes at which a pair had no room (its key is inf); -inf is none
    scratch: NDArray[np.int64]  # [n]

    @classmethod
    def none(cls, n: int, devices: int) -> Pairs:
        """No pair yet."""
        table = (devices, n)
        return cls(
            np.empty(table, np.int64), np.empty(table, np.int64), np.empty(table), np.full(table, -1, np.int64),
            np.zeros((2, devices), np.int64), np.full(devices, -np.inf), np.empty(n, np.int64),
        )  # fmt: skip


@compiled
def sift(q: Pairs, rank: NDArray[np.int64], d: int, i: int) -> None:
    """Restore heap order of `coming` after the key of entry i changed."""
    heap, key, position, size = q.coming[d], q.key[d], q.position[d], q.size[1, d]
    v = heap[i]
    while i > 0:
        up = heap[(i - 1) >> 1]
        if key[up] < key[v] or (key[up] == key[v] and rank[up] < rank[v]):
            break
        heap[i] = up
        position[up] = i
        i = (i - 1) >> 1
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        w = heap[child]
        if child + 1 < size:
            x = heap[child + 1]
            if key[x] < key[w] or (key[x] == key[w] and rank[x] < rank[w]):
                child, w = child + 1, x
        if key[v] < key[w] or (key[v] == key[w] and rank[v] < rank[w]):
            break
        heap[i] = w
        position[w] = i
        i = child
    heap[i] = v
    position[v] = i


@compiled
def insert(q: Pairs, rank: NDArray[np.int64], d: int, op: int, key: float) -> None:
    q.key[d, op] = key
    q.coming[d, q.size[1, d]] = op
    q.size[1, d] += 1
    sift(q, rank, d, q.size[1, d] - 1)


@compiled
def drop_first(q: Pairs, rank: NDArray[np.int64], d: int) -> None:
    """Take the first of `coming` out."""
    q.position[d, q.coming[d, 0]] = -1
    q.size[1, d] -= 1
    if q.size[1, d]:
        q.coming[d, 0] = q.coming[d, q.size[1, d]]
        sift(q, rank, d, FIRST)
