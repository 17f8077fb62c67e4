"""The compiled evaluation of `fakes.FakeBackend(compiled=True)`. It imports numba, so import it only where it is used."""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit  # noqa: TID251  # a kernel needs nothing of placekit
from numpy.typing import NDArray
from placekit_scheduling import Kernel, kernel_signature

from placekit_core import Problem


def kernel_of(problem: Problem, largest_bytes: NDArray[np.float64], failing: float) -> Kernel:
    """The evaluation of `FakeSession` as a kernel; `ints[0]` counts its evaluations."""
    size = problem.cluster.size
    ints = np.array([0, size], np.int32)
    parts = problem.cluster.memory_bytes, problem.group_persistent_bytes, largest_bytes, problem.group_s.ravel()
    return Kernel(evaluate, ints, np.concatenate([[failing], *parts]).astype(np.float64), 0, size)


@njit(kernel_signature(), cache=True, nogil=True)
def evaluate(device: Any, priority: Any, ints: Any, floats: Any, work_ints: Any, work_floats: Any, peak: Any) -> Any:
    """The sum of the groups' seconds. A checksum of the placement (zlib.crc32) decides whether it fails: then it fits nowhere."""
    ints[0] += 1
    g, size = len(device), np.int64(ints[1])
    value = 0.0
    peak[:] = 0.0
    work_floats[:] = 0.0
    checksum = np.int64(0xFFFFFFFF)
    for i in range(g):
        d = np.int64(device[i])
        value += floats[1 + size + 2 * g + i * size + d]
        peak[d] += floats[1 + size + i]
        work_floats[d] = max(work_floats[d], floats[1 + size + g + i])
        for byte in (d & 255, (d >> 8) & 255):
            checksum ^= byte
            for _ in range(8):
                checksum = (checksum >> 1) ^ (0xEDB88320 * (checksum & 1))
    for other in range(size):
        peak[other] += work_floats[other]
    if (checksum ^ 0xFFFFFFFF) < floats[0] * 4294967296.0:
        for other in range(size):
            peak[other] += floats[1 + other] + 1.0
    return value
