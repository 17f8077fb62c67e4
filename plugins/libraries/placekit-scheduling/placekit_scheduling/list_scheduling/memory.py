"""Bytes in use on each device while scheduler.py places operations. Importing this imports numba.

The rules are those of "Memory" in docs/machine-model.md, in the order in which operations are placed instead of time. An
output is live from the placing of its operation to the placing of its last reader; a received copy from the placing of its
first reader on the device.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np

from placekit_scheduling.jit import inner

NOWHERE: Any = np.int64(-1)  # not a literal, for which numba would compile functions once more


@inner
def room(p: Any, s: Any, device: int) -> float:
    """Free bytes for data that stays the whole step: it must fit beside the highest number of live bytes."""
    return float(max(p.memory[device] - s.used[device] - s.peak[device], 0.0))


@inner
def has_room(p: Any, s: Any, op: int, device: int) -> bool:
    """Whether the device has room for the operation's group, outputs and received copies, and for free sources that it reads."""
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
    """Whether an operation may run on a device: its group is there, or it may be there and there is room.

    If no allowed device has room, the group's persistent bytes must fit, as they are never freed. If they fit nowhere, the
    operation may run on any allowed device.
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
    """Add the bytes of an operation that is being placed, then free the tensors that it is the last to read."""
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
