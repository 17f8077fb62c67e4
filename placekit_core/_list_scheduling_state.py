"""What the compiled loop of list_scheduling.py works on: arrays, and no code."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

INSERTION, GROUPS, LANES, ARRIVALS, FRESH, SENT, BOUND = range(7)  # entries of State.counts


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
    unread_bytes: Floats  # [n] of these, what nobody reads
    most_bytes: Floats  # [n] at least what placing the operation adds to a device
    op_s: Floats  # [n, D]
    group: Ints  # [n]
    source_ptr: Ints  # [g+1] sources of each group
    source_op: Ints
    allowed: NDArray[np.bool_]  # [g, D]
    group_bytes: Floats  # [g]
    memory: Floats  # [D]
    stream_ptr: Ints  # [D+1] streams of each device; none where they are unlimited
    lane_ptr: Ints  # [C+1] one lane per concurrent transfer of each channel
    route_ptr: Ints  # [D*D+1]
    route_channel: Ints
    latency_s: Floats  # [D, D]
    s_per_byte: Floats  # [D, D]
    multicast: bool


class State(NamedTuple):
    """What has been decided so far, and the log of the current attempt."""

    missing: Ints  # [n] kernels that must be placed first; sources and placed operations -1
    start: Floats  # [n]
    finish: Floats  # [n] 0 for sources
    group_device: Ints  # [g]
    used: Floats  # [D] persistent bytes
    live: Floats  # [D] bytes of outputs and received copies that an operation not yet placed reads
    peak: Floats  # [D] most of them so far
    readers: Ints  # [t] operations not yet placed that read it
    storage_readers: Ints  # [t] the same for all tensors that share its memory
    held: NDArray[np.bool_]  # [t, D] a received copy is live
    arrival: Floats  # [t, D] when a copy is there; -1 not sent
    lane_free: Floats  # [lanes]
    tail: Ints  # [streams] last operation
    before: Ints  # [n] operation before it on its stream
    counts: Ints  # [7] INSERTION: 1 to fill gaps; then the lengths of the logs
    fresh: Ints  # operations that the last placed one made ready
    log_group: Ints
    log_lane: Ints
    log_lane_free: Floats
    log_tensor: Ints
    log_device: Ints
    waiting: Ints  # tensors that one attempt has to send
    sent_tensor: Ints  # what the last placement sent and bound: log_tensor, log_device, log_group, kept
    sent_device: Ints
    bound: Ints
    heap: Ints  # [n] of a rule
    ready: Floats  # [D] of a rule: what `starts` fills
    begin: Floats  # [D]
