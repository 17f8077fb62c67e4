"""The compiled inner loop of list_scheduling.py; importing it imports numba.

`_attempt` decides when an operation could start on a device. It changes the state as if the operation were placed and
writes down what it changed, so that `_undo` restores the state: what `starts` predicts is what `place` does. All integers
are int64, so that each function is compiled once.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from placekit_core._list_scheduling_heaps import FIRST, Pairs, drop_first, insert, pop, push, sift
from placekit_core._list_scheduling_state import ARRIVALS, FRESH, GROUPS, INSERTION, LANES

NOWHERE: Any = np.int64(-1)  # not a literal: numba would compile what it is passed to once more for it
TIE = 1e-12  # starts that differ by less, relatively, are the same


@njit(cache=True, inline="always")
def _bind(p: Any, s: Any, group: int, device: int) -> None:
    s.group_device[group] = device
    s.used[device] += p.group_bytes[group]
    s.log_group[s.counts[GROUPS]] = group
    s.counts[GROUPS] += 1


@njit(cache=True)
def _home(p: Any, s: Any, group: int, device: int) -> Any:
    """Device for a free group of sources that `device` reads: that one if it has room, else the one with most."""
    if p.allowed[group, device] and s.used[device] + p.group_bytes[group] <= p.memory[device]:
        return device
    best, most = NOWHERE, -np.inf
    for d in range(p.memory.shape[0]):
        room = p.memory[d] - s.used[d]
        if p.allowed[group, d] and room > most:
            best, most = d, room
    if p.allowed[group, device] and most < p.group_bytes[group]:
        return device  # it fits nowhere
    return best


@njit(cache=True)
def may_run(p: Any, s: Any, op: int, device: int) -> bool:
    """The group is on this device, or may be, and fits there (or fits on no allowed device)."""
    group = p.group[op]
    if s.group_device[group] != NOWHERE:
        return bool(s.group_device[group] == device)
    if not p.allowed[group, device]:
        return False
    need = p.group_bytes[group]
    if s.used[device] + need <= p.memory[device]:
        return True
    fits_elsewhere = False
    for d in range(p.memory.shape[0]):
        fits_elsewhere |= p.allowed[group, d] and s.used[d] + need <= p.memory[d]
    return not fits_elsewhere


@njit(cache=True)
def _send(p: Any, s: Any, tensor: int, src: int, dst: int) -> float:
    """Send a tensor behind everything that its channels carry already. Returns when it is there."""
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


@njit(cache=True)
def _attempt(p: Any, s: Any, op: int, device: int) -> float:
    """Bind what is free, send what is missing. Returns when all inputs are on the device."""
    s.counts[GROUPS] = s.counts[LANES] = s.counts[ARRIVALS] = 0
    if s.group_device[p.group[op]] == NOWHERE:
        _bind(p, s, p.group[op], device)
    ready = 0.0
    waiting = 0
    for e in range(p.input_ptr[op], p.input_ptr[op + 1]):
        tensor = p.input_tensor[e]
        u = p.producer[tensor]
        group = p.group[u]
        if s.group_device[group] == NOWHERE:  # of sources only: the first consumer decides
            _bind(p, s, group, _home(p, s, group, device))
        if s.group_device[group] == device:
            ready = max(ready, s.finish[u])
        elif s.arrival[tensor, device] >= 0:
            ready = max(ready, s.arrival[tensor, device])
        else:  # in the order in which they exist; inputs are nearly so
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


@njit(cache=True)
def _undo(p: Any, s: Any) -> None:
    for k in range(s.counts[GROUPS]):
        group = s.log_group[k]
        s.used[s.group_device[group]] -= p.group_bytes[group]
        s.group_device[group] = NOWHERE
    for k in range(s.counts[LANES] - 1, -1, -1):
        s.lane_free[s.log_lane[k]] = s.log_lane_free[k]
    for k in range(s.counts[ARRIVALS]):
        s.arrival[s.log_tensor[k], s.log_device[k]] = -1.0


@njit(cache=True)
def device_free(p: Any, s: Any, device: int) -> float:
    """When the first stream of the device is free for good."""
    if p.stream_ptr[device] == p.stream_ptr[device + 1]:
        return 0.0
    free = np.inf
    for x in range(p.stream_ptr[device], p.stream_ptr[device + 1]):
        free = min(free, s.finish[s.tail[x]] if s.tail[x] >= 0 else 0.0)
    return float(free)


@njit(cache=True)
def _slot(p: Any, s: Any, device: int, ready: float, cost: float) -> Any:
    """Earliest slot: start, stream, and the operation behind it there (-1: it is the last)."""
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


@njit(cache=True)
def starts(p: Any, s: Any, op: int, ready: NDArray[np.float64], start: NDArray[np.float64]) -> None:
    """Fill [D] `ready` (inputs there) and `start` for one operation; inf where it may not run."""
    for d in range(p.memory.shape[0]):
        ready[d] = start[d] = np.inf
        if may_run(p, s, op, d):
            ready[d] = _attempt(p, s, op, d)
            _undo(p, s)
            start[d] = _slot(p, s, d, ready[d], p.op_s[op, d])[0]


@njit(cache=True)
def place(p: Any, s: Any, op: int, device: int) -> None:
    """Commit one ready operation to a device."""
    ready = _attempt(p, s, op, device)
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


@njit(cache=True)
def _scramble(seed: int, op: int, device: int) -> int:
    """A number that decides ties between devices; without a seed (-1), the lower device wins."""
    if seed < 0:
        return device
    x = np.uint64(seed) ^ (np.uint64(op) * np.uint64(0x9E3779B97F4A7C15)) ^ (
        np.uint64(device + 1) * np.uint64(0xC2B2AE3D27D4EB4F)
    )  # fmt: skip
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((x ^ (x >> np.uint64(31))) >> np.uint64(1))


@njit(cache=True)
def run_level(p: Any, s: Any, rank: NDArray[np.int64], by_rank: NDArray[np.int64], seed: int, by_finish: bool) -> None:
    """Place the ready operation of lowest rank, on the device of earliest start or finish, until all are placed."""
    devices = p.memory.shape[0]
    ready, start = np.empty(devices), np.empty(devices)
    heap = np.empty(rank.shape[0], np.int64)
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
            if start[d] == np.inf:
                continue
            end = start[d] + p.op_s[op, d]
            a, b = (end, start[d]) if by_finish else (start[d], end)
            if best != NOWHERE:
                near = TIE * max(abs(a), abs(first))
                if a > first + near:
                    continue
                if a >= first - near:
                    near = TIE * max(abs(b), abs(second))
                    if b > second + near or (b >= second - near and _scramble(seed, op, d) > _scramble(seed, op, best)):
                        continue
            best, first, second = d, a, b
        place(p, s, op, best)
        for k in range(s.counts[FRESH]):
            size = push(heap, size, rank[s.fresh[k]])


@njit(cache=True)
def _ready_at(p: Any, s: Any, op: int, device: int) -> float:
    if not may_run(p, s, op, device):
        return np.inf
    ready = _attempt(p, s, op, device)
    _undo(p, s)
    return float(ready)


@njit(cache=True)
def _enter(p: Any, s: Any, q: Pairs, rank: NDArray[np.int64], op: int) -> None:
    group = p.group[op]
    for d in range(p.memory.shape[0]):
        if s.group_device[group] == d or (s.group_device[group] == NOWHERE and p.allowed[group, d]):
            insert(q, rank, d, op, _ready_at(p, s, op, d))


@njit(cache=True)
def _gone(p: Any, s: Any, op: int, device: int) -> bool:
    home = s.group_device[p.group[op]]
    return bool(s.missing[op] != 0 or (home != NOWHERE and home != device))


@njit(cache=True)
def _hasten(p: Any, s: Any, q: Pairs, rank: NDArray[np.int64], tensor: int, device: int) -> None:
    """Correct the keys of what reads a tensor, where they are later than it can start on the device now."""
    for k in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
        c = p.consumer_op[k]
        if s.missing[c] == 0 and q.position[device, c] >= 0:
            ready = _ready_at(p, s, c, device)
            if ready < q.key[device, c]:
                q.key[device, c] = ready
                sift(q, rank, device, q.position[device, c])


@njit(cache=True)
def run_earliest(p: Any, s: Any, rank: NDArray[np.int64], by_rank: NDArray[np.int64], seed: int) -> None:
    """Place the (ready operation, device) pair of earliest start, ties by lowest rank, until all are placed (ETF).

    A key in `coming` is a lower bound of the start: it was exact when it was computed, and what is decided later only
    delays an operation, unless a tensor that it reads is sent for another one, or the sources that it reads are bound for
    another one: those keys are computed anew. So the first pair whose start is still its key is the earliest, and few
    pairs are looked at per step.
    """
    n, devices = rank.shape[0], p.memory.shape[0]
    q = Pairs(
        np.empty((devices, n), np.int64), np.empty((devices, n), np.int64), np.empty((devices, n)),
        np.full((devices, n), -1, np.int64), np.zeros((2, devices), np.int64),
    )  # fmt: skip
    left = 0
    for v in range(n):
        if s.missing[v] == 0:
            _enter(p, s, q, rank, v)
        if s.missing[v] >= 0:
            left += 1
    while left:
        best, op, first = NOWHERE, NOWHERE, np.inf
        for d in range(devices):
            free = device_free(p, s, d)
            while q.size[1, d] and (_gone(p, s, q.coming[d, 0], d) or q.key[d, q.coming[d, 0]] <= free):
                v = q.coming[d, 0]
                drop_first(q, rank, d)
                if not _gone(p, s, v, d):
                    q.size[0, d] = push(q.waiting[d], q.size[0, d], rank[v])
            while q.size[0, d] and _gone(p, s, by_rank[q.waiting[d, 0]], d):
                q.size[0, d] = pop(q.waiting[d], q.size[0, d])
            if q.size[0, d]:
                v, begin = by_rank[q.waiting[d, 0]], free
            elif q.size[1, d]:
                v, begin = q.coming[d, 0], q.key[d, q.coming[d, 0]]
            else:
                continue
            if best != NOWHERE and begin < np.inf:
                near = TIE * max(begin, first) if first < np.inf else 0.0
                if begin > first + near:
                    continue
                if begin >= first - near and (
                    rank[v] > rank[op] or (v == op and _scramble(seed, v, d) > _scramble(seed, v, best))
                ):
                    continue
            if best == NOWHERE or begin < np.inf:
                best, op, first = d, v, begin
        if first == np.inf:  # what was left out for want of memory: where nothing has room, everything may be tried
            for d in range(devices):
                size, q.size[1, d] = q.size[1, d], 0
                for i in range(size):
                    v = q.coming[d, i]
                    insert(q, rank, d, v, _ready_at(p, s, v, d))
            continue
        ready = _ready_at(p, s, op, best)
        if q.size[0, best] and by_rank[q.waiting[best, 0]] == op:
            if ready > first:
                q.size[0, best] = pop(q.waiting[best], q.size[0, best])
                insert(q, rank, best, op, ready)
                continue
        elif ready > first:
            q.key[best, op] = ready
            sift(q, rank, best, FIRST)
            continue
        place(p, s, op, best)
        left -= 1
        tensors, where = s.log_tensor[: s.counts[ARRIVALS]].copy(), s.log_device[: s.counts[ARRIVALS]].copy()
        bound = s.log_group[: s.counts[GROUPS]].copy()
        for k in range(s.counts[FRESH]):
            _enter(p, s, q, rank, s.fresh[k])
        for k in range(tensors.shape[0]):
            _hasten(p, s, q, rank, tensors[k], where[k])
        for k in range(bound.shape[0]):
            for i in range(p.source_ptr[bound[k]], p.source_ptr[bound[k] + 1]):
                for tensor in range(p.output_ptr[p.source_op[i]], p.output_ptr[p.source_op[i] + 1]):
                    for d in range(devices):
                        _hasten(p, s, q, rank, tensor, d)
