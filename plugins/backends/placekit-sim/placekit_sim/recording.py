"""Records single runs of the compiled kernel."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling.tracing import run_traced

from placekit_core import Problem
from placekit_sim.events import Run
from placekit_sim.packing import Packed


def record(problem: Problem, packed: Packed, device: NDArray[np.int16], priority: NDArray[np.float32] | None) -> Run:
    """One run with its times. `packed` must have been made with `record=True`."""
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
