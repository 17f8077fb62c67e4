"""The interface of compiled evaluations, which searches call from their own compiled loops. Importing this imports no numba.

A backend returns one from `Session.kernel`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BY_HOST = -2
"""The cause of an operation that waited for its host to launch it."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Where `Kernel.function` records the time and cause of every start in its working arrays.

    Tasks are numbers: operation v is task v; the transfer that makes received copy k is task n + k. Copies are numbered from
    0 in the order in which they are announced; streamed copies (`Session.prefetch`) come first. With multicast, one task makes
    all copies of a tensor. It has the number of the first copy, and the numbers of the other copies are not used.

    Every attribute except `tasks` is the index at which a value or an array begins in a scratch array.

    Attributes:
        tasks: the highest possible number of tasks.
        times: in the float scratch: [tasks] starts, then [tasks] ends, in seconds; set only for tasks that ran. Sources end
            at 0.
        cause: in the integer scratch: [tasks], set only for kernels and transfers that ran. The task at whose end this task
            started: it produced or sent the last input, or released the stream or channel. A task that started at 0 without
            waiting has the number of a source that it reads or sends, or -1; an operation that started when its host had
            launched it has `BY_HOST`. Every chain of causes ends there.
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
    """A compiled evaluation that a search can call in its own compiled loop.

    `function(device, priority, ints, floats, scratch_ints, scratch_floats, peak_bytes)` returns the objective in seconds
    and fills `peak_bytes`. It returns infinity for a placement that cannot be measured. Memory over capacity does not
    change the value: compare `peak_bytes` with the capacities yourself. All arguments are writable contiguous arrays.
    `device` is not checked: it must hold existing devices only.

    Attributes:
        function: compiled function of the signature `kernel_signature()`.
        ints, floats: the packed problem; `function` only reads them.
        scratch_ints, scratch_floats: sizes of the working arrays (int32, float64), which each thread allocates with zeros. The
            function may keep data in them that makes its next call faster; results never depend on these data.
        trace: where the critical path of the run is stored; None if the backend does not record it.

    `device` is [g] int16; `priority` is [g] float32, or of length 0 for none; `peak_bytes` is [D] float64.

    A loop whose argument has numba's type `types.FunctionType(kernel_signature())` is compiled once for all backends. With an
    explicit signature, numba can cache the loop on disk (`cache=True`)::

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
    """The numba signature of `Kernel.function`. Imports numba."""
    from numba import types

    return types.float64(
        types.int16[::1], types.float32[::1], types.int32[::1], types.float64[::1],
        types.int32[::1], types.float64[::1], types.float64[::1],
    )  # fmt: skip
