"""Earliest task first, where devices wait for favorite children: the compiled loop of Baechi's m-SCT. Imports numba."""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placekit_scheduling.jit import compiled, inner
from placekit_scheduling.list_scheduling.kernel import TIE, device_free, place, ready_at, scramble
from placekit_scheduling.list_scheduling.memory import NOWHERE
from placekit_scheduling.list_scheduling.state import BOUND, FRESH, SENT


class Favourites(NamedTuple):
    """The working arrays of `run_favourites`."""

    favourite: NDArray[np.int64]  # [n] favourite child of each operation; -1 if it has none
    low: NDArray[np.float64]  # [n, D] when the inputs are there, at the earliest; inf if it may not run or has no room
    last: NDArray[np.int64]  # [D] last operation placed; -1 before the first
    awaited: NDArray[np.int64]  # [D] child that the device waits for; -1 if it does not wait
    free: NDArray[np.float64]  # [D] when the device is free
    live: NDArray[np.float64]  # [D] live bytes before this step: where they fell, room is checked again

    @classmethod
    def of(cls, favourite: NDArray[np.int64], devices: int) -> Favourites:
        """Nothing placed yet."""
        return cls(
            favourite=favourite,
            low=np.full((len(favourite), devices), np.inf),
            last=np.full(devices, -1),
            awaited=np.full(devices, -1),
            free=np.zeros(devices),
            live=np.zeros(devices),
        )


@inner
def _update_low(p: Any, s: Any, low: NDArray[np.float64], op: int) -> None:
    for d in range(p.memory.shape[0]):
        low[op, d] = ready_at(p, s, op, d)


@inner
def _awaited_child(p: Any, s: Any, low: NDArray[np.float64], free: NDArray[np.float64], device: int, child: int) -> Any:
    """`child` if the device should wait for it: it is ready, its group is free, and no device can start it earlier. Else -1."""
    if child == NOWHERE or s.missing[child] != 0 or s.group_device[p.group[child]] != NOWHERE:
        return NOWHERE
    _update_low(p, s, low, child)
    start = max(low[child, device], free[device])
    for d in range(p.memory.shape[0]):
        if start == np.inf or max(low[child, d], free[d]) < start * (1 - TIE):
            return NOWHERE
    return child


@inner
def _start_time(
    p: Any, low: NDArray[np.float64], free: NDArray[np.float64], awaited: NDArray[np.int64], op: int, device: int
) -> float:
    """When `op` may start on `device`; if the device waits for another operation, not before `op` is urgent.

    An operation is urgent once every device that may run it could start it.
    """
    begin = max(low[op, device], free[device])
    if awaited[device] != NOWHERE and awaited[device] != op and begin < np.inf:
        for d in range(p.memory.shape[0]):
            if low[op, d] < np.inf:
                begin = max(begin, low[op, d], free[d])
    return float(begin)


@compiled
def run_favourites(p: Any, s: Any, f: Favourites, rank: NDArray[np.int64], seed: int) -> None:
    """Like `run_earliest`, but a device waits for the favourite child of the operation that it ran last.

    Ties: the awaited child, then the lowest rank. Each step compares all ready operations on all devices.
    """
    n, devices = rank.shape[0], p.memory.shape[0]
    low, last, awaited, free, live = f.low, f.last, f.awaited, f.free, f.live
    ready, size, left = s.heap, 0, 0
    for v in range(n):
        if s.missing[v] == 0:
            _update_low(p, s, low, v)
            ready[size] = v
            size += 1
        if s.missing[v] >= 0:
            left += 1
    while left:
        for d in range(devices):
            free[d] = device_free(p, s, d)
        for d in range(devices):
            awaited[d] = NOWHERE if last[d] == NOWHERE else _awaited_child(p, s, low, free, d, f.favourite[last[d]])
        while True:
            best, where, at, first = NOWHERE, NOWHERE, 0, np.inf
            for i in range(size):
                v = ready[i]
                for d in range(devices):
                    begin = _start_time(p, low, free, awaited, v, d)
                    if begin == np.inf:
                        continue
                    if best != NOWHERE:
                        near = TIE * max(begin, first)
                        if begin > first + near:
                            continue
                        if begin >= first - near:
                            mine, other = awaited[d] == v, awaited[where] == best
                            if mine != other and other:
                                continue
                            if mine == other and (
                                rank[v] > rank[best] or (v == best and scramble(seed, v, d) > scramble(seed, v, where))
                            ):
                                continue
                    best, where, at, first = v, d, i, begin
            if best == NOWHERE:  # no pair had room at its last check
                for i in range(size):
                    _update_low(p, s, low, ready[i])
                continue
            _update_low(p, s, low, best)
            if _start_time(p, low, free, awaited, best, where) <= first:
                break
        place(p, s, best, where)
        left -= 1
        size -= 1
        ready[at] = ready[size]
        last[where] = best
        for k in range(s.counts[FRESH]):
            ready[size] = s.fresh[k]
            size += 1
        for k in range(size - s.counts[FRESH], size):
            _update_low(p, s, low, ready[k])
        for k in range(s.counts[SENT]):
            tensor, d = s.sent_tensor[k], s.sent_device[k]
            for i in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
                if s.missing[p.consumer_op[i]] == 0:
                    low[p.consumer_op[i], d] = ready_at(p, s, p.consumer_op[i], d)
        for k in range(s.counts[BOUND]):
            for i in range(p.source_ptr[s.bound[k]], p.source_ptr[s.bound[k] + 1]):
                first_output, end = p.output_ptr[p.source_op[i]], p.output_ptr[p.source_op[i] + 1]
                for j in range(p.consumer_ptr[first_output], p.consumer_ptr[end]):
                    if s.missing[p.consumer_op[j]] == 0:
                        _update_low(p, s, low, p.consumer_op[j])
        freed = False
        for d in range(devices):
            freed |= s.live[d] < live[d]
            live[d] = s.live[d]
        for i in range(size):
            v = ready[i]
            home = s.group_device[p.group[v]]
            for d in range(devices):
                if home != NOWHERE and home != d:
                    low[v, d] = np.inf
                elif low[v, d] == np.inf and (freed or home == d) and (home == d or p.allowed[p.group[v], d]):
                    low[v, d] = ready_at(p, s, v, d)
