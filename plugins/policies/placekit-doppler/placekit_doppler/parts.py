"""What the part policy sees of a placement and of its schedule, compiled. This is ours, not the paper's.

A whole episode decides on every operation anew. An episode in parts begins with a placement and its schedule, and changes a
few groups: it draws a kind of change, the group where it begins, and a device. `part_moves.py` makes the change.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling import b_level, group_priority, transfer_cost
from placekit_scheduling.jit import njit
from placekit_scheduling.list_scheduling.placement_levels import LevelGraph, level_graph

from placekit_core import Problem

GROUP_FEATURES = 8
"""What SEL sees of a group: whether it computes on the critical path, whether it produces or reads a transfer on it, whether it
waited for its device there; the share of its transfers that cross devices; its device's load over the mean, and its seconds
over the mean of all groups (logarithm); when it starts; how long its output waits for the first reader. Times are over the
makespan: nothing depends on the scale, or on how many operations there are."""
DEVICE_FEATURES = 8
"""What PLC sees of a device for a part: the change of seconds; the change of transfers; whether a critical transfer would be
spared; whether an operation of the critical path that is next to the part is there; the device's load over the mean; how busy
it is while the part runs now; the share of its memory that is taken; whether nothing next to the part is there."""
PATH = 4096  # waits and transfers of the critical path that are looked at, from its end
BINS = 128  # of the makespan, for how busy devices are


class Flow(NamedTuple):
    """The graph of g groups on D devices, with n operations and t tensors."""

    near_ptr: NDArray[np.int64]  # [g + 1]
    near: NDArray[np.int64]  # groups that each group exchanges tensors with
    near_s: NDArray[np.float64]  # seconds of these transfers, mean over the links
    only: NDArray[np.int64]  # [g] the only reader of a group's outputs, or -1
    alike_ptr: NDArray[np.int64]
    alike: NDArray[np.int64]  # groups whose operations have equal types and about equal seconds, in compressed rows
    alike_of: NDArray[np.int64]  # [g] the row of each
    movable: NDArray[np.int64]  # groups with kernels and a choice of devices; if there are none, all with kernels
    urgent: NDArray[np.int64]  # the same by falling b-level
    rank: NDArray[np.int64]  # [g] index of each in `urgent`
    source: NDArray[np.bool_]  # [g] nothing is computed
    allowed: NDArray[np.bool_]  # [g, D]
    seconds: NDArray[np.float64]  # [g, D]
    bytes_: NDArray[np.float64]  # [g] persistent
    memory: NDArray[np.float64]  # [D]
    group_of: NDArray[np.int64]  # [n]
    kernel: NDArray[np.bool_]  # [n]
    op_s: NDArray[np.float64]  # [n, D]
    consumer_ptr: NDArray[np.int64]  # [t + 1]
    consumer_op: NDArray[np.int64]
    producer: NDArray[np.int64]  # [t]
    output_ptr: NDArray[np.int64]  # [n + 1]
    levels: LevelGraph


class View(NamedTuple):
    """What is seen of a placement and its schedule."""

    group: NDArray[np.float32]  # [g, GROUP_FEATURES]
    start: NDArray[np.float64]  # [g] over the makespan
    end: NDArray[np.float64]  # [g]
    critical: NDArray[np.bool_]  # [g] computes on the critical path
    spared: NDArray[np.bool_]  # [g, D] a transfer on the critical path would be spared there
    load: NDArray[np.float64]  # [D] over the makespan
    busy: NDArray[np.float64]  # [D, BINS + 1] cumulative
    used: NDArray[np.float64]  # [D] persistent bytes
    waits: NDArray[np.int64]  # [p, 2] groups of the critical path and those that held their device or channel
    sent: NDArray[np.int64]  # [p, 2] tensors that the critical path sends, and where to
    counts: NDArray[np.int64]  # [2] rows of `waits` and `sent` that are filled


def flow_of(problem: Problem) -> Flow:
    """The graph of a problem's groups."""
    graph, g = problem.graph, problem.g
    sent = transfer_cost(problem)[graph.input_tensor]
    of = problem.grouping.group_of.astype(np.int64)
    u, v = of[graph.tensor_producer[graph.input_tensor]], of[graph.edge_op]
    pair, where = np.unique(np.stack([np.minimum(u, v), np.maximum(u, v)])[:, u != v], axis=1, return_inverse=True)
    weight = np.bincount(where.reshape(-1), sent[u != v], minlength=pair.shape[1])
    ends, weights = np.concatenate([pair, pair[::-1]], axis=1), np.tile(weight, 2)
    order = np.lexsort((ends[1], ends[0]))
    one_way = np.unique(np.stack([u, v])[:, u != v], axis=1)
    only, readers = np.full(g, -1), np.bincount(one_way[0], minlength=g)
    only[one_way[0]] = one_way[1]
    only[readers != 1] = -1
    source = np.ones(g, np.bool_)
    source[of[graph.kernel]] = False
    alike_of = _alike(problem, source)
    level = group_priority(problem, b_level(problem))
    movable = np.flatnonzero(~source & (problem.allowed.sum(axis=1) > 1))
    if not len(movable):  # only the order is left to decide
        movable = np.flatnonzero(~source)
    urgent, rank = movable[np.argsort(-level[movable], kind="stable")], np.zeros(g, np.int64)
    rank[urgent] = np.arange(len(urgent))
    return Flow(
        near_ptr=_pointers(ends[0], g), near=ends[1][order], near_s=weights[order].astype(np.float64), only=only,
        alike_ptr=_pointers(alike_of, int(alike_of.max(initial=-1)) + 1), alike=np.argsort(alike_of, kind="stable"),
        alike_of=alike_of, movable=movable, urgent=urgent, rank=rank, source=source,
        allowed=problem.allowed.copy(), seconds=np.where(problem.allowed, problem.group_s, 0.0),
        bytes_=problem.group_persistent_bytes.astype(np.float64),
        memory=problem.cluster.memory_bytes.astype(np.float64), group_of=of, kernel=graph.kernel.copy(),
        op_s=np.where(problem.op_allowed, problem.op_s, 0.0), consumer_ptr=graph.consumer_ptr.astype(np.int64),
        consumer_op=graph.consumer_op.astype(np.int64), producer=graph.tensor_producer.astype(np.int64),
        output_ptr=graph.output_ptr.astype(np.int64), levels=level_graph(problem),
    )  # fmt: skip


