"""The interface of compiled evaluations, which searches call in their own compiled loops; importing it imports no numba.

A backend offers one as `Session.kernel`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Trace:
    """Where `Kernel.function` records, in its working arrays, when and why everything started.

    Each task has a number: operation v is task v; the transfer that makes received copy k is task n + k, with k counted
    from 0 in the order in which the copies are announced; those that are streamed (`Session.prefetch`) come first. With
    multicast, one task makes all copies of a tensor and has the number of the first copy; the numbers of the other copies
    stay unused.

    Every attribute but `tasks` is the index at which a value or an array begins in a scratch array.

    Attributes:
        tasks: the highest possible number of tasks.
        times: in the float scratch: [tasks] starts, then [tasks] ends, seconds; set for tasks that ran only. Sources end
            at 0.
        cause: in the integer scratch: [tasks], set for tasks that ran (kernels and transfers) only. The task at whose end
            this one started: it produced or brought the last input, or released the stream or channel. A task that
            started at 0 and waited for no task has the number of a source that it reads or sends, or -1. Every chain of
            causes ends there.
        last: in the integer scratch: the task that ended last; -1 if none ran.
        copies: in the integer scratch: the number of received copies.
        copy_tensor, copy_dst: in the integer scratch: tensor and destination of each received copy.
    """

    tasks: int
    times: int
    cause: int
    last: int
    copies: int
    copy_tensor: int
    copy_dst: int


@dataclass(frozen=True, eq=False)
class Kernel:
    """A numba-callable evaluation that a search may call in its own compiled loop.

    `function(device, priority, ints, floats, scratch_ints, scratch_floats, peak_bytes)` returns the objective in seconds
    and fills `peak_bytes`; it returns infinity for a placement that cannot be measured. Memory over capacity does not
    change the value: compare `peak_bytes` yourself. All arguments are writable contiguous arrays. `device` must hold
    existing devices only: it is not checked again.

    Attributes:
        function: compiled function of the signature `kernel_signature()`.
        ints, floats: the packed problem; `function` only reads them.
        scratch_ints, scratch_floats: sizes of the working arrays (int32, float64) that each thread allocates for itself, as
            zeros. The function may keep in them what makes its next call faster; results never depend on it.
        trace: where the critical path of the run can be read afterwards; None if the backend does not record it.

    `device` is [g] int16; `priority` is [g] float32, or of length 0 for none; `peak_bytes` is [D] float64.

    A loop that takes the function as an argument of numba's type `types.FunctionType(kernel_signature())` is compiled
    once for all backends. With an explicit signature of its own, numba can cache it on disk (`cache=True`)::

        signature = types.float64(types.FunctionType(kernel_signature()), ..., types.int32[::1], types.float64[::1], ...)

        @njit(signature, cache=True, nogil=True)
        def search(evaluate, ..., ints, floats, ...):
            value = evaluate(device, priority, ints, floats, scratch_ints, scratch_floats, peak_bytes)
    """

    function: Any
    ints: NDArray[np.int32]
    floats: NDArray[np.float64]
    scratch_ints: int
    scratch_floats: int
    trace: Trace | None = None


def kernel_signature() -> Any:
    """The numba signature of `Kernel.function`: seven arrays to the objective in seconds. Imports numba."""
    from numba import types

    return types.float64(
        types.int16[::1], types.float32[::1], types.int32[::1], types.float64[::1],
        types.int32[::1], types.float64[::1], types.float64[::1],
    )  # fmt: skip
