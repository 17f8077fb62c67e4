"""The schedule of one sample by itself, for backends whose value is not the end of a schedule."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placekit_core import Problem, Schedule


def one_pass(problem: Problem, device: NDArray[np.int16], value_s: float) -> Schedule:
    """Run operations in topological order on `device` [g], each once its device is free and its inputs have arrived.

    Each tensor is sent once to every device that reads it; transfers do not wait for each other.
    """
    graph, routes = problem.graph, problem.cluster.routes
    home = problem.expand(device)
    start, end = np.zeros(graph.n), np.zeros(graph.n)
    free = np.zeros(problem.cluster.size)
    arrival: dict[tuple[int, int], float] = {}
    sends: list[tuple[int, int, int, float, float]] = []
    for v in graph.topological_order.tolist():
        if not graph.kernel[v]:
            continue
        d, ready = int(home[v]), 0.0
        for t in graph.inputs(v).tolist():
            u = int(graph.tensor_producer[t])
            a = int(home[u])
            if a == d:
                ready = max(ready, end[u])
                continue
            if (t, d) not in arrival:
                begin = float(end[u])
                done = begin + float(routes.latency_s[a, d] + graph.tensor_bytes[t] * routes.s_per_byte[a, d])
                arrival[t, d] = done
                sends.append((t, a, d, begin, done))
            ready = max(ready, arrival[t, d])
        start[v] = max(free[d], ready)
        end[v] = free[d] = start[v] + problem.op_s[v, d]
    columns = list(zip(*sends, strict=True)) or [(), (), (), (), ()]
    return Schedule(
        op_device=home,
        op_stream=np.where(graph.kernel, 0, -1).astype(np.int32),
        op_start_s=start,
        op_end_s=end,
        transfer_tensor=np.asarray(columns[0], np.int32),
        transfer_src=np.asarray(columns[1], np.int16),
        transfer_dst=np.asarray(columns[2], np.int16),
        transfer_start_s=np.asarray(columns[3], np.float64),
        transfer_end_s=np.asarray(columns[4], np.float64),
        value_s=value_s,
    )
