"""The arrays of the compiled loops of scheduler.py."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placekit_core import UNLIMITED, Problem

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

COUNTS = 7  # entries of State.counts
INSERTION, GROUPS, LANES, ARRIVALS, FRESH, SENT, BOUND = range(COUNTS)


class Fixed(NamedTuple):
    """The problem. Shapes: n operations, t tensors, g groups, D devices, C channels."""

    input_ptr: Ints  # [n+1]
    input_tensor: Ints  # [e]
    output_ptr: Ints  # [n+1]
    consumer_ptr: Ints  # [t+1]
    consumer_op: Ints  # [e]
    producer: Ints  # [t]
    bytes_: Floats  # [t]
    storage: Ints  # [t] tensor that owns the memory
    owned_bytes: Floats  # [t] bytes that a kernel's output owns; 0 for views and what sources and updates write
    output_bytes: Floats  # [n] bytes that the outputs of each operation own
    unread_bytes: Floats  # [n] of these, the bytes that nothing reads
    most_bytes: Floats  # [n] upper bound on what placing the operation adds to a device
    op_s: Floats  # [n, D]
    group: Ints  # [n]
    source_ptr: Ints  # [g+1] sources of each group
    source_op: Ints
    allowed: NDArray[np.bool_]  # [g, D]
    group_bytes: Floats  # [g]
    memory: Floats  # [D]
    stream_ptr: Ints  # [D+1] streams of each device; empty where they are unlimited
    lane_ptr: Ints  # [C+1] one lane per concurrent transfer of each channel
    route_ptr: Ints  # [D*D+1]
    route_channel: Ints
    latency_s: Floats  # [D, D]
    s_per_byte: Floats  # [D, D]
    multicast: bool

    @classmethod
    def of(cls, problem: Problem, allowed: NDArray[np.bool_]) -> Fixed:
        """The arrays of a problem; `allowed` [g, D] are the devices of its groups."""
        graph, cluster = problem.graph, problem.cluster
        routes, group = cluster.routes, problem.grouping.group_of
        most = max(graph.n, graph.t, 1)  # with as many streams or lanes as tasks, nothing waits
        streams = np.where(cluster.streams >= UNLIMITED, 0, np.minimum(cluster.streams, most))
        used = np.unique(routes.channel)
        lanes = np.zeros(len(routes.channels), np.int64)
        lanes[used] = np.minimum(routes.capacity[used], most)
        sources = np.flatnonzero(~graph.kernel)
        sources = sources[np.argsort(group[sources], kind="stable")]
        storage, reads, persistent = graph.tensor_storage, graph.input_tensor, problem.group_persistent_bytes[group]
        owned = _floats(graph.owned_bytes)
        read = np.bincount(storage[reads], minlength=graph.t) > 0
        output = np.bincount(graph.tensor_producer, owned, minlength=graph.n)
        unread = np.bincount(graph.tensor_producer, np.where(read, 0.0, owned), minlength=graph.n)
        producer = graph.tensor_producer[reads]
        received = graph.tensor_bytes[reads] + np.where(graph.kernel[producer], 0.0, persistent[producer])
        added = output + persistent + np.bincount(graph.edge_op, received, minlength=graph.n)
        return cls(
            input_ptr=_ints(graph.input_ptr),
            input_tensor=_ints(reads),
            output_ptr=_ints(graph.output_ptr),
            consumer_ptr=_ints(graph.consumer_ptr),
            consumer_op=_ints(graph.consumer_op),
            producer=_ints(graph.tensor_producer),
            bytes_=_floats(graph.tensor_bytes),
            storage=_ints(storage),
            owned_bytes=owned,
            output_bytes=_floats(output),
            unread_bytes=_floats(unread),
            most_bytes=_floats(added),
            op_s=_floats(problem.op_s),
            group=_ints(group),
            source_ptr=_pointer(np.bincount(group[sources], minlength=problem.g)),
            source_op=_ints(sources),
            allowed=allowed.copy(),
            group_bytes=_floats(problem.group_persistent_bytes),
            memory=_floats(cluster.memory_bytes),
            stream_ptr=_pointer(streams),
            lane_ptr=_pointer(lanes),
            route_ptr=_ints(routes.ptr),
            route_channel=_ints(routes.channel),
            latency_s=_floats(routes.latency_s),
            s_per_byte=_floats(routes.s_per_byte),
            multicast=bool(cluster.multicast),
        )


class State(NamedTuple):
    """The decisions so far, and a log of the current attempt."""

    missing: Ints  # [n] kernels that must be placed first; sources and placed operations -1
    start: Floats  # [n]
    finish: Floats  # [n] 0 for sources
    group_device: Ints  # [g]
    used: Floats  # [D] persistent bytes
    live: Floats  # [D] bytes of outputs and received copies that an operation not yet placed reads
    peak: Floats  # [D] the most live bytes so far
    readers: Ints  # [t] operations not yet placed that read it
    storage_readers: Ints  # [t] the same for all tensors that share its memory
    held: NDArray[np.bool_]  # [t, D] a received copy is live
    arrival: Floats  # [t, D] when a copy is there; -1 not sent
    lane_free: Floats  # [lanes]
    tail: Ints  # [streams] last operation
    before: Ints  # [n] operation before it on its stream
    counts: Ints  # [COUNTS] INSERTION: 1 to fill gaps; the others are lengths of the logs
    fresh: Ints  # operations that became ready with the last placed one
    log_group: Ints
    log_lane: Ints
    log_lane_free: Floats
    log_tensor: Ints
    log_device: Ints
    waiting: Ints  # tensors to send in the current attempt
    sent_tensor: (
        Ints  # transfers and bindings of the last placed operation: copies of log_tensor, log_device, log_group
    )
    sent_device: Ints
    bound: Ints
    heap: Ints  # [n] working space of rules
    ready: Floats  # [D] working space of rules, which `starts` fills
    begin: Floats  # [D]

    @classmethod
    def of(cls, problem: Problem, fixed: Fixed, insertion: bool) -> State:
        """The state with nothing placed. With `insertion`, an operation may fill a gap before others."""
        p, graph, devices = fixed, problem.graph, problem.cluster.size
        n, inputs = graph.n, int(np.diff(p.input_ptr).max(initial=0)) + 1
        hops = int(np.diff(p.route_ptr).max(initial=0))
        by_kernel = _pointer(graph.kernel[graph.tensor_producer[graph.input_tensor]])
        zeros, i64, sends = np.zeros, np.int64, inputs * devices
        counts = zeros(COUNTS, i64)
        counts[INSERTION] = insertion
        return cls(
            missing=np.where(graph.kernel, np.diff(by_kernel[graph.input_ptr]), -1),
            start=zeros(n),
            finish=zeros(n),
            group_device=np.full(problem.g, -1, i64),
            used=zeros(devices),
            live=zeros(devices),
            peak=zeros(devices),
            readers=_ints(np.diff(p.consumer_ptr)),
            storage_readers=_ints(np.bincount(p.storage[p.input_tensor], minlength=graph.t)),
            held=zeros((graph.t, devices), np.bool_),
            arrival=np.full((graph.t, devices), -1.0),
            lane_free=zeros(int(p.lane_ptr[-1])),
            tail=np.full(int(p.stream_ptr[-1]), -1, i64),
            before=np.full(n, -1, i64),
            counts=counts,
            fresh=zeros(n, i64),
            log_group=zeros(inputs, i64),
            log_lane=zeros(inputs * hops, i64),
            log_lane_free=zeros(inputs * hops),
            log_tensor=zeros(sends, i64),
            log_device=zeros(sends, i64),
            waiting=zeros(inputs, i64),
            sent_tensor=zeros(sends, i64),
            sent_device=zeros(sends, i64),
            bound=zeros(inputs, i64),
            heap=zeros(n, i64),
            ready=zeros(devices),
            begin=zeros(devices),
        )


# copies, because numba would compile functions again for read-only arrays


def _ints(values: NDArray[Any]) -> NDArray[np.int64]:
    return np.array(values, np.int64, order="C")


def _floats(values: NDArray[Any]) -> NDArray[np.float64]:
    return np.array(values, np.float64, order="C")


def _pointer(counts: NDArray[Any]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
