"""The compiled kernel's queues: a binary heap of events, and pairing heaps of tasks (Fredman et al. 1986)."""
# mypy: ignore-errors
# Types in here are numba's business.

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, forceinline=True)
def push(times, tasks, size, time, task):
    """Put an event into the binary heap of `size` events, ordered by (time, task)."""
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if times[up] < time or (times[up] == time and tasks[up] < task):
            break
        times[i], tasks[i] = times[up], tasks[up]
        i = up
    times[i], tasks[i] = time, task


@njit(cache=True, forceinline=True)
def remove_first(times, tasks, size):
    """Take the first event out of the heap; `size` is the number of events that remain."""
    time, task = times[size], tasks[size]
    i, down = 0, 1
    while down < size:
        if down + 1 < size and (
            times[down + 1] < times[down] or (times[down + 1] == times[down] and tasks[down + 1] < tasks[down])
        ):
            down += 1
        if time < times[down] or (time == times[down] and task < tasks[down]):
            break
        times[i], tasks[i] = times[down], tasks[down]
        i, down = down, 2 * down + 1
    times[i], tasks[i] = time, task


@njit(cache=True, forceinline=True)
def meld(a, b, key, child, link):
    """Root of the union of two pairing heaps, neither empty."""
    if key[b] < key[a]:
        link[a] = child[b]
        child[b] = a
        return b
    link[b] = child[a]
    child[a] = b
    return a


@njit(cache=True, forceinline=True)
def enqueue(q, task, ranked, head, tail, key, child, link):
    """Put a task into queue `q`: at the end, or into its heap by `key`."""
    link[task] = -1
    child[task] = -1
    if head[q] < 0:
        head[q] = task
    elif ranked:
        head[q] = meld(np.int64(head[q]), task, key, child, link)
    else:
        link[tail[q]] = task
    tail[q] = task


@njit(cache=True, forceinline=True)
def without_root(root, key, child, link):
    """Root of a pairing heap after its root was taken, -1 if none is left: melds pairs of children, then all of them."""
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


@njit(cache=True, forceinline=True)
def sort(values, count):
    """Sort `values[:count]` ascending, in place (Shell 1959)."""
    gap = count
    while gap > 1:
        gap //= 2
        for i in range(gap, count):
            x, j = values[i], i
            while j >= gap and values[j - gap] > x:
                values[j] = values[j - gap]
                j -= gap
            values[j] = x
