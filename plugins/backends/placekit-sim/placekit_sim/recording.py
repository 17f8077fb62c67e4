"""Records one simulated run as a Schedule."""

from __future__ import annotations

import heapq
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling.tracing import run_traced

from placekit_core import Placement, Problem, Schedule
from placekit_sim.packing import Packed


def record(problem: Problem, packed: Packed, placement: Placement) -> Schedule:
    """Simulate a placement and return all its events.

    An operation takes the lowest free stream of its device; sources have stream -1 and take no time. Transfers are in the
    order (tensor, destination). A multicast send delivers several copies at once; each of them is a transfer here.
    """
    graph, n, kernel = problem.graph, problem.graph.n, problem.graph.kernel
    run = run_traced(packed.kernel(packed.trace), problem, placement.device, placement.priority)
    rounds = run.ints[packed.rounds : packed.rounds + packed.tasks]
    order = np.lexsort((run.start_s[run.copy_task], run.copy_dst, run.copy_tensor))
    task, tensor = run.copy_task[order], run.copy_tensor[order]
    home = problem.expand(placement.device)
    start_s, end_s = np.where(kernel, run.start_s[:n], 0.0), np.where(kernel, run.end_s[:n], 0.0)
    return Schedule(
        op_device=home,
        op_stream=streams(kernel, home, start_s, end_s),
        op_start_s=start_s,
        op_end_s=end_s,
        transfer_tensor=tensor,
        transfer_src=home[graph.tensor_producer[tensor]],
        transfer_dst=run.copy_dst[order].astype(np.int16),
        transfer_start_s=run.start_s[task],
        transfer_end_s=run.end_s[task],
        value_s=run.value_s,
        op_round=np.where(kernel, rounds[:n], 0),
        transfer_round=rounds[task],
    )


def streams(
    kernel: NDArray[np.bool_], device: NDArray[np.int16], start_s: NDArray[np.float64], end_s: NDArray[np.float64]
) -> NDArray[np.int32]:
    """[n] the lowest free stream for each operation; -1 for sources.

    Of operations that start at the same time, operations without a duration come first, and free their stream at once. So
    there are never more streams than operations that really ran at the same time. Ties are broken by index.
    """
    result = np.full(len(kernel), -1, np.int32)
    free: defaultdict[int, list[int]] = defaultdict(list)
    busy: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)  # device -> (end, stream) of running operations
    used: defaultdict[int, int] = defaultdict(int)
    for v in np.lexsort((end_s > start_s, start_s)).tolist():
        if not kernel[v]:
            continue
        d = int(device[v])
        while busy[d] and busy[d][0][0] <= start_s[v]:
            heapq.heappush(free[d], heapq.heappop(busy[d])[1])
        if not free[d]:
            free[d].append(used[d])
            used[d] += 1
        result[v] = heapq.heappop(free[d])
        heapq.heappush(busy[d], (float(end_s[v]), int(result[v])))
    return result
