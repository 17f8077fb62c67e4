"""Heaps for compiled loops. Importing this imports numba.

- `push`, `pop`: a binary heap of integers.
- `push_event`, `drop_event`: a binary heap of numbered events by time.
- `sift`: a binary heap of numbered entries whose keys change.
- `insert_event`: a short sorted list of events.
- `enqueue`, `without_root`: pairing heaps (Fredman et al. 1986) that share their arrays.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from placekit_scheduling.jit import at, compiled, inlined

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@compiled
def push(heap: Ints, size: int, key: int) -> int:
    """Put an integer into a heap, smallest first. Returns the new size."""
    i = size
    while i > 0 and heap[(i - 1) >> 1] > key:
        heap[i] = heap[(i - 1) >> 1]
        i = (i - 1) >> 1
    heap[i] = key
    return size + 1


@compiled
def pop(heap: Ints, size: int) -> int:
    """Remove the smallest integer of a heap. Returns the new size."""
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


@inlined
def push_event(times: Floats, numbers: Any, size: int, time: float, number: int) -> None:
    """Put an event into a heap of `size` events, ordered by (time, number)."""
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if times[up] < time or (times[up] == time and numbers[up] < number):
            break
        times[i], numbers[i] = times[up], numbers[up]
        i = up
    times[i], numbers[i] = time, number


@inlined
def drop_event(times: Floats, numbers: Any, size: int) -> None:
    """Remove the first event of a heap; `size` events remain."""
    time, number = times[size], numbers[size]
    i, down = 0, 1
    while down < size:
        if down + 1 < size and (
            times[down + 1] < times[down] or (times[down + 1] == times[down] and numbers[down + 1] < numbers[down])
        ):
            down += 1
        if time < times[down] or (time == times[down] and number < numbers[down]):
            break
        times[i], numbers[i] = times[down], numbers[down]
        i, down = down, 2 * down + 1
    times[i], numbers[i] = time, number


NEAR = 32
"""Most events in a sorted list (`insert_event`); put the others into a heap."""
SPAN = 256
"""Length of the arrays of such a list."""


@inlined
def insert_event(times: Floats, numbers: Any, first: Any, end: Any, time: float, number: int) -> Any:
    """Insert an event into the list `first` .. `end` - 1, sorted by (time, number). Returns the new first and end.

    The list moves to the right as events are removed at its left, and back when it reaches the end of the arrays. For few
    pending events, as on most machines, it is faster than a heap.
    """
    if end == SPAN:
        for j in range(first, end):
            times[at(j - first)], numbers[at(j - first)] = times[at(j)], numbers[at(j)]
        first, end = np.int64(0), end - first
    i = end
    while i > first:
        before = at(i - 1)
        if times[before] < time or (times[before] == time and numbers[before] < number):
            break
        times[at(i)], numbers[at(i)] = times[before], numbers[before]
        i = before
    times[at(i)], numbers[at(i)] = time, number
    return first, end + 1


@compiled
def sift(heap: Ints, key: Floats, rank: Ints, position: Ints, size: int, i: int) -> None:
    """Restore the order by (key, rank) of a heap of `size` numbers after the key of its entry `i` changed.

    `key`, `rank` and `position` (in the heap) are indexed by number.
    """
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


@inlined
def meld(a: int, b: int, key: Ints, child: Any, link: Any) -> int:
    """Root of the union of two non-empty pairing heaps."""
    if key[b] < key[a]:
        link[a] = child[b]
        child[b] = a
        return b
    link[b] = child[a]
    child[a] = b
    return a


@inlined
def enqueue(
    q: int, number: int, ranked: bool, head: Any, tail: Any, key: Ints, child: Any, link: Any
) -> None:  # fmt: skip
    """Put a number into queue `q`: at the end of a list, or if `ranked` into a pairing heap by `key`."""
    link[number] = -1
    if ranked:
        child[number] = -1
        head[q] = number if head[q] < 0 else meld(np.int64(head[q]), number, key, child, link)
    else:
        if head[q] < 0:
            head[q] = number
        else:
            link[at(tail[q])] = number
        tail[q] = number


@inlined
def without_root(root: int, key: Ints, child: Any, link: Any) -> Any:
    """Root of a pairing heap after its root was removed, -1 if it is empty: melds pairs of children, then all of them."""
    x = np.int64(child[root])
    if x < 0 or link[x] < 0:
        return x
    pairs = np.int64(-1)
    while x >= 0:
        y = np.int64(link[x])
        if y < 0:
            link[x] = pairs
            pairs = x
            break
        after = np.int64(link[y])
        x = meld(x, y, key, child, link)
        link[x] = pairs
        pairs, x = x, after
    heap = pairs
    pairs = np.int64(link[heap])
    link[heap] = -1
    while pairs >= 0:
        after = np.int64(link[pairs])
        link[pairs] = -1
        heap = meld(heap, pairs, key, child, link)
        pairs = after
    return heap
