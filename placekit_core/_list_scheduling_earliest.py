"""Earliest task first, the compiled loop of rule `etf` of list_scheduling.py; importing it imports numba."""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from placekit_core._list_scheduling_heaps import FIRST, Pairs, compiled, drop_first, insert, pop, push, sift
from placekit_core._list_scheduling_kernel import TIE, device_free, place, ready_at, scramble
from placekit_core._list_scheduling_memory import NOWHERE
from placekit_core._list_scheduling_state import BOUND, FRESH, SENT


@compiled
def _gone(p: Any, s: Any, op: int, device: int) -> bool:
    home = s.group_device[p.group[op]]
    return bool(s.missing[op] != 0 or (home != NOWHERE and home != device))


@compiled
def _key(p: Any, s: Any, q: Pairs, op: int, device: int) -> float:
    """`ready_at`; a pair that is left out for want of memory is noted."""
    key = ready_at(p, s, op, device)
    if key == np.inf:
        q.blocked[device] = max(q.blocked[device], s.live[device])
    return float(key)


@compiled
def _renew(p: Any, s: Any, q: Pairs, rank: NDArray[np.int64], op: int, device: int) -> None:
    q.key[device, op] = _key(p, s, q, op, device)
    sift(q, rank, device, q.position[device, op])


@compiled
def _revive(p: Any, s: Any, q: Pairs, rank: NDArray[np.int64], device: int) -> None:
    """Look again at the pairs that were left out for want of memory."""
    count = 0
    for i in range(q.size[1, device]):
        v = q.coming[device, i]
        if q.key[device, v] == np.inf:
            q.scratch[count] = v
            count += 1
    q.blocked[device] = -np.inf
    for i in range(count):
        if not _gone(p, s, q.scratch[i], device):
            _renew(p, s, q, rank, q.scratch[i], device)


@compiled
def _enter(p: Any, s: Any, q: Pairs, rank: NDArray[np.int64], op: int) -> None:
    group = p.group[op]
    for d in range(p.memory.shape[0]):
        if s.group_device[group] == d or (s.group_device[group] == NOWHERE and p.allowed[group, d]):
            insert(q, rank, d, op, _key(p, s, q, op, d))


@compiled
def _hasten(p: Any, s: Any, q: Pairs, rank: NDArray[np.int64], tensor: int, device: int) -> None:
    """Correct the keys of what reads a tensor, where they are later than it can start on the device now."""
    for k in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
        c = p.consumer_op[k]
        if s.missing[c] == 0 and q.position[device, c] >= 0:
            ready = _key(p, s, q, c, device)
            if ready < q.key[device, c]:
                q.key[device, c] = ready
                sift(q, rank, device, q.position[device, c])


@compiled
def run_earliest(
    p: Any, s: Any, q: Pairs, rank: NDArray[np.int64], by_rank: NDArray[np.int64], seed: int
) -> None:  # fmt: skip
    """Place the (ready operation, device) pair of earliest start, ties by lowest rank, until all are placed (ETF).

    A key in `coming` is a lower bound of the start: it was exact when it was computed, and what is decided later only
    delays an operation, unless a tensor that it reads is sent for another one, or the sources that it reads are bound for
    another one: those keys are computed anew. So are those of pairs that were left out for want of memory, when some is
    freed. So the first pair whose start is still its key is the earliest, and few pairs are looked at per step.
    """
    n, devices = rank.shape[0], p.memory.shape[0]
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
                    rank[v] > rank[op] or (v == op and scramble(seed, v, d) > scramble(seed, v, best))
                ):
                    continue
            if best == NOWHERE or begin < np.inf:
                best, op, first = d, v, begin
        if first == np.inf:  # what was left out for want of memory: where nothing has room, everything may be tried
            for d in range(devices):
                _revive(p, s, q, rank, d)
            continue
        ready = _key(p, s, q, op, best)
        if q.size[0, best] and by_rank[q.waiting[best, 0]] == op:
            if ready > first:
                q.size[0, best] = pop(q.waiting[best], q.size[0, best])
                insert(q, rank, best, op, ready)
        elif ready > first:
            q.key[best, op] = ready
            sift(q, rank, best, FIRST)
        if ready > first:
            for d in range(devices):  # where there is room nowhere, it may run everywhere
                if ready == np.inf and q.position[d, op] >= 0 and q.key[d, op] == np.inf:
                    _renew(p, s, q, rank, op, d)
            continue
        place(p, s, op, best)
        left -= 1
        for k in range(s.counts[FRESH]):
            _enter(p, s, q, rank, s.fresh[k])
        for k in range(s.counts[SENT]):
            _hasten(p, s, q, rank, s.sent_tensor[k], s.sent_device[k])
        for k in range(s.counts[BOUND]):
            for i in range(p.source_ptr[s.bound[k]], p.source_ptr[s.bound[k] + 1]):
                for tensor in range(p.output_ptr[p.source_op[i]], p.output_ptr[p.source_op[i] + 1]):
                    for d in range(devices):
                        _hasten(p, s, q, rank, tensor, d)
        for d in range(devices):
            if s.live[d] < q.blocked[d] or (d == best and s.counts[BOUND] and q.blocked[d] > -np.inf):
                _revive(p, s, q, rank, d)
