"""Runs batches of placements on the compiled kernel, over threads, and records single runs."""

from __future__ import annotations

from concurrent.futures import Executor
from itertools import pairwise

import numpy as np
from numba import njit, types
from numpy.typing import NDArray
from placekit_scheduling import kernel_signature

from placekit_core import Placements, Problem
from placekit_sim.events import Run
from placekit_sim.kernel import simulate
from placekit_sim.packing import Packed

_EVENTS_WORTH_A_THREAD = 20_000  # about 2 ms of simulation

_rows = types.void(
    types.FunctionType(kernel_signature()), types.int16[:, ::1], types.float32[:, ::1], types.int32[::1],
    types.float64[::1], types.int64, types.int64, types.int64, types.int64, types.float64[::1], types.float64[:, ::1],
)  # fmt: skip


@njit(_rows, cache=True, nogil=True)
def _evaluate_rows(  # type: ignore[no-untyped-def]
    evaluate, device, priority, ints, floats, scratch_ints, scratch_floats, first, end, value_s, peak_bytes
):
    """Evaluate placements first .. end - 1 into the same rows of `value_s` and `peak_bytes`."""
    work_ints = np.empty(scratch_ints, np.int32)
    work_floats = np.empty(scratch_floats, np.float64)
    for i in range(first, end):
        value_s[i] = evaluate(device[i], priority[i], ints, floats, work_ints, work_floats, peak_bytes[i])


def evaluate(
    packed: Packed, placements: Placements, size: int, threads: int = 1, pool: Executor | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[b] makespans and [b, D] peak bytes. Placements are simulated one by one, so threads do not change the results."""
    b = len(placements)
    device, priority = _arguments(placements.device, placements.priority)
    value_s, peak_bytes = np.empty(b), np.empty((b, size))

    def rows(first: int, end: int) -> None:
        _evaluate_rows(
            simulate, device, priority, packed.ints, packed.floats, packed.scratch_ints, packed.scratch_floats,
            first, end, value_s, peak_bytes,
        )  # fmt: skip

    if pool is not None:
        threads = min(threads, b, max(1, b * packed.tasks // _EVENTS_WORTH_A_THREAD))
    if pool is None or threads < 2:
        rows(0, b)
    else:
        ends = np.linspace(0, b, threads + 1).astype(int).tolist()
        for part in [pool.submit(rows, first, end) for first, end in pairwise(ends)]:
            part.result()
    return value_s, peak_bytes


def record(problem: Problem, packed: Packed, device: NDArray[np.int16], priority: NDArray[np.float32] | None) -> Run:
    """One run with its times. `packed` must have been made with `record=True`."""
    graph, size = problem.graph, problem.cluster.size
    devices, priorities = _arguments(device[None], None if priority is None else priority[None])
    work_ints, times = np.empty(packed.scratch_ints, np.int32), np.empty(packed.scratch_floats)
    peak_bytes = np.empty(size)
    value_s = simulate(devices[0], priorities[0], packed.ints, packed.floats, work_ints, times, peak_bytes)
    start_s, end_s = times[packed.recorded : packed.recorded + 2 * packed.tasks].reshape(2, packed.tasks)
    # the received copies: each tensor once per device with remote consumers, and the number of the task that brought it
    home = problem.expand(device).astype(np.int64)
    producer = home[graph.tensor_producer[graph.input_tensor]]
    remote = producer != home[graph.edge_op]
    key = np.unique(graph.input_tensor[remote].astype(np.int64) * size + home[graph.edge_op[remote]])
    tensor, dst = key // size, key % size
    first = work_ints[packed.first_copy : packed.first_copy + graph.t]
    within = np.zeros(len(key), np.int64)
    if not problem.cluster.multicast and len(key):
        starts = np.flatnonzero(np.diff(tensor, prepend=-1))
        within = np.arange(len(key)) - np.repeat(starts, np.diff(np.append(starts, len(key))))
    task = graph.n + first[tensor] + within
    kernel = graph.kernel
    return Run(
        value_s=value_s,
        peak_bytes=peak_bytes,
        op_start_s=np.where(kernel, start_s[: graph.n], 0.0),
        op_end_s=np.where(kernel, end_s[: graph.n], 0.0),
        copy_tensor=tensor.astype(np.int32),
        copy_dst=dst.astype(np.int32),
        copy_start_s=start_s[task],
        copy_end_s=end_s[task],
    )


def _arguments(
    device: NDArray[np.int16], priority: NDArray[np.float32] | None
) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    """Writable contiguous arrays; numba's signature accepts no others."""
    devices = np.require(device, np.int16, ["C", "W"])
    if priority is None:
        return devices, np.empty((len(devices), 0), np.float32)
    return devices, np.require(priority, np.float32, ["C", "W"])
