"""Saves the state of a run, so that the run of a similar placement can start from it; importing this imports numba.

A search evaluates placements that differ little from its current one. The run of the current placement saves snapshots, in
rows of `snapshot_ints`, `snapshot_floats` and `snapshot_keys`. A placement whose run is the same up to a snapshot starts
there instead of at time 0. Snapshots leave out the persistent bytes of groups: the other placement may have these groups on
other devices.
"""
# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from placekit_scheduling.fields import unpacked
from placekit_scheduling.heaps import NEAR, enqueue
from placekit_scheduling.jit import UNCOUNTED, at, njit

from placekit_sim.layout import FIELDS

KNOWN, ARRIVALS, ROUND, BEGUN, EVENTS, WAITING = range(6)  # first entries of a row
HEADER = 6


def row_length(numbers) -> int:
    """Integers of a row."""
    tasks, ends = numbers["tasks"], numbers["n_queues"] + numbers["n_channels"]
    return HEADER + NEAR + 2 * ends + numbers["n"] + 4 * numbers["t"] + 3 * numbers["e"] + 3 * tasks


@njit(cache=True, forceinline=True, **UNCOUNTED)
def _put(row, i, values, count):
    """Write the first of `values` into a row from `i` on; returns the place after them."""
    for j in range(count):
        row[i + j] = values[j]
    return i + count


@njit(cache=True, forceinline=True, **UNCOUNTED)
def _get(row, i, values, count):
    """The reverse of `_put`."""
    for j in range(count):
        values[j] = row[i + j]
    return i + count


def _save(m, index, now, known, arrivals, round_, begun, first, last, ranked, peak):
    """Write snapshot number `index`: the state before the events of the next instant, `now`."""
    m.snapshot_s[index] = now
    row, floats = m.snapshot_ints[index * m.row_ints :], m.snapshot_floats[index * m.row_floats :]
    keys = index * m.tasks
    row[KNOWN], row[ARRIVALS], row[ROUND], row[BEGUN], row[EVENTS] = known, arrivals, round_, begun, last - first
    _put(row, HEADER, m.near_task[first:], last - first)
    i = _put(row, HEADER + NEAR, m.free, m.n_queues)
    i = _put(row, i, m.channel_free, m.n_channels)
    if m.record:
        _put(row, i, m.released_by, m.n_queues + m.n_channels)
    i += m.n_queues + m.n_channels
    i = _put(row, i, m.missing, m.n)
    i = _put(row, i, m.tensor_home, m.t)
    i = _put(row, i, m.first_copy, m.t)
    if m.memory:
        _put(row, i, m.readers, m.t)
        _put(row, i + 2 * m.t, m.copy_readers, known)
    if m.multicast:
        _put(row, i + m.t, m.n_copies, m.t)
    i += 2 * m.t + m.e
    _put(row, i, m.copy_tensor, known)
    _put(row, i + m.e, m.copy_dst, known)
    i += 2 * m.e
    for d in range(m.size):
        floats[d], floats[m.size + d] = m.used[d] - m.kept_bytes[d], peak[d] - m.kept_bytes[d]
        floats[2 * m.size + d] = m.begun_s[d]
    _put(floats, 3 * m.size, m.near_s[first:], last - first)
    count = np.int64(0)
    for q in range(m.n_queues):
        # a list, or a pairing heap from its root on, with a stack of those still to look at
        task, depth, stack = np.int64(m.head[q]), np.int64(0), i + 2 * m.tasks
        while task >= 0:
            row[i + count], row[i + m.tasks + count] = task, q
            if ranked:
                m.snapshot_keys[keys + count] = m.key[task]
                if m.child[task] >= 0:
                    row[stack + depth] = m.child[task]
                    depth += 1
            count += 1
            task = np.int64(m.link[task])
            if task < 0 and depth > 0:
                depth -= 1
                task = np.int64(row[stack + depth])
    row[WAITING] = count


def _restore(m, index, ranked, peak):
    """Load snapshot number `index`. Returns `known`, `arrivals`, `round_` and `begun` of `_save`, and the number of events."""
    row, floats = m.snapshot_ints[index * m.row_ints :], m.snapshot_floats[index * m.row_floats :]
    keys = index * m.tasks
    known, arrivals, round_ = np.int64(row[KNOWN]), np.int64(row[ARRIVALS]), np.int64(row[ROUND])
    begun, events = np.int64(row[BEGUN]), np.int64(row[EVENTS])
    for q in range(m.n_queues):
        m.head[q], m.mark[q] = -1, -1
    _get(row, HEADER, m.near_task, events)
    i = _get(row, HEADER + NEAR, m.free, m.n_queues)
    i = _get(row, i, m.channel_free, m.n_channels)
    if m.record:
        _get(row, i, m.released_by, m.n_queues + m.n_channels)
    i += m.n_queues + m.n_channels
    i = _get(row, i, m.missing, m.n)
    i = _get(row, i, m.tensor_home, m.t)
    i = _get(row, i, m.first_copy, m.t)
    if m.memory:
        _get(row, i, m.readers, m.t)
        _get(row, i + 2 * m.t, m.copy_readers, known)
    if m.multicast:
        _get(row, i + m.t, m.n_copies, m.t)
    i += 2 * m.t + m.e
    _get(row, i, m.copy_tensor, known)
    _get(row, i + m.e, m.copy_dst, known)
    i += 2 * m.e
    for s in range(m.n_sources):  # they may have moved, with all their readers
        v = at(m.sources[s])
        for x in range(at(m.output_ptr[v]), at(m.output_ptr[v + 1])):
            m.tensor_home[x] = m.home[v]
    for d in range(m.size):
        m.used[d], peak[d] = m.kept_bytes[d] + floats[d], m.kept_bytes[d] + floats[m.size + d]
        m.begun_s[d] = floats[2 * m.size + d]
    _get(floats, 3 * m.size, m.near_s, events)
    for j in range(row[WAITING]):
        task, q = at(row[i + j]), at(row[i + m.tasks + j])
        if ranked:
            m.key[task] = m.snapshot_keys[keys + j]
        enqueue(q, task, ranked, m.head, m.tail, m.key, m.child, m.link)
    return known, arrivals, round_, begun, events


save = unpacked(FIELDS, _save, name="save_snapshot", cache=True, **UNCOUNTED)
restore = unpacked(FIELDS, _restore, name="restore_snapshot", cache=True, **UNCOUNTED)
