"""Memory in use over time on each device, and what holds it at the peak, by the rules of docs/machine-model.md#memory.

A curve is given only if its peaks are the measured ones, to the byte. So a backend with other rules has none, not a wrong one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling.tracing import run_traced

from placekit_core import Placement, Problem, Schedule, Session
from placekit_report.causes import copies_of
from placekit_report.events import Events
from placekit_report.memory_holders import HOLDERS as HOLDERS, Holder as Holder, holders_of


@dataclass(frozen=True, eq=False)
class DeviceMemory:
    """Memory of one device over time, in k steps.

    Attributes:
        time_s, bytes_: [k] `bytes_[i]` are in use from `time_s[i]` to `time_s[i + 1]`. The first time is 0, the last one the end
            of the schedule. Steps of one instant have one time; all but the last of them take no time.
        peak_s, peak_bytes: the highest memory, and when it is reached first.
        capacity_bytes: what placements may use.
        holders: what is in use at the peak, most bytes first.
    """

    time_s: NDArray[np.float64]
    bytes_: NDArray[np.float64]
    peak_s: float
    peak_bytes: float
    capacity_bytes: float
    holders: tuple[Holder, ...]


@dataclass(frozen=True, eq=False)
class Memory:
    """Memory of all devices, in the order of the cluster; or none, and the `reason`."""

    devices: tuple[DeviceMemory, ...]
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Allocations:
    """What takes memory during a run: a allocations, from one step of the run to another.

    Attributes:
        tensor: [a] the tensor that is held.
        device: [a] where.
        copy: [a] True for a received copy.
        bytes_: [a] size.
        begin, end: [a] steps: it is in use in the steps begin .. end - 1.
        step_s: [s] time of each step.
    """

    tensor: NDArray[np.int64]
    device: NDArray[np.int64]
    copy: NDArray[np.bool_]
    bytes_: NDArray[np.float64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    step_s: NDArray[np.float64]


def memory_over_time(
    problem: Problem, schedule: Schedule, placement: Placement, session: Session | None, peak_bytes: NDArray[np.float64]
) -> Memory:
    """The memory of each device during `schedule`.

    `session` is the backend's that made the schedule, if it can still be asked; `peak_bytes` is [D], what the backend says.
    """
    if schedule.spans is not None:
        return Memory(
            (), "memory over time is not shown: of micro-batches, the backend gives only the peak of each device"
        )
    found = allocations(problem, schedule, placement, session)
    unknown = Memory((), "memory over time is not shown: the backend gives only the peak of each device")
    if found is None:
        return unknown
    size, graph = problem.cluster.size, problem.graph
    base = np.bincount(schedule.op_device, graph.persistent_bytes, minlength=size)
    change = np.zeros((size, len(found.step_s) + 1))  # the first column is before anything starts
    np.add.at(change, (found.device, found.begin + 1), found.bytes_)
    np.subtract.at(change, (found.device, found.end + 1), found.bytes_)
    used = base[:, None] + np.cumsum(change, axis=1)
    if not np.array_equal(used.max(axis=1), peak_bytes):
        return unknown
    times, devices = np.append(0.0, found.step_s), []
    for d in range(size):
        kept = np.append(True, np.diff(used[d]) != 0)
        time_s, bytes_ = np.append(times[kept], schedule.end_s), np.append(used[d, kept], used[d, -1])
        peak = int(used[d].argmax())
        held = (found.device == d) & (found.begin < peak) & (found.end >= peak)
        holders = holders_of(problem, schedule, d, found.tensor[held], found.copy[held], found.bytes_[held])
        capacity = float(problem.cluster.memory_bytes[d])
        devices.append(DeviceMemory(time_s, bytes_, float(times[peak]), float(used[d, peak]), capacity, holders))
    return Memory(tuple(devices))


def allocations(
    problem: Problem, schedule: Schedule, placement: Placement, session: Session | None
) -> Allocations | None:
    """What takes memory beyond the persistent bytes; None if a tensor that is read was neither written there nor sent."""
    graph, home = problem.graph, schedule.op_device.astype(np.int64)
    begin, end, step_s = _steps(Events.of(problem, schedule), schedule)
    n, x = graph.n, len(schedule.transfer_tensor)
    read, reader = graph.input_tensor, graph.edge_op
    local = home[graph.tensor_producer[read]] == home[reader]
    sent_as = _transfer_of_edges(problem, schedule, placement, session, ~local)
    if sent_as is None:
        return None
    last = end[graph.tensor_producer]  # [t]; an output that is read ends later
    np.maximum.at(last, graph.tensor_storage[read[local]], end[reader[local]])
    np.maximum.at(last, graph.tensor_storage[schedule.transfer_tensor], end[n:])
    kept = end[n:].copy()  # [x]
    np.maximum.at(kept, sent_as[~local], end[reader[~local]])
    own = np.flatnonzero(graph.owned_bytes)
    return Allocations(
        tensor=np.concatenate([own, schedule.transfer_tensor]).astype(np.int64),
        device=np.concatenate([home[graph.tensor_producer[own]], schedule.transfer_dst]).astype(np.int64),
        copy=np.arange(len(own) + x) >= len(own),
        bytes_=np.concatenate([graph.owned_bytes[own], graph.tensor_bytes[schedule.transfer_tensor]]).astype(
            np.float64
        ),
        begin=np.concatenate([begin[graph.tensor_producer[own]], begin[n:]]),
        end=np.concatenate([last[own], kept]),
        step_s=step_s,
    )


def thinned(memory: DeviceMemory, points: int = 2000) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times and bytes of at most `points` steps (at least 4). Of each stretch, the first step and the highest are kept."""
    count = len(memory.time_s)
    if count <= points:
        return memory.time_s, memory.bytes_
    edges = np.linspace(0, count - 1, (points - 1) // 2 + 1).astype(np.int64)
    highest = [a + int(memory.bytes_[a:b].argmax()) for a, b in pairwise(edges.tolist())]
    kept = np.unique(np.concatenate([edges, highest]))
    return memory.time_s[kept], memory.bytes_[kept]


def _steps(events: Events, schedule: Schedule) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """[m] the steps at which events start and end, and [s] the times of steps; in a step, ends come before starts.

    A step is a round of the machine model. A task that takes time ends before all starts of its instant; one that takes none
    ends in the round after its own.
    """
    rounds = np.zeros(len(events.start_s), np.int64)
    if schedule.op_round is not None and schedule.transfer_round is not None:
        rounds = np.concatenate([schedule.op_round, schedule.transfer_round]).astype(np.int64)
    time_s = np.concatenate([events.start_s, events.end_s])
    turn = np.concatenate([rounds, np.where(events.end_s > events.start_s, -1, rounds + 1)])
    order = np.lexsort((turn, time_s))
    new = np.append(False, (np.diff(time_s[order]) > 0) | (np.diff(turn[order]) > 0))[: len(order)]
    step = np.empty(len(order), np.int64)
    step[order] = np.cumsum(new)
    return step[: len(rounds)], step[len(rounds) :], time_s[order][np.append(True, new[1:])[: len(order)]]


def _transfer_of_edges(
    problem: Problem, schedule: Schedule, placement: Placement, session: Session | None, remote: NDArray[np.bool_]
) -> NDArray[np.int64] | None:
    """[e] the transfer that brings each `remote` edge its tensor; None if there is none for some edge."""
    graph, size = problem.graph, problem.cluster.size
    found = np.full(graph.e, -1, np.int64)
    key = schedule.transfer_tensor.astype(np.int64) * size + schedule.transfer_dst
    order = np.argsort(key, kind="stable")
    wanted = graph.input_tensor.astype(np.int64) * size + schedule.op_device[graph.edge_op]
    at = np.searchsorted(key[order], wanted)
    known = at < len(order)
    known[known] = key[order[at[known]]] == wanted[known]
    found[known] = order[at[known]]
    if session is not None and session.prefetch is not None:
        kernel = session.kernel()
        if kernel is None or kernel.trace is None:
            return None
        number = _streamed(problem, schedule, session.prefetch)
        copy = copies_of(problem, schedule, run_traced(kernel, problem, placement.device, placement.priority))
        transfer = np.empty(len(copy), np.int64)
        transfer[copy] = np.arange(len(copy))
        found = np.where(number >= 0, transfer[number] if len(copy) else -1, found)
    return None if (found[remote] < 0).any() else found


def _streamed(problem: Problem, schedule: Schedule, prefetch: int) -> NDArray[np.int64]:
    """[e] the number of the copy that serves each edge from a source on another device; -1 for all other edges.

    docs/machine-model.md#streaming: a copy serves readers of a device that are at most `prefetch` + 1 places apart. Copies are
    numbered as they are needed, which is how a trace numbers them.
    """
    graph, home = problem.graph, schedule.op_device.tolist()
    place = np.empty(graph.n, np.int64)
    place[graph.topological_order] = np.arange(graph.n)
    edges = np.flatnonzero(~graph.kernel[graph.tensor_producer[graph.input_tensor]])
    number = np.full(graph.e, -1, np.int64)
    count = 0
    readers: dict[int, tuple[int, int]] = {}  # device -> its last reader, and how many it has had
    latest: dict[
        tuple[int, int], tuple[int, int]
    ] = {}  # tensor, device -> its last copy, and the place of its last reader
    for j in edges[np.argsort(place[graph.edge_op[edges]], kind="stable")].tolist():
        v, t = int(graph.edge_op[j]), int(graph.input_tensor[j])
        d = home[v]
        if home[graph.tensor_producer[t]] == d:
            continue
        before, had = readers.get(d, (-1, 0))
        readers[d] = v, had + (v != before)
        copy, until = latest.get((t, d), (-1, 0))
        if copy < 0 or readers[d][1] - until > prefetch + 1:
            copy, count = count, count + 1
        latest[t, d] = copy, readers[d][1]
        number[j] = copy
    return number
