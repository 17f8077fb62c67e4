"""Records single runs of the compiled kernel."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling.evaluation import kernel_arguments

from placekit_core import Problem
from placekit_sim.events import Run
from placekit_sim.kernel import simulate
from placekit_sim.packing import Packed


def record(problem: Problem, packed: Packed, device: NDArray[np.int16], priority: NDArray[np.float32] | None) -> Run:
    """One run with its times. `packed` must have been made with `record=True`."""
    graph, size = problem.graph, problem.cluster.size
    devices, priorities = kernel_arguments(device[None], None if priority is None else priority[None])
    work_ints, times = np.zeros(packed.scratch_ints, np.int32), np.zeros(packed.scratch_floats)
    peak_bytes = np.empty(size)
    value_s = simulate(devices[0], priorities[0], packed.ints, packed.floats, work_ints, times, peak_bytes)
    start_s, end_s = times[packed.recorded : packed.recorded + 2 * packed.tasks].reshape(2, packed.tasks)
    trace, multicast = packed.trace, problem.cluster.multicast
    copies = int(work_ints[trace.copies])
    tensor, dst = (work_ints[at : at + copies] for at in (trace.copy_tensor, trace.copy_dst))
    first = work_ints[packed.first_copy : packed.first_copy + graph.t]
    task = graph.n + (first[tensor] if multicast else np.arange(copies))
    order = np.lexsort((start_s[task], dst, tensor))
    tensor, dst, task = tensor[order], dst[order], task[order]
    kernel = graph.kernel
    return Run(
        value_s=value_s,
        peak_bytes=peak_bytes,
        op_start_s=np.where(kernel, start_s[: graph.n], 0.0),
        op_end_s=np.where(kernel, end_s[: graph.n], 0.0),
        copy_tensor=tensor,
        copy_dst=dst,
        copy_start_s=start_s[task],
        copy_end_s=end_s[task],
    )