def _pointers(row: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.bincount(row, minlength=count))]).astype(np.int64)


def _alike(problem: Problem, source: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[g] a number for each kind of group: the type of its longest operation, and its seconds within 5%."""
    graph, of = problem.graph, problem.grouping.group_of
    longest = np.zeros(problem.g, np.int64)
    seconds = np.where(problem.op_allowed, problem.op_s, np.inf).min(axis=1)
    order = np.argsort(seconds, kind="stable")
    longest[of[order]] = order
    whole = np.where(problem.allowed, problem.group_s, np.inf).min(axis=1)
    size = np.round(np.log(np.maximum(whole, 1e-12)) / np.log1p(0.05)).astype(np.int64)
    key = np.stack([graph.op_type.codes[longest], size, source], axis=1)
    return np.unique(key, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def empty_view(flow: Flow) -> View:
    """A view, to be filled by `see`."""
    g, devices = flow.allowed.shape
    return View(
        np.zeros((g, GROUP_FEATURES), np.float32), np.zeros(g), np.zeros(g), np.zeros(g, np.bool_),
        np.zeros((g, devices), np.bool_), np.zeros(devices), np.zeros((devices, BINS + 1)), np.zeros(devices),
        np.zeros((PATH, 2), np.int64), np.zeros((PATH, 2), np.int64), np.zeros(2, np.int64),
    )  # fmt: skip


@njit(cache=True)
def _reads(flow: Any, reader: int, op: int) -> bool:
    """Whether operation `reader` reads an output of operation `op`."""
    for k in range(flow.consumer_ptr[flow.output_ptr[op]], flow.consumer_ptr[flow.output_ptr[op + 1]]):
        if flow.consumer_op[k] == reader:
            return True
    return False


@njit(cache=True)
def _reader(flow: Any, device: Any, priority: Any, tensor: int, to: int) -> int:
    """The most urgent group on device `to` that reads a tensor; -1 if none does."""
    best = -1
    for k in range(flow.consumer_ptr[tensor], flow.consumer_ptr[tensor + 1]):
        x = flow.group_of[flow.consumer_op[k]]
        if device[x] == to and (best < 0 or priority[x] > priority[best]):
            best = x
    return best


@njit(cache=True)
def _note(v: Any, what: int, rows: Any, a: int, b: int) -> None:
    """Add the row (a, b) to `v.waits` (`what` 0) or `v.sent` (1)."""
    if v.counts[what] < len(rows) and a >= 0 and b >= 0 and (what == 1 or a != b):
        rows[v.counts[what], 0], rows[v.counts[what], 1] = a, b
        v.counts[what] += 1


@njit(cache=True)
def _see_path(
    flow: Any, device: Any, priority: Any, cause: Any, last: int, copy_tensor: Any, copy_dst: Any, v: Any
) -> None:  # fmt: skip
    """Follow the critical path back from its last task."""
    n, task = len(flow.group_of), last
    while task >= 0 and (task >= n or flow.kernel[task]):
        before = cause[task]
        if task >= n:
            t, to = copy_tensor[task - n], copy_dst[task - n]
            sender = flow.group_of[flow.producer[t]]
            v.group[sender, 1] = 1.0
            v.spared[sender, to] = True
            _note(v, 1, v.sent, t, to)
            for k in range(flow.consumer_ptr[t], flow.consumer_ptr[t + 1]):
                reader = flow.group_of[flow.consumer_op[k]]
                if device[reader] == to:
                    v.group[reader, 1] = 1.0
                    v.spared[reader, device[sender]] = True
            if before >= n:
                other = _reader(flow, device, priority, copy_tensor[before - n], copy_dst[before - n])
                _note(v, 0, v.waits, _reader(flow, device, priority, t, to), other)
        else:
            own = flow.group_of[task]
            v.critical[own] = True
            v.group[own, 0] = 1.0
            if 0 <= before < n and flow.kernel[before] and not _reads(flow, task, before):
                v.group[own, 2] = 1.0
                _note(v, 0, v.waits, own, flow.group_of[before])
        task = before


@njit(cache=True)
def _see_times(flow: Any, device: Any, start: Any, end: Any, v: Any) -> None:
    """Fill starts and ends of groups, loads and how busy devices are."""
    makespan = max(np.max(end[: len(flow.kernel)]), 1e-300)
    v.start[:], v.end[:], v.load[:], v.busy[:], v.used[:] = 1.0, 0.0, 0.0, 0.0, 0.0
    for op in range(len(flow.kernel)):
        if not flow.kernel[op]:
            continue
        g = flow.group_of[op]
        a, b, d = start[op] / makespan, end[op] / makespan, device[g]
        v.start[g], v.end[g] = min(v.start[g], a), max(v.end[g], b)
        v.load[d] += b - a
        v.busy[d, min(int((a + b) / 2 * BINS), BINS - 1) + 1] += b - a
    for d in range(len(v.load)):
        for i in range(BINS):
            v.busy[d, i + 1] += v.busy[d, i]
    for g in range(len(device)):
        v.used[device[g]] += flow.bytes_[g]


@njit(cache=True)
def see(
    flow: Any, device: Any, priority: Any, start: Any, end: Any, cause: Any, last: int, copy_tensor: Any, copy_dst: Any,
    v: Any,
) -> None:  # fmt: skip
    """Fill the view `v` of the placement `device`, `priority` [g] whose run has this trace."""
    v.group[:], v.critical[:], v.spared[:], v.counts[:] = 0.0, False, False, 0
    _see_times(flow, device, start, end, v)
    _see_path(flow, device, priority, cause, last, copy_tensor, copy_dst, v)
    load, mean = max(np.mean(v.load), 1e-300), 0.0
    for g in flow.movable:
        mean += flow.seconds[g, device[g]] / len(flow.movable)
    for g in range(len(device)):
        cut = whole = 0.0
        first = 1.0
        for e in range(flow.near_ptr[g], flow.near_ptr[g + 1]):
            x = flow.near[e]
            whole += flow.near_s[e]
            cut += flow.near_s[e] if device[x] != device[g] else 0.0
            if not flow.source[x] and v.start[x] >= v.end[g]:
                first = min(first, v.start[x])
        v.group[g, 3] = cut / whole if whole > 0 else 0.0
        v.group[g, 4] = v.load[device[g]] / load - 1.0
        v.group[g, 5] = np.log((flow.seconds[g, device[g]] + 1e-2 * mean) / max(mean, 1e-300)) / 3
        v.group[g, 6] = v.start[g]
        v.group[g, 7] = min(10.0 * (first - v.end[g]), 1.0)
