"""The compiled inner loop of scheduler.py. Importing this imports numba.

`_attempt` computes when an operation could start on a device. It changes the state as if the operation were placed, and logs
the changes so that `_undo` can restore the state. So `starts` predicts exactly what `place` does. All integers are int64, so
that each function is compiled only once.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from placekit_scheduling.heaps import pop, push
from placekit_scheduling.jit import compiled, inner, njit
from placekit_scheduling.list_scheduling.memory import NOWHERE, hold, may_run, room
from placekit_scheduling.list_scheduling.state import ARRIVALS, BOUND, FRESH, GROUPS, INSERTION, LANES, SENT

TIE = 1e-12  # starts with a smaller relative difference count as equal


@njit(cache=True, inline="always")
def _bind(p: Any, s: Any, group: int, device: int) -> None:
    s.group_device[group] = device
    s.used[device] += p.group_bytes[group]
    s.log_group[s.counts[GROUPS]] = group
    s.counts[GROUPS] += 1


@inner
def _home(p: Any, s: Any, group: int, device: int) -> Any:
    """Device for a free group of sources that `device` reads: this device if it has room, else the one with most room."""
    if p.allowed[group, device] and p.group_bytes[group] <= room(p, s, device):
        return device
    best, most = NOWHERE, -np.inf
    for d in range(p.memory.shape[0]):
        if p.allowed[group, d] and room(p, s, d) > most:
            best, most = d, room(p, s, d)
    if p.allowed[group, device] and most < p.group_bytes[group]:
        return device  # the group fits nowhere
    return best


@inner
def _send(p: Any, s: Any, tensor: int, src: int, dst: int) -> float:
    """Send a tensor after everything that its channels carry already. Returns when it arrives."""
    devices = p.memory.shape[0]
    route = src * devices + dst
    begin = s.finish[p.producer[tensor]]
    for r in range(p.route_ptr[route], p.route_ptr[route + 1]):
        c = p.route_channel[r]
        free = np.inf
        for lane in range(p.lane_ptr[c], p.lane_ptr[c + 1]):
            free = min(free, s.lane_free[lane])
        begin = max(begin, free)
    end = begin + p.latency_s[src, dst] + p.bytes_[tensor] * p.s_per_byte[src, dst]
    for r in range(p.route_ptr[route], p.route_ptr[route + 1]):
        c = p.route_channel[r]
        best = p.lane_ptr[c]
        for lane in range(best + 1, p.lane_ptr[c + 1]):
            if s.lane_free[lane] < s.lane_free[best]:
                best = lane
        s.log_lane[s.counts[LANES]] = best
        s.log_lane_free[s.counts[LANES]] = s.lane_free[best]
        s.counts[LANES] += 1
        s.lane_free[best] = end
    for d in range(devices):
        if d == dst or (p.multicast and d != src and s.arrival[tensor, d] < 0):
            s.arrival[tensor, d] = end
            s.log_tensor[s.counts[ARRIVALS]] = tensor
            s.log_device[s.counts[ARRIVALS]] = d
            s.counts[ARRIVALS] += 1
    return float(end)


@inner
def _attempt(p: Any, s: Any, op: int, device: int) -> float:
    """Bind free groups and send missing inputs. Returns when all inputs are on the device."""
    s.counts[GROUPS] = s.counts[LANES] = s.counts[ARRIVALS] = 0
    if s.group_device[p.group[op]] == NOWHERE:
        _bind(p, s, p.group[op], device)
    ready = 0.0
    waiting = 0
    for e in range(p.input_ptr[op], p.input_ptr[op + 1]):
        tensor = p.input_tensor[e]
        u = p.producer[tensor]
        group = p.group[u]
        if s.group_device[group] == NOWHERE:  # a group of sources: its first consumer decides
            _bind(p, s, group, _home(p, s, group, device))
        if s.group_device[group] == device:
            ready = max(ready, s.finish[u])
        elif s.arrival[tensor, device] >= 0:
            ready = max(ready, s.arrival[tensor, device])
        else:  # insertion sort by when the tensors exist; inputs are nearly in this order
            k = waiting
            while k > 0 and s.finish[p.producer[s.waiting[k - 1]]] > s.finish[u]:
                s.waiting[k] = s.waiting[k - 1]
                k -= 1
            s.waiting[k] = tensor
            waiting += 1
    for k in range(waiting):
        tensor = s.waiting[k]
        ready = max(ready, _send(p, s, tensor, s.group_device[p.group[p.producer[tensor]]], device))
    return ready


@inner
def _undo(p: Any, s: Any) -> None:
    for k in range(s.counts[GROUPS]):
        group = s.log_group[k]
        s.used[s.group_device[group]] -= p.group_bytes[group]
        s.group_device[group] = NOWHERE
    for k in range(s.counts[LANES] - 1, -1, -1):
        s.lane_free[s.log_lane[k]] = s.log_lane_free[k]
    for k in range(s.counts[ARRIVALS]):
        s.arrival[s.log_tensor[k], s.log_device[k]] = -1.0


@inner
def device_free(p: Any, s: Any, device: int) -> float:
    """When the first stream of the device has run all its operations."""
    if p.stream_ptr[device] == p.stream_ptr[device + 1]:
        return 0.0
    free = np.inf
    for x in range(p.stream_ptr[device], p.stream_ptr[device + 1]):
        free = min(free, s.finish[s.tail[x]] if s.tail[x] >= 0 else 0.0)
    return float(free)


@inner
def _slot(p: Any, s: Any, device: int, ready: float, cost: float) -> Any:
    """Earliest slot: start, stream, and the next operation on this stream (-1 if the slot is at the end)."""
    start, stream, behind = np.inf, -1, -1
    if p.stream_ptr[device] == p.stream_ptr[device + 1]:
        return ready, stream, behind
    for x in range(p.stream_ptr[device], p.stream_ptr[device + 1]):
        last = s.tail[x]
        here = max(ready, s.finish[last]) if last >= 0 else ready
        after = -1
        if s.counts[INSERTION]:
            while last >= 0 and s.start[last] > ready:
                earlier = s.before[last]
                gap = max(ready, s.finish[earlier]) if earlier >= 0 else ready
                if gap + cost <= s.start[last]:
                    here, after = gap, last
                last = earlier
        if here < start:
            start, stream, behind = here, x, after
    return start, stream, behind


@compiled
def starts(p: Any, s: Any, op: int, ready: NDArray[np.float64], start: NDArray[np.float64]) -> None:
    """Fill `ready` [D], when the inputs of an operation could be there, and `start` [D]; inf where it may not run."""
    for d in range(p.memory.shape[0]):
        ready[d] = start[d] = np.inf
        if may_run(p, s, op, d):
            ready[d] = _attempt(p, s, op, d)
            _undo(p, s)
            start[d] = _slot(p, s, d, ready[d], p.op_s[op, d])[0]


@compiled
def place(p: Any, s: Any, op: int, device: int) -> None:
    """Place one ready operation on a device."""
    ready = _attempt(p, s, op, device)
    s.counts[SENT], s.counts[BOUND] = s.counts[ARRIVALS], s.counts[GROUPS]
    for k in range(s.counts[SENT]):
        s.sent_tensor[k], s.sent_device[k] = s.log_tensor[k], s.log_device[k]
    for k in range(s.counts[BOUND]):
        s.bound[k] = s.log_group[k]
    hold(p, s, op, device)
    start, stream, behind = _slot(p, s, device, ready, p.op_s[op, device])
    s.start[op] = start
    s.finish[op] = start + p.op_s[op, device]
    if stream >= 0:
        if behind >= 0:
            s.before[op] = s.before[behind]
            s.before[behind] = op
        else:
            s.before[op] = s.tail[stream]
            s.tail[stream] = op
    s.missing[op] = -1
    s.counts[FRESH] = 0
    for k in range(p.consumer_ptr[p.output_ptr[op]], p.consumer_ptr[p.output_ptr[op + 1]]):
        c = p.consumer_op[k]
        s.missing[c] -= 1
        if s.missing[c] == 0:
            s.fresh[s.counts[FRESH]] = c
            s.counts[FRESH] += 1


@inner
def scramble(seed: int, op: int, device: int) -> int:
    """A number that decides ties between devices; without a seed (-1), the lower device wins."""
    if seed < 0:
        return device
    x = np.uint64(seed) ^ (np.uint64(op) * np.uint64(0x9E3779B97F4A7C15)) ^ (
        np.uint64(device + 1) * np.uint64(0xC2B2AE3D27D4EB4F)
    )  # fmt: skip
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((x ^ (x >> np.uint64(31))) >> np.uint64(1))


@compiled
def run_level(
    p: Any, s: Any, rank: NDArray[np.int64], by_rank: NDArray[np.int64], seed: int, by_finish: bool,
    home: NDArray[np.int64], ahead: NDArray[np.float64],
) -> None:  # fmt: skip
    """Place the ready operation of lowest rank, on the device of earliest start or finish, until all are placed.

    home: [n] preferred device of an operation, used if it may run there; -1 for any. ahead: [n, D] seconds added to its
    finish.
    """
    devices = p.memory.shape[0]
    ready, start, heap = s.ready, s.begin, s.heap
    size = 0
    for v in range(rank.shape[0]):
        if s.missing[v] == 0:
            size = push(heap, size, rank[v])
    while size:
        op, size = by_rank[heap[0]], pop(heap, size)
        starts(p, s, op, ready, start)
        best = NOWHERE
        first = second = np.inf
        for d in range(devices):
            if start[d] == np.inf or (home[op] != NOWHERE and home[op] != d and start[home[op]] < np.inf):
                continue
            end = start[d] + p.op_s[op, d] + ahead[op, d]
            a, b = (end, start[d]) if by_finish else (start[d], end)
            if best != NOWHERE:
                near = TIE * max(abs(a), abs(first))
                if a > first + near:
                    continue
                if a >= first - near:
                    near = TIE * max(abs(b), abs(second))
                    if b > second + near or (b >= second - near and scramble(seed, op, d) > scramble(seed, op, best)):
                        continue
            best, first, second = d, a, b
        place(p, s, op, best)
        for k in range(s.counts[FRESH]):
            size = push(heap, size, rank[s.fresh[k]])


@compiled
def ready_at(p: Any, s: Any, op: int, device: int) -> float:
    """When the inputs of a ready operation could be on the device; inf where it may not run."""
    if not may_run(p, s, op, device):
        return np.inf
    ready = _attempt(p, s, op, device)
    _undo(p, s)
    return float(ready)
