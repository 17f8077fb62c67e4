"""What the compiled loop of list_scheduling.py works on: arrays, and no code."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

INSERTION, GROUPS, LANES, ARRIVALS, FRESH = range(5)  # entries of State.counts


class Fixed(NamedTuple):
    """The problem. Shapes: n operations, t tensors, g groups, D devices, C channels."""

    input_ptr: Ints  # [n+1]
    input_tensor: Ints  # [e]
    output_ptr: Ints  # [n+1]
    consumer_ptr: Ints  # [t+1]
    consumer_op: Ints  # [e]
    producer: Ints  # [t]
    bytes_: Floats  # [t]
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
    arrival: Floats  # [t, D] when a copy is there; -1 not sent
    lane_free: Floats  # [lanes]
    tail: Ints  # [streams] last operation
    before: Ints  # [n] operation before it on its stream
    counts: Ints  # [5] INSERTION: 1 to fill gaps; then the lengths of the logs
    fresh: Ints  # operations that the last placed one made ready
    log_group: Ints
    log_lane: Ints
    log_lane_free: Floats
    log_tensor: Ints
    log_device: Ints
    waiting: Ints  # tensors that one attempt has to send
