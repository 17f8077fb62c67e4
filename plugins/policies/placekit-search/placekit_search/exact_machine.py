"""Machines, as the constraint program of policy `exact` sees them: schedules in whole ticks, and devices that are alike."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling import device_classes

from placekit_core import Cluster, Problem, Schedule

ALL = -1  # destination of a multicast send: all devices that need the tensor


@dataclass(frozen=True, eq=False)
class Timed:
    """An execution in ticks.

    Attributes:
        device: [n] device of each operation.
        start, end: [n] ticks; 0 for sources.
        sent: start of each transfer, by tensor and destination (`ALL` with multicast).
        makespan: the last end.
    """

    device: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    sent: dict[tuple[int, int], int]
    makespan: int


def op_ticks(problem: Problem, tick_s: float) -> NDArray[np.int64]:
    """[n, D] whole ticks of each operation on each device, rounded down."""
    return np.floor(problem.op_s / tick_s).astype(np.int64)


def transfer_ticks(cluster: Cluster, bytes_: float, tick_s: float) -> NDArray[np.int64]:
    """[D, D] whole ticks of a transfer between each pair of devices, rounded down."""
    return np.floor((cluster.routes.latency_s + bytes_ * cluster.routes.s_per_byte) / tick_s).astype(np.int64)


def route(cluster: Cluster, source: int, to: int) -> tuple[int, list[int]]:
    """The destination that decides a transfer's time (`to`, or any for `ALL`: they are alike), and the channels it holds."""
    if to == ALL:
        to = 1 if source == 0 else 0
    r, routes = source * cluster.size + to, cluster.routes
    return to, routes.channel[routes.ptr[r] : routes.ptr[r + 1]].tolist()


def in_ticks(problem: Problem, schedule: Schedule, tick_s: float, value_s: float) -> Timed | None:
    """The tasks of `schedule` in its order, each as early as possible in ticks; `op_ticks`, `transfer_ticks` long.

    On the machine model, the makespan is at most the value of the schedule, for the reason of `exact_model`, (2). None if
    `schedule`, of the value `value_s`, is no execution of the machine model: a task starts before its inputs are there, or
    an input is never sent, or the value is below the makespan.
    """
    graph, cluster = problem.graph, problem.cluster
    ticks, there = op_ticks(problem, tick_s), schedule.op_device.astype(np.int64)
    position = np.empty(graph.n, np.int64)
    position[graph.topological_order] = np.arange(graph.n)
    # of tasks that start together, inputs first: (start, order in the graph, transfer?, number, destination)
    tasks = {(float(schedule.op_start_s[v]), int(position[v]), 0, int(v), 0) for v in np.flatnonzero(graph.kernel)}
    for t, to, start in zip(
        schedule.transfer_tensor.tolist(), schedule.transfer_dst.tolist(), schedule.transfer_start_s, strict=True
    ):
        where = int(position[graph.tensor_producer[t]])
        tasks.add((float(start), where, 1, t, ALL if cluster.multicast else to))
    busy: dict[tuple[str, int], list[int]] = defaultdict(list)
    begin, end = np.zeros(graph.n, np.int64), np.zeros(graph.n, np.int64)
    made = ~graph.kernel
    sent: dict[tuple[int, int], int] = {}
    arrived: dict[tuple[int, int], int] = {}
    for _, _, is_transfer, number, to in sorted(tasks):
        if is_transfer:
            producer = int(graph.tensor_producer[number])
            source = int(there[producer])
            if not made[producer]:
                return None
            d, channels = route(cluster, source, to)
            length = int(transfer_ticks(cluster, float(graph.tensor_bytes[number]), tick_s)[source, d])
            keys = [("channel", c, int(cluster.routes.capacity[c])) for c in channels]
            sent[number, to] = _reserve(busy, keys, int(end[producer]), length)
            arrived[number, to] = sent[number, to] + length
        else:
            d, ready = int(there[number]), 0
            for t in graph.inputs(number).tolist():
                producer = int(graph.tensor_producer[t])
                remote, key = there[producer] != d, (t, ALL if cluster.multicast else d)
                if key not in arrived if remote else not made[producer]:
                    return None
                ready = max(ready, arrived[key] if remote else int(end[producer]))
            length = int(ticks[number, d])
            begin[number] = _reserve(busy, [("device", d, int(cluster.streams[d]))], ready, length)
            end[number], made[number] = begin[number] + length, True
    makespan = int(end.max(initial=0))
    if makespan > value_s / tick_s + 1:  # faster than the model: another machine
        return None
    return Timed(there, begin, end, sent, makespan)


def _reserve(busy: dict[tuple[str, int], list[int]], keys: list[tuple[str, int, int]], ready: int, length: int) -> int:
    """Start of a task that is ready at `ready`, on a lane of each of `keys` (kind, number, capacity), which it takes."""
    if length == 0:
        return ready  # holds nothing for any time
    full = [k for k in keys if len(busy[k[:2]]) >= k[2]]
    begin = max([ready, *(min(busy[k[:2]]) for k in full)])
    for k in full:
        busy[k[:2]].remove(min(busy[k[:2]]))
    for k in keys:
        busy[k[:2]].append(begin + length)
    return begin


def alike(problem: Problem) -> list[list[int]]:
    """The classes of two devices or more that are alike."""
    return [devices for devices in device_classes(problem) if len(devices) > 1]
