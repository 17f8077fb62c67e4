"""Chooses the task that starts next. Importing this imports numba."""
# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from placekit_scheduling.jit import at, inlined


@inlined
def sort(values, first, end):
    """Sort `values[first:end]` ascending, in place (Shell 1959)."""
    gap = end - first
    while gap > 1:
        gap //= 2
        for i in range(first + gap, end):
            x, j = values[i], i
            while j >= first + gap and values[j - gap] > x:
                values[j] = values[j - gap]
                j -= gap
            values[j] = x


@inlined
def first_come(touched, n_touched, free, head, key, new):
    """With ready_order `arrival`, the device with a free stream whose operation starts next; -1 if there is none.

    Operations with a key below `new` have waited since an earlier round. They start first, device by device; then those of
    this round, in the order in which they came.
    """
    chosen, best = np.int64(-1), np.int64(0)
    for i in range(n_touched):
        q = at(touched[i])
        if free[q] > 0 and head[q] >= 0:
            came = key[at(head[q])]
            if came < new:
                return q
            if chosen < 0 or came < best:
                chosen, best = np.int64(q), came
    return chosen


@inlined
def choose(candidates, n_candidates, head, channel_free, held_ptr, held, first_shared, ranked, key):
    """The queue whose first task starts next, among queues that compete for channels; -1 if there is none.

    Also returns the number of remaining candidates.
    """
    chosen, best, i = np.int64(-1), np.int64(0), np.int64(0)
    while i < n_candidates:
        q = at(candidates[i])
        task = np.int64(head[q])
        can = task >= 0
        if can:
            for j in range(at(held_ptr[q - first_shared]), at(held_ptr[q - first_shared + 1])):
                if channel_free[at(held[j])] == 0:
                    can = False
                    break
        if not can:  # it becomes a candidate again when a channel is released
            n_candidates -= 1
            candidates[i] = candidates[n_candidates]
            continue
        value = key[task] if ranked else task
        if chosen < 0 or value < best:
            chosen = q
            best = value
        i += 1
    return chosen, n_candidates
