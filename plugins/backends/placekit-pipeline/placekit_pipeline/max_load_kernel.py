"""The compiled evaluation of `max_load`: it updates the loads for groups moved since the last call."""
# mypy: ignore-errors
# numba checks the types here; the signature of `max_load` is explicit.

from __future__ import annotations

from collections import namedtuple

import numpy as np
from placekit_scheduling import kernel_signature
from placekit_scheduling.fields import fields, view_of
from placekit_scheduling.jit import UNCOUNTED, inner, njit

REBUILD = 8  # if more than 1 / REBUILD of the groups moved, everything is summed again

FIELDS = [
    *fields("number", "g size nets"),
    *fields("ints", "ptr reader producer group_ptr group_net pays"),
    *fields("floats", "group_s group_bytes bytes_ count hop_s latency_s s_per_byte grid_s"),
    # kept between calls: whether they are set, the device of each group, readers of each net on each device
    *fields("scratch_ints", "known", "one"),
    *fields("scratch_ints", "device", "g"),
    *fields("scratch_ints", "readers", "counts"),
    *fields("scratch_floats", "load used", "size"),
]
"""Everything that `max_load` works on."""

View = namedtuple("View", [field.name for field in FIELDS])
_view = view_of(View, FIELDS)


@inner
def _transfer(m, x, a, b):
    """Seconds of net x from device a to device b, on the grid."""
    if m.hop_s[x] >= 0.0:
        seconds = m.hop_s[x]
    else:
        seconds = m.count[x] * m.latency_s[a * m.size + b] + m.bytes_[x] * m.s_per_byte[a * m.size + b]
    return np.rint(seconds / m.grid_s[0]) * m.grid_s[0]


@inner
def _account(m, x, sign):
    """Add the seconds of net x to the loads of its producer and readers; with `sign` -1, subtract them."""
    home = np.int64(m.device[m.producer[x]])
    sent = 0.0
    for d in range(m.size):
        if d != home and m.readers[x * m.size + d] > 0:
            seconds = _transfer(m, x, home, d)
            sent = max(sent, seconds)
            if m.pays[d]:
                m.load[d] += sign * seconds
    if m.pays[home]:
        m.load[home] += sign * sent


@inner
def _move(m, group, to):
    """Move a group, and update the loads."""
    here = np.int64(m.device[group])
    for i in range(m.group_ptr[group], m.group_ptr[group + 1]):
        _account(m, np.int64(m.group_net[i]), -1.0)
    m.load[here] -= m.group_s[group * m.size + here]
    m.used[here] -= m.group_bytes[group]
    m.device[group] = to
    m.load[to] += m.group_s[group * m.size + to]
    m.used[to] += m.group_bytes[group]
    for i in range(m.group_ptr[group], m.group_ptr[group + 1]):
        x = np.int64(m.group_net[i])
        if m.producer[x] != group:
            m.readers[x * m.size + here] -= 1
            m.readers[x * m.size + to] += 1
        _account(m, x, 1.0)


@inner
def _build(m, device):
    """Compute the loads of a placement from scratch."""
    m.load[: m.size] = 0.0
    m.used[: m.size] = 0.0
    m.readers[: m.nets * m.size] = 0
    for group in range(m.g):
        d = np.int64(device[group])
        m.device[group] = d
        m.load[d] += m.group_s[group * m.size + d]
        m.used[d] += m.group_bytes[group]
    for x in range(m.nets):
        for i in range(m.ptr[x], m.ptr[x + 1]):
            m.readers[x * m.size + m.device[m.reader[i]]] += 1
        _account(m, x, 1.0)


@njit(kernel_signature(), cache=True, nogil=True, **UNCOUNTED)
def max_load(device, priority, ints, floats, scratch_ints, scratch_floats, peak):
    """The largest load of a device in seconds; see `placekit_scheduling.Kernel` for the arguments."""
    m = _view(ints, floats, scratch_ints, scratch_floats)
    moved = np.int64(0)
    if m.known[0] == 1:
        for group in range(m.g):
            moved += device[group] != m.device[group]
    if m.known[0] == 0 or moved * REBUILD > m.g:
        _build(m, device)
        m.known[0] = 1
    elif moved > 0:
        for group in range(m.g):
            if device[group] != m.device[group]:
                _move(m, group, np.int64(device[group]))
    highest = 0.0
    for d in range(m.size):
        highest = max(highest, m.load[d])
        peak[d] = m.used[d]
    return highest
