"""Prepares a run: the placement, the limit of a trial, the state at time 0; importing this imports numba."""
# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from placekit_scheduling.fields import unpacked
from placekit_scheduling.jit import UNCOUNTED, at

from placekit_sim.layout import FIELDS

_ROUNDING = 1e-9
"""A run ends early only if its bound is this much above the limit, relatively: bound and time are rounded differently."""


def _set_placement(m, device, priority, ranked, peak):
    """Set the device and rank of each operation, and the persistent bytes on each device."""
    for d in range(m.size):
        m.used[d], m.to_readers[d] = 0.0, 0
    for i in range(m.g):
        m.used[device[i]] += m.group_bytes[i]
    for d in range(m.size):
        peak[d] = m.used[d]
    for v in range(m.n):
        m.home[v], m.missing[v] = device[at(m.group_of[v])], m.n_inputs[v]
    if not ranked:
        return
    if m.order == 1:
        for v in range(m.n):
            m.rank[v] = m.fixed_rank[v]
    elif m.order == 2 and len(priority) > 0:
        bits = priority.view(np.int32)
        for v in range(m.n):
            b = bits[at(m.group_of[v])] if bits[at(m.group_of[v])] != -2147483648 else 0  # -0.0 equals 0.0
            # floats sort like the integers of their bits, negative ones in reverse; the highest must come first
            m.rank[v] = ~b if b >= 0 else ~(b ^ 2147483647)
    else:  # with copies ahead of their readers, the numbers of tasks do not say which came first
        for v in range(m.n):
            m.rank[v] = 0


def _set_limit(m):
    """Set the work of each device. Returns the limit of a trial with its margin; infinite where memory may be short."""
    limit = m.limit_s[0] * (1 + _ROUNDING)
    for d in range(m.size):
        m.left_s[d] = 0.0
        if not m.used[d] <= m.room[d]:  # the caller has to know how much memory is missing
            limit = np.inf
    for v in range(m.n):
        m.left_s[at(m.home[v])] += m.op_s[v * m.size + at(m.home[v])]
    m.worked[0] = 0
    return limit


def _set_tails(m):
    """Set the seconds on the longest path from each operation to an exit, its own included, with transfers between devices."""
    for i in range(m.n - m.n_sources):
        v = at(m.latest_first[i])
        a, longest = at(m.home[v]), 0.0
        for x in range(at(m.output_ptr[v]), at(m.output_ptr[v + 1])):
            for j in range(at(m.consumer_ptr[x]), at(m.consumer_ptr[x + 1])):
                c = at(m.consumer_op[j])
                b, tail = at(m.home[c]), m.tail_s[c]
                if a != b:
                    tail += m.latency_s[a * m.size + b] + m.tensor_bytes[x] * m.s_per_byte[a * m.size + b]
                longest = max(longest, tail)
        m.tail_s[v] = m.op_s[v * m.size + a] + longest


def _set_start(m):
    """Set the state at time 0. Returns how many sources are done, and how many operations without inputs are ready."""
    if m.memory:
        for x in range(m.t):
            m.readers[x] = 0
    for q in range(m.n_queues):
        m.head[q], m.mark[q], m.free[q] = -1, -1, m.capacity[q]
    for c in range(m.n_channels):
        m.channel_free[c] = m.channel_capacity[c]
    for i in range(m.n_sources):
        m.done[i] = m.sources[i]
    if m.record:
        for i in range(m.n_sources):
            m.cause[m.sources[i]], m.times[m.tasks + m.sources[i]] = -1, 0.0
        for i in range(m.n_roots):
            m.ready_by[m.roots[i]] = -1
        m.last[0] = -1
        for q in range(m.n_queues + m.n_channels):
            m.released_by[q] = -1
    if m.bulk:
        return m.n_sources, np.int64(0)
    for i in range(m.n_roots):
        m.fresh[i] = m.roots[i]
    return m.n_sources, m.n_roots


_OPTIONS = {"cache": True, **UNCOUNTED}
set_placement = unpacked(FIELDS, _set_placement, name="set_placement", **_OPTIONS)
set_limit = unpacked(FIELDS, _set_limit, name="set_limit", **_OPTIONS)
set_start = unpacked(FIELDS, _set_start, name="set_start", **_OPTIONS)
set_tails = unpacked(FIELDS, _set_tails, name="set_tails", **_OPTIONS)
