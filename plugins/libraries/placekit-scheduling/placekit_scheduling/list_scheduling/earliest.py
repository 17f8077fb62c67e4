"""Earliest task first: the compiled loop of rule `etf` in scheduler.py. Importing this imports numba."""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placekit_scheduling.heaps import pop, push, sift
from placekit_scheduling.jit import compiled, inner
from placekit_scheduling.list_scheduling.kernel import TIE, device_free, place, ready_at, scramble
from placekit_scheduling.list_scheduling.memory import NOWHERE
from placekit_scheduling.list_scheduling.state import BOUND, FRESH, SENT

FIRST: Any = np.int64(0)  # not a literal: numba would compile `_sift` once more for it


class Pairs(NamedTuple):
    """The ready operations of each device, in two heaps. An operation is in one of the two for every device that may run it.

    Operations in `waiting` have their inputs on the device and wait for it, ordered by rank. Operations in `coming` are
    ordered by the time at which their inputs arrive.
    """

    waiting: NDArray[np.int64]  # [D, n] heaps of ranks
    coming: NDArray[np.int64]  # [D, n] heaps of operations, by (key, rank)
    key: NDArray[np.float64]  # [D, n]
    position: NDArray[np.int64]  # [D, n] in `coming`; -1 if it is not in the heap
    size: NDArray[np.int64]  # [2, D] of `waiting`, of `coming`
    blocked: NDArray[np.float64]  # [D] most live bytes at which a pair had no room (its key is inf); else -inf
    scratch: NDArray[np.int64]  # [n]

    @classmethod
    def none(cls, n: int, devices: int) -> Pairs:
        """No pair yet."""
        table = (devices, n)
        return cls(
            waiting=np.empty(table, np.int64),
            coming=np.empty(table, np.int64),
            key=np.empty(table),
            position=np.full(table, -1, np.int64),
            size=np.zeros((2, devices), np.int64),
            blocked=np.full(devices, -np.inf),
            scratch=np.empty(n, np.int64),
        )


@inner
def _sift(q: Pairs, rank: NDArray[np.int64], d: int, i: int) -> None:
    """Restore the heap `coming` after the key of entry i changed."""
    sift(q.coming[d], q.key[d], rank, q.position[d], q.size[1, d], i)


@inner
def _insert(q: Pairs, rank: NDArray[np.int64], d: int, op: int, key: float) -> None:
    q.key[d, op] = key
    q.coming[d, q.size[1, d]] = op
    q.size[1, d] += 1
    _sift(q, rank, d, q.size[1, d] - 1)


@inner
def _drop_first(q: Pairs, rank: NDArray[np.int64], d: int) -> None:
    """Remove the first entry of `coming`."""
    q.position[d, q.coming[d, 0]] = -1
    q.size[1, d] -= 1
    if q.size[1, d]:
        q.coming[d, 0] = q.coming[d, q.size[1, d]]
        _sift(q, rank, d, FIRST)


@inner
def _cannot_run(p: Any, s: Any, op: int, device: int) -> bool:
    home = s.group_device[p.group[op]]
    return bool(s.missing[op] != 0 or (home != NOWHERE and home != device))


@inner
def _key(p: Any, s: Any, q: Pairs, op: int, device: int) -> float:
    """`ready_at`; records pairs that are skipped for lack of memory."""
    key = ready_at(p, s, op, device)
    if key == np.inf:
        q.blocked[device] = max(q.blocked[device], s.live[device])
    return float(key)


@inner
def _update_key(p: Any, s: Any, q: Pairs, rank: NDArray[np.int64], op: int, device: int) -> None:
    q.key[device, op] = _key(p, s, q, op, device)
    _sift(q, rank, device, q.position[device, op])


@inner
def _recheck_memory(p: Any, s: Any, q: Pairs, rank: NDArray[np.int64], device: int) -> None:
    """Check pairs again that were skipped for lack of memory."""
    count = 0
    for i in range(q.size[1, device]):
        v = q.coming[device, i]
        if q.key[device, v] == np.inf:
            q.scratch[count] = v
            count += 1
    q.blocked[device] = -np.inf
    for i in range(count):
        if not _cannot_run(p, s, q.scratch[i], device):
            _update_key(p, s, q, rank, q.scratch[i], device)


