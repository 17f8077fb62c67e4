"""Prepares a simulation: sets the placement and the state at time 0. Importing this imports numba."""
# mypy: ignore-errors

from __future__ import annotations

import numpy as np
from placekit_scheduling.fields import unpacked
from placekit_scheduling.jit import UNCOUNTED, at

from placekit_sim.layout import FIELDS


def _set_placement(m, device, priority, ranked, peak):
    """Set the device, rank and launch of each operation, and the persistent bytes on each device."""
    for d in range(m.size):
        m.used[d], m.to_readers[d] = 0.0, 0
    for i in range(m.g):
        m.used[device[i]] += m.group_bytes[i]
    for d in range(m.size):
        peak[d] = m.used[d]
    for v in range(m.n):
        m.home[v], m.missing[v] = device[at(m.group_of[v])], m.n_inputs[v]
    if m.hosted:
        for d in range(m.size):
            m.host_s[d] = 0.0
        for i in range(m.n_launched):
            v = at(m.launch_order[i])
            d = at(m.home[v])
            if m.launch_s[d] > 0.0:
                h = at(m.host[d])
                m.host_s[h] += m.launches[v] * m.launch_s[d]
                m.launched_s[v] = m.host_s[h]
            else:
                m.launched_s[v] = 0.0
    if not ranked:
        return
    if m.order == 1:
        for v in range(m.n):
            m.rank[v] = m.fixed_rank[v]
    elif m.order == 2 and len(priority) > 0:
        bits = priority.view(np.int32)
        for v in range(m.n):
            b = bits[at(m.group_of[v])] if bits[at(m.group_of[v])] != -2147483648 else 0  # -0.0 equals 0.0
            # floats are ordered like the integers of their bits, negative ones in reverse; the highest priority comes first
            m.rank[v] = ~b if b >= 0 else ~(b ^ 2147483647)
    else:  # all ranks equal: the order of arrival decides, which with prefetching differs from that of task numbers
        for v in range(m.n):
            m.rank[v] = 0


def _set_start(m):
    """Set the state at time 0. Returns how many tasks are done (the sources), and how many operations are ready."""
    if m.memory:
        for x in range(m.t):
            m.readers[x] = m.writers[x]  # none may free the memory before all have announced their readers
    for q in range(m.n_queues):
        m.head[q], m.mark[q], m.free[q] = -1, -1, m.capacity[q]
    for c in range(m.n_channels):
        m.channel_free[c] = m.channel_capacity[c]
    for i in range(m.n_sources):
        m.done[i] = m.sources[i]
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
set_start = unpacked(FIELDS, _set_start, name="set_start", **_OPTIONS)
