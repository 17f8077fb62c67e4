"""The compiled evaluation of `blocking_latency`: finds the pieces of a placement, and when each is called."""
# mypy: ignore-errors
# numba checks the types here; the signature of `blocking_latency` is explicit.

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np
from placekit_scheduling import kernel_signature
from placekit_scheduling.fields import fields, view_of
from placekit_scheduling.heaps import drop_event, push_event
from placekit_scheduling.jit import UNCOUNTED, inner, njit

FIELDS = [
    *fields("number", "n t g size"),
    *fields("ints", "group_of kernel output_ptr consumer_ptr consumer_op producer accelerator"),
    *fields("floats", "op_s hop_s tensor_bytes group_bytes latency_s s_per_byte"),
    *fields("scratch_ints", "home root next_op missing stamp", "n"),
    *fields("scratch_ints", "event_number", "n"),
    *fields("scratch_floats", "seconds ready event_s", "n"),
    *fields("scratch_floats", "free", "size"),
]
"""Everything that `blocking_latency` works on. A piece has the number of its first operation, its root."""

View = namedtuple("View", [field.name for field in FIELDS])
_view = view_of(View, FIELDS)


@inner
def _find(m, v):
    """The root of v's piece."""
    while m.root[v] != v:
        m.root[v] = m.root[m.root[v]]
        v = np.int64(m.root[v])
    return v


@inner
def _pieces(m):
    """Join operations of one accelerator that exchange a tensor into pieces."""
    for v in range(m.n):
        m.root[v] = v
    for x in range(m.t):
        u = np.int64(m.producer[x])
        if not m.kernel[u] or not m.accelerator[m.home[u]]:
            continue
        for i in range(m.consumer_ptr[x], m.consumer_ptr[x + 1]):
            c = np.int64(m.consumer_op[i])
            if m.home[c] == m.home[u]:
                a, b = _find(m, u), _find(m, c)
                m.root[max(a, b)] = min(a, b)
    for v in range(m.n):
        m.next_op[v], m.stamp[v], m.missing[v] = -1, -1, 0
        m.seconds[v] = m.ready[v] = 0.0
    for v in range(m.n - 1, -1, -1):
        r = _find(m, v)
        m.seconds[r] += m.op_s[v * m.size + m.home[v]]
        if r != v:
            m.next_op[v] = m.next_op[r]
            m.next_op[r] = v


@inner
def _transfers(m):
    """Add the transfers of each piece on an accelerator, each tensor once; count the inputs that each piece waits for."""
    for x in range(m.t):
        u = np.int64(m.producer[x])
        p, a = _find(m, u), np.int64(m.home[u])
        sent = 0.0
        for i in range(m.consumer_ptr[x], m.consumer_ptr[x + 1]):
            c = np.int64(m.consumer_op[i])
            q, b = _find(m, c), np.int64(m.home[c])
            if q == p:
                continue
            if m.kernel[u]:
                m.missing[q] += 1
            if a == b or m.stamp[q] == x:
                continue
            m.stamp[q] = x
            hop = m.hop_s[x]
            if hop < 0.0:
                hop = m.latency_s[a * m.size + b] + m.tensor_bytes[x] * m.s_per_byte[a * m.size + b]
            if m.accelerator[b]:
                m.seconds[q] += hop
            sent = max(sent, hop)
        if m.accelerator[a] and m.kernel[u]:
            m.seconds[p] += sent


@njit(kernel_signature(), cache=True, nogil=True, **UNCOUNTED)
def blocking_latency(device, priority, ints, floats, scratch_ints, scratch_floats, peak):
    """The end of the last call in seconds; infinity if pieces wait for each other. See `placekit_scheduling.Kernel`."""
    m = _view(ints, floats, scratch_ints, scratch_floats)
    for d in range(m.size):
        peak[d] = m.free[d] = 0.0
    for group in range(m.g):
        peak[device[group]] += m.group_bytes[group]
    for v in range(m.n):
        m.home[v] = device[m.group_of[v]]
    _pieces(m)
    _transfers(m)
    n_events, left, last = np.int64(0), np.int64(0), 0.0
    for v in range(m.n):
        if m.root[v] == v and m.kernel[v]:
            left += 1
            if m.missing[v] == 0:
                push_event(m.event_s, m.event_number, n_events, 0.0, v)
                n_events += 1
    while n_events > 0:  # pieces in the order in which they become ready
        p, start = np.int64(m.event_number[0]), m.event_s[0]
        n_events -= 1
        drop_event(m.event_s, m.event_number, n_events)
        d = np.int64(m.home[p])
        if m.accelerator[d]:
            start = max(start, m.free[d])
        end = start + m.seconds[p]
        if m.accelerator[d]:
            m.free[d] = end
        left -= 1
        last = max(last, end)
        v = p
        while v >= 0:
            for x in range(m.output_ptr[v], m.output_ptr[v + 1]):
                for i in range(m.consumer_ptr[x], m.consumer_ptr[x + 1]):
                    q = _find(m, np.int64(m.consumer_op[i]))
                    if q != p:
                        m.missing[q] -= 1
                        m.ready[q] = max(m.ready[q], end)
                        if m.missing[q] == 0:
                            push_event(m.event_s, m.event_number, n_events, m.ready[q], q)
                            n_events += 1
            v = np.int64(m.next_op[v])
    return last if left == 0 else math.inf
