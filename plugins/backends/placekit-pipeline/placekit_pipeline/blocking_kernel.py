"""The compiled evaluation of `blocking_latency`: it updates only values that depend on groups moved since the last call.

Operations are numbered in topological order, accelerators from 0 to A - 1. The *depth* of an operation for accelerator f is the
number of calls of f that end before the operation has its inputs; if it is on f itself, its own call counts, too. The call
of depth k on accelerator f is number f * slots + k. A *unit* is what runs at once: a call, or operation v on a CPU, which is unit
calls + v. Sources have no unit (-1), and depth 0.
"""
# mypy: ignore-errors
# numba checks the types here; the signature of `blocking_latency` is explicit.

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np
from placekit_scheduling import kernel_signature
from placekit_scheduling.fields import fields, view_of
from placekit_scheduling.jit import UNCOUNTED, at, inner, njit

REBUILD = 4  # if more than 1 / REBUILD of the operations move, everything is computed again

KNOWN, CHANGED, TOUCHED = range(3)  # entries of `count`: whether kept data are set; lengths of `changed` and `touched`
OUTSIDE = -2  # in `following`: a unit is in no list

FIELDS = [
    *fields("number", "n t g size accelerators slots calls"),
    *fields("ints", "group_of group_ptr group_op kernel input_ptr input_op reader_ptr tensor_ptr tensor_of"),
    *fields("ints", "producer consumer_ptr consumer_op accelerator accelerator_of"),
    *fields("floats", "op_s hop_s tensor_bytes group_bytes latency_s s_per_byte grid_s"),
    # kept between calls: devices of groups; devices of operations, their accelerators (-1: a CPU), units, neighbours in the lists
    # of units, depths; first operations of units, the depths that calls wait for, their seconds; bytes of devices
    *fields("scratch_ints", "count", "counts"),
    *fields("scratch_ints", "device", "g"),
    *fields("scratch_ints", "home side unit next_op last_op", "n"),
    *fields("scratch_ints", "depth", "depths"),
    *fields("scratch_ints", "first_op", "lists"),
    *fields("scratch_ints", "wait", "waits"),
    *fields("scratch_floats", "seconds", "calls"),
    *fields("scratch_floats", "used", "size"),
    # what changes in this call: operations that move, or whose inputs have other depths, or that change units; tensors without
    # transfers; entries of `wait` that may fall
    *fields("scratch_ints", "is_next changed is_changed", "n"),
    *fields("scratch_ints", "is_out", "t"),
    *fields("scratch_ints", "touched", "waits"),
    # of each unit: whether it has read a tensor, how many inputs from CPUs are missing, the first unit that waits for this one,
    # the next unit in the list that holds this one, and when it ends
    *fields("scratch_ints", "seen missing waiting following", "units"),
    *fields("scratch_ints", "done", "size"),
    *fields("scratch_floats", "end", "units"),
]
"""Everything that `blocking_latency` works on."""

View = namedtuple("View", [field.name for field in FIELDS])
_view = view_of(View, FIELDS)


@inner
def _mark(m, device):
    """Note the operations that move."""
    for group in range(m.g):
        if device[group] != m.device[group]:
            m.used[m.device[group]] -= m.group_bytes[group]
            m.used[device[group]] += m.group_bytes[group]
            m.device[group] = device[group]
            for i in range(at(m.group_ptr[group]), at(m.group_ptr[group + 1])):
                v = at(m.group_op[i])
                m.side[v], m.is_changed[v], m.changed[m.count[CHANGED]] = m.accelerator[device[group]], 1, v
                m.count[CHANGED] += 1


@inner
def _mark_all(m, device):
    """Forget all units, and note that all operations move."""
    for d in range(m.size):
        m.used[d] = 0.0
    for group in range(m.g):
        m.device[group] = device[group]
        m.used[device[group]] += m.group_bytes[group]
    for call in range(m.calls):
        m.first_op[call], m.seconds[call] = -1, 0.0
        for f in range(m.accelerators):
            m.wait[f * m.calls + call] = max(call - f * m.slots - 1, 0) if m.accelerator_of[call] == f else 0
    m.first_op[m.calls] = -1
    for v in range(m.n):
        m.side[v], m.unit[v] = m.accelerator[at(device[at(m.group_of[v])])], m.calls if m.kernel[v] else -1
        m.changed[v], m.is_changed[v], m.is_next[v] = v, 1, 0
    for x in range(m.t):
        m.is_out[x] = 1
    m.count[CHANGED] = m.n


