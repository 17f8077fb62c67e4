"""Evaluates batches of placements with a compiled evaluation on several threads. Importing this imports numba."""

from __future__ import annotations

from concurrent.futures import Executor
from itertools import pairwise

import numpy as np
from numba import types
from numpy.typing import NDArray

from placekit_core import Placements
from placekit_scheduling.abi import Kernel, kernel_signature
from placekit_scheduling.jit import njit

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
    work_ints = np.zeros(scratch_ints, np.int32)
    work_floats = np.zeros(scratch_floats, np.float64)
    for i in range(first, end):
        value_s[i] = evaluate(device[i], priority[i], ints, floats, work_ints, work_floats, peak_bytes[i])


def evaluate_batch(
    kernel: Kernel, placements: Placements, size: int, events: int, threads: int = 1, pool: Executor | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[b] values in seconds and [b, D] peak bytes. `size` is D; `events`: about how many events one evaluation has.

    Each placement is evaluated by one thread, so the number of threads does not change the results.
    """
    b = len(placements)
    device, priority = kernel_arguments(placements.device, placements.priority)
    value_s, peak_bytes = np.empty(b), np.empty((b, size))

    def rows(first: int, end: int) -> None:
        _evaluate_rows(
            kernel.function, device, priority, kernel.ints, kernel.floats, kernel.scratch_ints, kernel.scratch_floats,
            first, end, value_s, peak_bytes,
        )  # fmt: skip

    if pool is not None:
        threads = min(threads, b, max(1, b * events // _EVENTS_WORTH_A_THREAD))
    if pool is None or threads < 2:
        rows(0, b)
    else:
        ends = np.linspace(0, b, threads + 1).astype(int).tolist()
        for part in [pool.submit(rows, first, end) for first, end in pairwise(ends)]:
            part.result()
    return value_s, peak_bytes


def kernel_arguments(
    device: NDArray[np.int16], priority: NDArray[np.float32] | None
) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    """The placements as writable contiguous arrays: numba's signature accepts no others."""
    devices = np.require(device, np.int16, ["C", "W"])
    if priority is None:
        return devices, np.empty((len(devices), 0), np.float32)
    return devices, np.require(priority, np.float32, ["C", "W"])
