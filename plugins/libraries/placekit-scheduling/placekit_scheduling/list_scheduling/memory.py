"""Bytes on each device while scheduler.py places operations; importing it imports numba.

"Memory" of docs/machine-model.md with the order of placing for time: an output is live from when its operation is placed
until the last operation that reads it is, a received copy from the first reader on its device.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np

from placekit_scheduling.jit import inner

NOWHERE: Any = np.int64(-1)  # not a literal: numba would compile functions that take it once more for it


@inner
def room(p: Any, s: Any, device: int) -> float:
    """Bytes that are free for data that stays the whole step, and so is there when most bytes are live."""
    return float(max(p.memory[device] - s.used[device] - s.peak[device], 0.0))


@inner
def has_room(p: Any, s: Any, op: int, device: int) -> bool:
    """Whether the device has room for the operation's group, the free sources that it reads, its outputs, and copies."""
    free = room(p, s, device)
    if p.most_bytes[op] <= free:
        return True
    group = p.group[op]
    live = s.live[device] + p.output_bytes[op]
    persistent = p.group_bytes[group] if s.group_device[group] == NOWHERE else 0.0
    for e in range(p.input_ptr[op], p.input_ptr[op + 1]):
        tensor = p.input_tensor[e]
        other = p.group[p.producer[tensor]]
        home = s.group_device[other]
        if other == group or home == device:
            continue
        if home == NOWHERE and p.allowed[other, device]:
            counted = False
            for k in range(p.input_ptr[op], e):
                counted |= p.group[p.producer[p.input_tensor[k]]] == other
            if not counted:
                persistent += p.group_bytes[other]
        elif not s.held[tensor, device]:
            live += p.bytes_[tensor]
    return bool(persistent <= free and persistent + live <= p.memory[device] - s.used[device])


@inner
def may_run(p: Any, s: Any, op: int, device: int) -> bool:
    """Whether the group is on this device; or may be, and there is room here, or on no allowed device.

    If there is room on none, the group's persistent bytes must fit here, or fit nowhere: they would never be freed.
    """
    group = p.group[op]
    if s.group_device[group] != NOWHERE:
        return bool(s.group_device[group] == device)
    if not p.allowed[group, device]:
        return False
    if has_room(p, s, op, device):
        return True
    persistent = p.group_bytes[group]
    here, elsewhere = s.used[device] + persistent <= p.memory[device], False
    for d in range(p.memory.shape[0]):
        if p.allowed[group, d]:
            if has_room(p, s, op, d):
                return False
            elsewhere |= s.used[d] + persistent <= p.memory[d]
    return bool(here or not elsewhere)


@inner
def hold(p: Any, s: Any, op: int, device: int) -> None:
    """Count the bytes that an operation being placed adds to its device, then free what it was the last to read."""
    for e in range(p.input_ptr[op], p.input_ptr[op + 1]):
        tensor = p.input_tensor[e]
        if s.group_device[p.group[p.producer[tensor]]] != device and not s.held[tensor, device]:
            s.held[tensor, device] = True
            s.live[device] += p.bytes_[tensor]
    s.live[device] += p.output_bytes[op]
    s.peak[device] = max(s.peak[device], s.live[device])
    s.live[device] -= p.unread_bytes[op]
    for e in range(p.input_ptr[op], p.input_ptr[op + 1]):
        tensor = p.input_tensor[e]
        s.readers[tensor] -= 1
        if s.readers[tensor] == 0:
            for d in range(p.memory.shape[0]):
                if s.held[tensor, d]:
                    s.held[tensor, d] = False
                    s.live[d] -= p.bytes_[tensor]
        owner = p.storage[tensor]
        s.storage_readers[owner] -= 1
        if s.storage_readers[owner] == 0:
            s.live[s.group_device[p.group[p.producer[owner]]]] -= p.owned_bytes[owner]