@inner
def _set_depths(m, whole):
    """Set the depths after changed operations moved, all of them if `whole`; others that change units are added to them.

    `is_next` is 2 for operations that moved to or from the accelerator, 1 for others whose inputs changed.
    """
    moved = at(m.count[CHANGED])
    for f in range(m.accelerators):
        depth, after, end = m.depth[f * m.n :], np.int64(m.n), np.int64(0)
        for k in range(moved):
            u = at(m.changed[k])
            if m.unit[u] >= 0 and (whole or m.side[u] == f or m.accelerator[at(m.home[u])] == f):
                m.is_next[u], after, end = 2, min(after, u), max(end, u + 1)
        while after < end:
            v = at(after)
            after += 1
            if not m.is_next[v]:
                continue
            on, unit, before = m.side[v] == f, np.int64(m.unit[v]), depth[v]
            deepest = np.int32(on)
            for i in range(at(m.input_ptr[v]), at(m.input_ptr[v + 1])):
                u = at(m.input_op[i])
                deepest = max(deepest, depth[u] + np.int32(on and m.side[u] != f))
            depth[v] = deepest
            if not whole and (deepest != before or m.is_next[v] == 2):
                for i in range(at(m.reader_ptr[v]), at(m.reader_ptr[v + 1])):
                    c = at(m.consumer_op[i])
                    m.is_next[c], end = max(m.is_next[c], 1), max(end, c + 1)
            if deepest != before and unit < m.calls:
                if m.accelerator_of[unit] != f:
                    _touch(m, f * m.calls + unit, max(before, deepest))
                elif not m.is_changed[v]:
                    m.is_changed[v], m.changed[m.count[CHANGED]] = 1, v
                    m.count[CHANGED] += 1
            m.is_next[v] = 0


@inner
def _account(m, sign):
    """Add the transfers of the tensors of changed operations to the seconds of calls; with `sign` -1, subtract them.

    They are multiples of `grid_s`, so that sums are exact in any order.
    """
    for k in range(at(m.count[CHANGED])):
        v = at(m.changed[k])
        for j in range(at(m.tensor_ptr[v]), at(m.tensor_ptr[v + 1])):
            x = at(m.tensor_of[j])
            if m.is_out[x] != (sign > 0.0):
                continue
            m.is_out[x] = 1 - m.is_out[x]
            u, first, end = at(m.producer[x]), at(m.consumer_ptr[x]), at(m.consumer_ptr[x + 1])
            p, a, sent = np.int64(m.unit[u]), at(m.home[u]), 0.0
            for i in range(first, end):
                c = at(m.consumer_op[i])
                q, b = at(m.unit[c]), at(m.home[c])
                if q == p or m.seen[q] or (p < 0 and a == b):
                    continue
                m.seen[q] = i + 1 < end
                hop = m.hop_s[x]
                if hop < 0.0:
                    hop = m.latency_s[a * m.size + b] + m.tensor_bytes[x] * m.s_per_byte[a * m.size + b]
                    hop = np.rint(hop * m.grid_s[1]) * m.grid_s[0]
                if q < m.calls:
                    m.seconds[q] += sign * hop
                sent = max(sent, hop)
            for i in range(first, end - 1):
                m.seen[at(m.unit[at(m.consumer_op[i])])] = 0
            if 0 <= p < m.calls:
                m.seconds[p] += sign * sent


@inner
def _touch(m, wait, depth):
    """Note that an entry of `wait` may fall, after an operation that waits for this depth changed or left."""
    if 0 < depth >= m.wait[wait] >= 0:
        m.touched[m.count[TOUCHED]], m.wait[wait] = wait, -1
        m.count[TOUCHED] += 1


@inner
def _regroup(m, device, whole):
    """Put changed operations into the units of their new devices and depths, and set what calls wait for."""
    for k in range(0 if whole else at(m.count[CHANGED])):
        v = at(m.changed[k])
        unit = np.int64(m.unit[v])
        if unit < 0:
            continue
        if m.next_op[v] >= 0:
            m.last_op[at(m.next_op[v])] = m.last_op[v]
        if m.last_op[v] >= 0:
            m.next_op[at(m.last_op[v])] = m.next_op[v]
        else:
            m.first_op[min(unit, m.calls)] = m.next_op[v]
        if unit < m.calls:
            m.seconds[unit] -= m.op_s[v * m.size + m.home[v]]
            for f in range(m.accelerators):
                if f != m.accelerator_of[unit]:
                    _touch(m, f * m.calls + unit, m.depth[f * m.n + v])
    for k in range(at(m.count[CHANGED])):
        v = at(m.changed[k])
        m.home[v], m.is_changed[v] = device[at(m.group_of[v])], 0
        if m.unit[v] < 0:
            continue
        f, unit, row = np.int64(m.side[v]), m.calls + v, m.calls
        if f >= 0:
            unit = row = f * m.slots + m.depth[f * m.n + v]
            m.seconds[row] += m.op_s[v * m.size + m.home[v]]
        m.unit[v], m.next_op[v], m.last_op[v] = unit, m.first_op[row], -1
        if m.first_op[row] >= 0:
            m.last_op[at(m.first_op[row])] = v
        m.first_op[row] = v
    for f in range(m.accelerators):
        depth, wait = m.depth[f * m.n :], m.wait[f * m.calls :]
        for k in range(at(m.count[CHANGED])):
            v = at(m.changed[k])
            if 0 <= m.side[v] != f and m.unit[v] >= 0:
                unit = at(m.unit[v])
                wait[unit] = max(wait[unit], depth[v])
    for k in range(at(m.count[TOUCHED])):
        wait = at(m.touched[k])
        f = wait // m.calls
        v = np.int64(m.first_op[wait - f * m.calls])
        m.wait[wait] = 0
        while v >= 0:
            m.wait[wait] = max(m.wait[wait], m.depth[f * m.n + v])
            v = np.int64(m.next_op[v])


