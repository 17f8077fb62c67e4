"""Runs a compiled evaluation once and returns its trace. Importing this imports no numba."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placekit_core import BackendError, Problem
from placekit_scheduling.abi import Kernel


@dataclass(frozen=True, eq=False)
class Traced:
    """The record of one run, by the task numbers of `placekit_scheduling.Trace`: T tasks, k received copies, D devices.

    Attributes:
        value_s: the objective.
        peak_bytes: [D] highest memory in use.
        start_s, end_s: [T] times of the tasks that ran; 0 for all others.
        cause: [T] cause of the start of each task that ran; see `placekit_scheduling.Trace`.
        last: the task that ended last; -1 if no task ran.
        copy_tensor, copy_dst: [k] tensor and destination of each received copy.
        copy_task: [k] the task that made each copy; with multicast, the copies of a tensor share one task.
        ints: the integer working array after the run, for backends that record more.
    """

    value_s: float
    peak_bytes: NDArray[np.float64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    cause: NDArray[np.int32]
    last: int
    copy_tensor: NDArray[np.int32]
    copy_dst: NDArray[np.int32]
    copy_task: NDArray[np.int64]
    ints: NDArray[np.int32]


def run_traced(
    kernel: Kernel, problem: Problem, device: NDArray[np.int16], priority: NDArray[np.float32] | None
) -> Traced:
    """Run the placement `device` [g], `priority` [g] once. Raises BackendError if the kernel records no trace."""
    trace = kernel.trace
    if trace is None:
        raise BackendError("this compiled evaluation records no trace", "use `Session.schedule`")
    ints, floats = np.zeros(kernel.scratch_ints, np.int32), np.zeros(kernel.scratch_floats)
    order = np.empty(0, np.float32) if priority is None else np.require(priority, np.float32, ["C", "W"])
    peak_bytes = np.empty(problem.cluster.size)
    home = np.require(device, np.int16, ["C", "W"])
    value_s = kernel.function(home, order, kernel.ints, kernel.floats, ints, floats, peak_bytes)
    start_s, end_s = floats[trace.times : trace.times + 2 * trace.tasks].reshape(2, trace.tasks)
    copies = int(ints[trace.copies])
    tensor, dst = (ints[at : at + copies] for at in (trace.copy_tensor, trace.copy_dst))
    number = np.arange(copies)
    if problem.cluster.multicast:
        _, first, same = np.unique(tensor, return_index=True, return_inverse=True)
        number = first[same]
    return Traced(
        value_s=float(value_s),
        peak_bytes=peak_bytes,
        start_s=start_s,
        end_s=end_s,
        cause=ints[trace.cause : trace.cause + trace.tasks],
        last=int(ints[trace.last]),
        copy_tensor=tensor,
        copy_dst=dst,
        copy_task=problem.graph.n + number,
        ints=ints,
    )