@inner
def _add_ready(p: Any, s: Any, q: Pairs, rank: NDArray[np.int64], op: int) -> None:
    group = p.group[op]
    for d in range(p.memory.shape[0]):
        if s.group_device[group] == d or (s.group_device[group] == NOWHERE and p.allowed[group, d]):
            _insert(q, rank, d, op, _key(p, s, q, op, d))


@inner
def _lower_keys(p: Any, s: Any, q: Pairs, rank: NDArray[np.int64], tensor: int, device: int) -> None:
    """Lower the keys of readers of a tensor that can now start earlier on the device."""
    for k in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
        c = p.consumer_op[k]
        if s.missing[c] == 0 and q.position[device, c] >= 0:
            ready = _key(p, s, q, c, device)
            if ready < q.key[device, c]:
                q.key[device, c] = ready
                _sift(q, rank, device, q.position[device, c])


@compiled
def run_earliest(
    p: Any, s: Any, q: Pairs, rank: NDArray[np.int64], by_rank: NDArray[np.int64], seed: int
) -> None:  # fmt: skip
    """Place the (ready operation, device) pair of earliest start, ties by lowest rank, until all are placed (ETF).

    A key in `coming` is a lower bound on the start. It was exact when it was computed, and later decisions only delay an
    operation, with two exceptions: another operation gets a tensor sent that this one reads, or binds sources that this one
    reads. These keys are computed again. So are the keys of pairs that were skipped for lack of memory, once some is freed.
    Therefore the first pair that can still start at its key is the earliest one, and each step checks only a few pairs. A
    scan of all ready operations (`favourite.py`) takes 2 to 6 times as long on networks of thousands of operations.
    """
    n, devices = rank.shape[0], p.memory.shape[0]
    left = 0
    for v in range(n):
        if s.missing[v] == 0:
            _add_ready(p, s, q, rank, v)
        if s.missing[v] >= 0:
            left += 1
    while left:
        best, op, first = NOWHERE, NOWHERE, np.inf
        for d in range(devices):
            free = device_free(p, s, d)
            while q.size[1, d] and (_cannot_run(p, s, q.coming[d, 0], d) or q.key[d, q.coming[d, 0]] <= free):
                v = q.coming[d, 0]
                _drop_first(q, rank, d)
                if not _cannot_run(p, s, v, d):
                    q.size[0, d] = push(q.waiting[d], q.size[0, d], rank[v])
            while q.size[0, d] and _cannot_run(p, s, by_rank[q.waiting[d, 0]], d):
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
        if first == np.inf:  # only pairs without room are left; if no device has room, an operation may run on any
            for d in range(devices):
                _recheck_memory(p, s, q, rank, d)
            continue
        ready = _key(p, s, q, op, best)
        if q.size[0, best] and by_rank[q.waiting[best, 0]] == op:
            if ready > first:
                q.size[0, best] = pop(q.waiting[best], q.size[0, best])
                _insert(q, rank, best, op, ready)
        elif ready > first:
            q.key[best, op] = ready
            _sift(q, rank, best, FIRST)
        if ready > first:
            for d in range(devices):  # if no device has room for it, it may run on any
                if ready == np.inf and q.position[d, op] >= 0 and q.key[d, op] == np.inf:
                    _update_key(p, s, q, rank, op, d)
            continue
        place(p, s, op, best)
        left -= 1
        for k in range(s.counts[FRESH]):
            _add_ready(p, s, q, rank, s.fresh[k])
        for k in range(s.counts[SENT]):
            _lower_keys(p, s, q, rank, s.sent_tensor[k], s.sent_device[k])
        for k in range(s.counts[BOUND]):
            for i in range(p.source_ptr[s.bound[k]], p.source_ptr[s.bound[k] + 1]):
                for tensor in range(p.output_ptr[p.source_op[i]], p.output_ptr[p.source_op[i] + 1]):
                    for d in range(devices):
                        _lower_keys(p, s, q, rank, tensor, d)
        for d in range(devices):
            if s.live[d] < q.blocked[d] or (d == best and s.counts[BOUND] and q.blocked[d] > -np.inf):
                _recheck_memory(p, s, q, rank, d)
