"""Seconds that each device computes, and bytes that it sends and receives, in one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placekit_core import Problem, Schedule


@dataclass(frozen=True, eq=False)
class DeviceUsage:
    """The use of D devices in one step, with all micro-batches.

    Attributes:
        busy_s: [D] seconds in which at least one operation runs; operations side by side count once.
        bytes_out, bytes_in: [D] bytes sent and received.
    """

    busy_s: NDArray[np.float64]
    bytes_out: NDArray[np.int64]
    bytes_in: NDArray[np.int64]


def device_usage(problem: Problem, schedule: Schedule) -> DeviceUsage:
    """Measure the use of each device in a schedule. A pipeline's tasks and messages count, else operations and transfers."""
    size, spans = problem.cluster.size, schedule.spans
    bytes_: NDArray[Any]
    if spans is not None:
        task = spans.is_task
        device, start, end = spans.device[task], spans.start_s[task], spans.end_s[task]
        source, target, bytes_ = spans.device[~task], spans.to[~task], spans.bytes_[~task]
    else:
        op = np.flatnonzero(problem.graph.kernel)
        device, start, end = schedule.op_device[op], schedule.op_start_s[op], schedule.op_end_s[op]
        source, target = schedule.transfer_src, schedule.transfer_dst
        bytes_ = problem.graph.tensor_bytes[schedule.transfer_tensor]
    return DeviceUsage(
        busy_s=np.array([covered(start[device == d], end[device == d]) for d in range(size)]),
        bytes_out=np.bincount(source, bytes_, minlength=size).astype(np.int64),
        bytes_in=np.bincount(target, bytes_, minlength=size).astype(np.int64),
    )


def covered(start: NDArray[np.float64], end: NDArray[np.float64]) -> float:
    """Seconds in which at least one of the intervals [start, end) goes on."""
    order = np.argsort(start, kind="stable")
    begin, until = start[order], np.maximum.accumulate(end[order])  # `until`: the last end of all that began so far
    gaps = np.maximum(begin[1:] - until[:-1], 0.0)
    return float(until[-1] - begin[0] - gaps.sum()) if len(order) else 0.0
