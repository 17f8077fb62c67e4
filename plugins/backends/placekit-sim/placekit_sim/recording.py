"""Records one simulated run, and turns it into a Schedule."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling.tracing import run_traced

from placekit_core import Problem, Schedule
from placekit_sim.packing import Packed


@dataclass(frozen=True, eq=False)
class Run:
    """One simulated run: n operations, D devices, x received copies of tensors in the order (tensor, destination).

    Attributes:
        value_s: makespan.
        peak_bytes: [D] highest memory in use.
        op_start_s, op_end_s: [n]; 0 for sources.
        copy_tensor, copy_dst: [x] tensor and destination device of each copy.
        copy_start_s, copy_end_s: [x] when the transfer of each copy ran; a multicast send brings several copies at once.
        op_round, copy_round: [n], [x] the rounds in which they started, if these were recorded.
    """

    value_s: float
    peak_bytes: NDArray[np.float64]
    op_start_s: NDArray[np.float64]
    op_end_s: NDArray[np.float64]
    copy_tensor: NDArray[np.int32]
    copy_dst: NDArray[np.int32]
    copy_start_s: NDArray[np.float64]
    copy_end_s: NDArray[np.float64]
    op_round: NDArray[np.int32] | None = None
    copy_round: NDArray[np.int32] | None = None

    def schedule(self, problem: Problem, device: NDArray[np.int16]) -> Schedule:
        """The events with streams: an operation takes the lowest free stream of its device; sources have -1.

        `device` is [g].
        """
        home = problem.expand(device)
        stream = streams(problem.graph.kernel, home, self.op_start_s, self.op_end_s)
        return Schedule(
            op_device=home,
            op_stream=stream,
            op_start_s=self.op_start_s,
            op_end_s=self.op_end_s,
            transfer_tensor=self.copy_tensor,
            transfer_src=home[problem.graph.tensor_producer[self.copy_tensor]],
            transfer_dst=self.copy_dst.astype(np.int16),
            transfer_start_s=self.copy_start_s,
            transfer_end_s=self.copy_end_s,
            value_s=self.value_s,
            op_round=self.op_round,
            transfer_round=self.copy_round,
        )


def record(problem: Problem, packed: Packed, device: NDArray[np.int16], priority: NDArray[np.float32] | None) -> Run:
    """Run one placement and record its times. `packed` must have been made with `record=True`."""
    n, kernel = problem.graph.n, problem.graph.kernel
    run = run_traced(packed.kernel(packed.trace), problem, device, priority)
    rounds = run.ints[packed.rounds : packed.rounds + packed.tasks]
    order = np.lexsort((run.start_s[run.copy_task], run.copy_dst, run.copy_tensor))
    task = run.copy_task[order]
    return Run(
        value_s=run.value_s,
        peak_bytes=run.peak_bytes,
        op_start_s=np.where(kernel, run.start_s[:n], 0.0),
        op_end_s=np.where(kernel, run.end_s[:n], 0.0),
        copy_tensor=run.copy_tensor[order],
        copy_dst=run.copy_dst[order],
        copy_start_s=run.start_s[task],
        copy_end_s=run.end_s[task],
        op_round=np.where(kernel, rounds[:n], 0),
        copy_round=rounds[task],
    )


def streams(
    kernel: NDArray[np.bool_], device: NDArray[np.int16], start_s: NDArray[np.float64], end_s: NDArray[np.float64]
) -> NDArray[np.int32]:
    """[n] stream of each operation, lowest free one first; -1 for sources.

    Of operations that start together, those that take no time come first and free their stream at once, so there are never
    more streams than operations that really ran side by side. Ties are resolved by index.
    """
    result = np.full(len(kernel), -1, np.int32)
    free: dict[int, list[int]] = {}
    busy: dict[int, list[tuple[float, int]]] = {}  # device -> (end, stream) of each operation that runs there
    used: dict[int, int] = {}
    for v in np.lexsort((end_s > start_s, start_s)).tolist():
        if not kernel[v]:
            continue
        d, start = int(device[v]), float(start_s[v])
        idle, running = free.setdefault(d, []), busy.setdefault(d, [])
        while running and running[0][0] <= start:
            heapq.heappush(idle, heapq.heappop(running)[1])
        if not idle:
            idle.append(used.get(d, 0))
            used[d] = idle[0] + 1
        result[v] = heapq.heappop(idle)
        heapq.heappush(running, (float(end_s[v]), int(result[v])))
    return result
