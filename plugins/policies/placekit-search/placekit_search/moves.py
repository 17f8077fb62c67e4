"""The compiled moves of local searches: propose a move, undo it.

A move changes the devices of some units (sets of groups that move together, see `Neighbourhood`, here `hood`), or priorities of
groups. It is applied at once and recorded in a log, so that it can be undone. Half of the moves are guided: they concern a task
on the critical path of the current schedule, because other moves rarely shorten it.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling.jit import counted_inner, njit
from placekit_scheduling.list_scheduling.placement_levels import LEAST_FACTOR, MOST_FACTOR, set_levels

from placekit_search.move_kinds import KINDS
from placekit_search.random_numbers import below, uniform

SINGLE, SWAP, CLUSTER, REGION, PIECE, EXCHANGE, CRITICAL, TRANSFER, ORDER, SHIFT, LEVEL = range(len(KINDS))
DEVICES, PRIORITIES, PATH = range(3)  # entries of Log.counts
TASK, TO, WHY = range(3)  # rows of Log.path
TRIES = 8  # attempts to find a suitable task on the critical path
LARGEST_PIECE = 5  # a piece has 1, 2, 4, 8 or 16 units: 2 ** (this - 1) at most
NEIGHBOURS = 0.5  # share of moves to the device of a neighbour: a unit that exchanges tensors with this one
WITH_SIMILAR = 0.8  # share of swaps that are with a unit of about the same seconds
CRITICAL_SWAPS = 1 / 3  # share of critical moves that swap
RENAMES = 0.15  # share of shifts that exchange two devices everywhere instead
ANYWHERE = 0.1  # share of shifts to any device instead of a neighbour's


class Log(NamedTuple):
    """The changes of the last move, and the critical path of the current schedule.

    Attributes:
        counts: [3] devices changed, priorities changed, tasks on the path.
        group, device: groups whose device changed, and their devices before.
        ranked, priority: [g] groups whose priority changed, and their priorities before.
        mark: [u + 1] number of the last set of units (piece or shift) that each unit was in, and of sets so far.
        unit: [u] the current set.
        path: [3, tasks] tasks from the end of the schedule back. `TASK`: the operation, or the tensor sent; `TO`: -1 for an
            operation, or the destination of the transfer; `WHY`: number of the task that it waited for.
        tail, wanted: [n], [g] working space for `set_levels`.
    """

    counts: NDArray[np.int64]
    group: NDArray[np.int32]
    device: NDArray[np.int16]
    ranked: NDArray[np.int64]
    priority: NDArray[np.float32]
    mark: NDArray[np.int64]
    unit: NDArray[np.int32]
    path: Annotated[NDArray[np.int32], 2]
    tail: NDArray[np.float64]
    wanted: NDArray[np.float32]


def new_log(units: int, groups: int, tasks: int, operations: int) -> Log:
    """An empty log."""
    return Log(
        counts=np.zeros(3, np.int64),
        group=np.empty(2 * groups + 2, np.int32),
        device=np.empty(2 * groups + 2, np.int16),
        ranked=np.zeros(max(groups, 2), np.int64),
        priority=np.zeros(max(groups, 2), np.float32),
        mark=np.zeros(units + 1, np.int64),
        unit=np.empty(units, np.int32),
        path=np.empty((3, max(tasks, 1)), np.int32),
        tail=np.zeros(operations),
        wanted=np.zeros(groups, np.float32),
    )


@counted_inner
def _device_of(hood: Any, device: Any, u: Any) -> Any:
    """Device of a unit: that of its first group."""
    return np.int64(device[hood.member[hood.member_ptr[u]]])


@counted_inner
def _move_unit(hood: Any, device: Any, u: Any, target: Any, log: Any) -> None:
    """Move all groups of a unit to a device, if it may run there, and record this."""
    if not hood.allowed[u, target]:
        return
    for k in range(hood.member_ptr[u], hood.member_ptr[u + 1]):
        v = hood.member[k]
        if device[v] != target and log.counts[DEVICES] < len(log.group):
            log.group[log.counts[DEVICES]], log.device[log.counts[DEVICES]] = v, device[v]
            log.counts[DEVICES] += 1
            device[v] = target


@njit(cache=True, nogil=True)
def undo(device: Any, priority: Any, log: Any) -> None:
    """Undo the last move."""
    for i in range(log.counts[DEVICES] - 1, -1, -1):
        device[log.group[i]] = log.device[i]
    for i in range(log.counts[PRIORITIES] - 1, -1, -1):
        priority[log.ranked[i]] = log.priority[i]


@counted_inner
def _target(state: Any, hood: Any, device: Any, u: Any) -> Any:
    """Another device that a unit may run on: with probability `NEIGHBOURS` the device of a neighbour."""
    old = _device_of(hood, device, u)
    degree = hood.near_ptr[u + 1] - hood.near_ptr[u]
    if degree > 0 and uniform(state) < NEIGHBOURS:
        d = _device_of(hood, device, hood.near[hood.near_ptr[u] + below(state, degree)])
        if d != old and hood.allowed[u, d]:
            return d
    while True:
        d = below(state, hood.allowed.shape[1])
        if d != old and hood.allowed[u, d]:
            return d


@counted_inner
def _swap(state: Any, hood: Any, device: Any, u: Any, log: Any) -> None:
    """Exchange the devices of a unit and another one, preferably of about the same seconds."""
    row = hood.similar_of[u]
    size = hood.similar_ptr[row + 1] - hood.similar_ptr[row]
    if size > 1 and uniform(state) < WITH_SIMILAR:
        w = np.int64(hood.similar[hood.similar_ptr[row] + below(state, size)])
    else:
        w = np.int64(hood.movable[below(state, len(hood.movable))])
    a, b = _device_of(hood, device, u), _device_of(hood, device, w)
    if a != b and hood.allowed[u, b] and hood.allowed[w, a]:
        _move_unit(hood, device, u, b, log)
        _move_unit(hood, device, w, a, log)


@counted_inner
def _piece(state: Any, hood: Any, device: Any, u: Any, target: Any, log: Any) -> None:
    """Move a piece: 1 to 16 connected units around a unit, all of them on its device."""
    old, size = _device_of(hood, device, u), np.int64(1) << below(state, LARGEST_PIECE)
    stamp = log.mark[-1] + 1
    log.mark[-1] = stamp
    log.unit[0], log.mark[u] = u, stamp
    count = 1
    for _ in range(4 * size):
        if count == size:
            break
        w = log.unit[below(state, count)]
        degree = hood.near_ptr[w + 1] - hood.near_ptr[w]
        if degree > 0:
            x = hood.near[hood.near_ptr[w] + below(state, degree)]
            if log.mark[x] != stamp and _device_of(hood, device, x) == old:
                log.unit[count], log.mark[x] = x, stamp
                count += 1
    for k in range(count):
        _move_unit(hood, device, log.unit[k], target, log)


@counted_inner
def _exchange(state: Any, hood: Any, device: Any, u: Any, log: Any) -> None:
    """Exchange two devices for all units of a region, or of an interval of b-levels."""
    a, b = _device_of(hood, device, u), below(state, hood.allowed.shape[1] - 1)
    if b >= a:
        b += 1
    row = hood.region_of[u]
    units, first, end = hood.region, np.int64(hood.region_ptr[row]), np.int64(hood.region_ptr[row + 1])
    if end - first < 2 or uniform(state) < 0.5:
        units, size = hood.urgent, len(hood.urgent)
        length = np.int64(2.0 ** (uniform(state) * math.log2(size)))
        first = below(state, size - length + 1)
        end = first + length
    for k in range(first, end):
        here = _device_of(hood, device, units[k])
        if here == a:
            _move_unit(hood, device, units[k], b, log)
        elif here == b:
            _move_unit(hood, device, units[k], a, log)


@counted_inner
def _shift(state: Any, hood: Any, device: Any, u: Any, log: Any) -> None:
    """Move a unit, with all units on its device that depend on it, to a device that these send to; or the same backwards.

    This keeps pipeline stages contiguous: the end of a stage joins the next stage, or its beginning the previous one.
    Sometimes exchange two devices everywhere instead.
    """
    old = _device_of(hood, device, u)
    other = below(state, hood.allowed.shape[1] - 1)
    if other >= old:
        other += 1
    if uniform(state) < RENAMES:
        for w in range(len(hood.allowed)):
            here = _device_of(hood, device, w)
            if here == old:
                _move_unit(hood, device, w, other, log)
            elif here == other:
                _move_unit(hood, device, w, old, log)
        return
    forward = uniform(state) < 0.5
    stamp = log.mark[-1] + 1
    log.mark[-1] = stamp
    log.unit[0], log.mark[u] = u, stamp
    count, i, seen = 1, 0, 0
    anywhere, target = uniform(state) < ANYWHERE, other
    while i < count:
        w = log.unit[i]
        i += 1
        first, end = hood.before_ptr[w], hood.before_ptr[w + 1]
        if forward:
            first, end = hood.after_ptr[w], hood.after_ptr[w + 1]
        for e in range(first, end):
            x = hood.after[e] if forward else hood.before[e]
            if log.mark[x] == stamp:
                continue
            here = _device_of(hood, device, x)
            if here == old:
                log.unit[count], log.mark[x] = x, stamp
                count += 1
            elif not hood.source[x]:
                seen += 1
                if not anywhere and below(state, seen) == 0:
                    target = here
    for k in range(count):
        _move_unit(hood, device, log.unit[k], target, log)


@counted_inner
def _transfer(state: Any, hood: Any, flow: Any, device: Any, i: Any, log: Any) -> None:
    """Avoid a transfer on the critical path: move its producer to the destination, or its readers to the producer."""
    tensor, dst = log.path[TASK, i], np.int64(log.path[TO, i])
    u = np.int64(hood.unit_of[flow.group_of[flow.producer[tensor]]])
    home = _device_of(hood, device, u)
    if uniform(state) < 0.5:
        end = hood.tree_first[u] + 1
        if uniform(state) < 0.3:
            end = hood.tree_end[u]
        for k in range(hood.tree_first[u], end):
            _move_unit(hood, device, hood.tree[k], dst, log)
        return
    for k in range(flow.consumer_ptr[tensor], flow.consumer_ptr[tensor + 1]):
        reader = np.int64(hood.unit_of[flow.group_of[flow.consumer_op[k]]])
        if _device_of(hood, device, reader) == dst:
            _move_unit(hood, device, reader, home, log)


@counted_inner
def _reader(flow: Any, device: Any, priority: Any, tensor: Any, dst: Any) -> Any:
    """The most urgent group on device `dst` that reads a tensor; -1 if there is none."""
    best = np.int64(-1)
    for k in range(flow.consumer_ptr[tensor], flow.consumer_ptr[tensor + 1]):
        v = np.int64(flow.group_of[flow.consumer_op[k]])
        if device[v] == dst and (best < 0 or priority[v] > priority[best]):
            best = v
    return best


@counted_inner
def _set_priority(priority: Any, group: Any, value: Any, log: Any) -> None:
    """Change the priority of a group, and record this."""
    log.ranked[log.counts[PRIORITIES]], log.priority[log.counts[PRIORITIES]] = group, priority[group]
    log.counts[PRIORITIES] += 1
    priority[group] = value


@counted_inner
def _order(state: Any, flow: Any, device: Any, priority: Any, log: Any) -> None:
    """Let a critical task run before the task that it waited for on a device or channel; or change one priority."""
    m = log.counts[PATH]
    if m > 0 and uniform(state) < 0.5:
        for _ in range(TRIES):
            i = below(state, m)
            a = b = np.int64(-1)
            if i + 1 < m and log.path[TO, i] < 0 and log.path[TO, i + 1] < 0:
                a, b = np.int64(flow.group_of[log.path[TASK, i]]), np.int64(flow.group_of[log.path[TASK, i + 1]])
            elif i + 1 < m and log.path[TO, i] >= 0 and log.path[TO, i + 1] >= 0:
                a = _reader(flow, device, priority, log.path[TASK, i], log.path[TO, i])
                b = _reader(flow, device, priority, log.path[TASK, i + 1], log.path[TO, i + 1])
            if a >= 0 and b >= 0 and a != b and priority[a] <= priority[b]:
                high, low = priority[b], priority[a]
                after = low if uniform(state) < 0.5 else np.float32(high - abs(high) * np.float32(1e-4))
                _set_priority(priority, a, high, log)
                _set_priority(priority, b, after, log)
                return
    v = np.int64(-1)
    if m > 0:
        i = below(state, m)
        if log.path[TO, i] < 0:
            v = np.int64(flow.group_of[log.path[TASK, i]])
        else:
            v = _reader(flow, device, priority, log.path[TASK, i], log.path[TO, i])
    if v < 0 or uniform(state) < 0.4:
        v = below(state, len(priority))
    scale = np.float32(0.0)
    for k in range(len(priority)):
        scale = max(scale, abs(priority[k]))
    step = scale * np.float32(2.0 ** (-6.0 * uniform(state)))
    value = priority[v] + (step if uniform(state) < 0.5 else -step)
    _set_priority(priority, v, min(max(value, -scale), scale), log)


@counted_inner
def _set_levels(state: Any, flow: Any, device: Any, priority: Any, log: Any) -> None:
    """Set the priority of every group to its b-level on the current devices."""
    factor = LEAST_FACTOR + (MOST_FACTOR - LEAST_FACTOR) * uniform(state)
    set_levels(flow.levels, device, factor, log.tail, log.wanted)
    for group in range(len(priority)):
        if log.wanted[group] != priority[group]:
            _set_priority(priority, group, log.wanted[group], log)


@counted_inner
def _follow(hood: Any, flow: Any, device: Any, log: Any) -> None:
    """After a unit has moved, move with it the parameters and inputs that it, and nothing else on their device, reads.

    If the backend streams them, move only those that were on the unit's old device.
    """
    for i in range(log.counts[DEVICES]):
        u = hood.unit_of[log.group[i]]
        if hood.source[u]:
            continue
        here = np.int64(device[log.group[i]])
        for e in range(hood.near_ptr[u], hood.near_ptr[u + 1]):
            x = hood.near[e]
            if not hood.source[x]:
                continue
            home = _device_of(hood, device, x)
            if home == here or (flow.streams and home != log.device[i]):
                continue
            needed = False
            for f in range(hood.near_ptr[x], hood.near_ptr[x + 1]):
                if _device_of(hood, device, hood.near[f]) == home:
                    needed = True
                    break
            if not needed:
                _move_unit(hood, device, x, here, log)


@njit(cache=True, nogil=True)
def propose(state: Any, device: Any, priority: Any, hood: Any, flow: Any, shares: Any, log: Any) -> None:
    """Make one move: change `device` [g] or `priority` [g], and record it in `log`. `shares` [11] are cumulative up to 1."""
    log.counts[DEVICES] = log.counts[PRIORITIES] = 0
    x, kind = uniform(state), 0
    while kind < LEVEL and x >= shares[kind]:
        kind += 1
    m = log.counts[PATH]
    if kind in (ORDER, LEVEL) and len(priority) == 0:
        kind = CRITICAL
    if kind in (CRITICAL, TRANSFER) and m == 0:  # without a schedule there is no guidance
        kind = SINGLE
    if kind == LEVEL:
        _set_levels(state, flow, device, priority, log)
        return
    if kind == ORDER or len(hood.movable) == 0:
        _order(state, flow, device, priority, log)
        return
    u = np.int64(hood.movable[below(state, len(hood.movable))])
    if kind == SHIFT:
        _shift(state, hood, device, u, log)
    elif kind >= CRITICAL:
        i = below(state, m)
        for _ in range(TRIES):
            if (log.path[TO, i] >= 0) == (kind == TRANSFER):
                break
            i = below(state, m)
        if log.path[TO, i] >= 0:
            _transfer(state, hood, flow, device, i, log)
        else:
            v = np.int64(hood.unit_of[flow.group_of[log.path[TASK, i]]])
            movable = 0
            for d in range(hood.allowed.shape[1]):
                movable += hood.allowed[v, d]
            u = v if movable > 1 else u
            if uniform(state) < CRITICAL_SWAPS:
                _swap(state, hood, device, u, log)
            else:
                _move_unit(hood, device, u, _target(state, hood, device, u), log)
    elif kind == SWAP:
        _swap(state, hood, device, u, log)
    elif kind == EXCHANGE:
        _exchange(state, hood, device, u, log)
    else:
        target = _target(state, hood, device, u)
        if kind == PIECE:
            _piece(state, hood, device, u, target, log)
        elif kind == CLUSTER:
            for k in range(hood.tree_first[u], hood.tree_end[u]):
                _move_unit(hood, device, hood.tree[k], target, log)
        elif kind == REGION:
            for k in range(hood.region_ptr[hood.region_of[u]], hood.region_ptr[hood.region_of[u] + 1]):
                _move_unit(hood, device, hood.region[k], target, log)
        else:
            _move_unit(hood, device, u, target, log)
    _follow(hood, flow, device, log)