@inner
def _begin(m):
    """Count the inputs from CPUs that each unit waits for. Returns the number of units, and the first in a list of all."""
    units, first, v = np.int64(0), np.int64(-1), np.int64(m.first_op[m.calls])
    for f in range(m.accelerators):
        m.done[f] = 0
        call = f * m.slots + 1
        while m.first_op[call] >= 0:
            m.missing[call], m.waiting[call], m.end[call], m.following[call] = 0, -1, 0.0, first
            first, call, units = call, call + 1, units + 1
    while v >= 0:
        unit = m.calls + v
        m.missing[unit], m.end[unit], m.following[unit] = 0, 0.0, first
        first, v, units = unit, np.int64(m.next_op[v]), units + 1
    v = np.int64(m.first_op[m.calls])
    while v >= 0:
        for i in range(at(m.reader_ptr[v]), at(m.reader_ptr[v + 1])):
            m.missing[at(m.unit[at(m.consumer_op[i])])] += 1
        v = np.int64(m.next_op[v])
    return units, first


@inner
def _run(m):
    """The end of the last unit in seconds; infinity if units wait for each other.

    Before a unit runs, its `end` is when it can start.
    """
    units, unit = _begin(m)
    last = 0.0
    while unit >= 0:
        after, call, v = np.int64(m.following[unit]), unit < m.calls, unit - m.calls
        if m.missing[unit] > 0:  # it leaves the list until a CPU has made its last input
            m.following[unit], unit = OUTSIDE, after
            continue
        row, i, stride = (m.wait, unit, m.calls) if call else (m.depth, v, m.n)
        f, p = np.int64(0), np.int64(0)
        while f < m.accelerators:
            p = f * m.slots + np.int64(row[i + f * stride])
            if row[i + f * stride] > m.done[f]:
                break
            m.end[unit] = max(m.end[unit], m.end[p])
            f += 1
        if f < m.accelerators:  # it waits for call p
            m.following[unit], m.waiting[p] = m.waiting[p], unit
            unit = after
            continue
        m.end[unit] += m.seconds[unit] if call else m.op_s[v * m.size + m.home[v]]
        last, units = max(last, m.end[unit]), units - 1
        if call:
            f = at(m.accelerator_of[unit])
            m.done[f] = unit - f * m.slots
            p = np.int64(m.waiting[unit])
            while p >= 0:
                following = np.int64(m.following[p])
                m.following[p] = after
                after, p = p, following
        else:
            for i in range(at(m.reader_ptr[v]), at(m.reader_ptr[v + 1])):
                p = at(m.unit[at(m.consumer_op[i])])
                m.end[p] = max(m.end[p], m.end[unit])
                m.missing[p] -= 1
                if m.missing[p] == 0 and m.following[p] == OUTSIDE:
                    m.following[p] = after
                    after = p
        unit = after
    return last if units == 0 else math.inf


@njit(kernel_signature(), cache=True, nogil=True, **UNCOUNTED)
def blocking_latency(device, priority, ints, floats, scratch_ints, scratch_floats, peak):
    """The end of the last call in seconds; infinity if calls wait for each other. See `placekit_scheduling.Kernel`."""
    m = _view(ints, floats, scratch_ints, scratch_floats)
    whole = m.count[KNOWN] == 0
    m.count[CHANGED] = m.count[TOUCHED] = 0
    if not whole:
        _mark(m, device)
        whole = m.count[CHANGED] * REBUILD > m.n
    if whole:
        _mark_all(m, device)
    _set_depths(m, whole)
    if not whole:
        _account(m, -1.0)
    _regroup(m, device, whole)
    _account(m, 1.0)
    m.count[KNOWN] = 1
    for d in range(m.size):
        peak[d] = m.used[d]
    return _run(m)
