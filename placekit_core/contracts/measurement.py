"""What a backend says about placements: values and memory of a batch, the timed events of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Measurements:
    """A batch of b measurements on D devices.

    Attributes:
        value_s: [b] the objective in seconds; NaN where `error` says why there is none.
        peak_bytes: [b, D] highest memory in use on each device.
        fits: [b] no device went over its memory and nothing failed.
        error: [b] None, or why a placement could not be measured.
        spread_s: [b] standard deviation of repeated measurements, or None for backends that do not repeat.
    """

    value_s: NDArray[np.float64]
    peak_bytes: NDArray[np.float64]
    fits: NDArray[np.bool_]
    error: tuple[str | None, ...]
    spread_s: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.value_s)

    def rows(self, rows: slice) -> Measurements:
        """The measurements at these rows."""
        spread = None if self.spread_s is None else self.spread_s[rows]
        return Measurements(self.value_s[rows], self.peak_bytes[rows], self.fits[rows], self.error[rows], spread)

    @staticmethod
    def join(parts: Sequence[Measurements]) -> Measurements:
        """One batch out of several."""
        spreads = [p.spread_s for p in parts if p.spread_s is not None]
        return Measurements(
            np.concatenate([p.value_s for p in parts]),
            np.concatenate([p.peak_bytes for p in parts]),
            np.concatenate([p.fits for p in parts]),
            tuple(e for p in parts for e in p.error),
            np.concatenate(spreads) if len(spreads) == len(parts) else None,
        )


@dataclass(frozen=True, eq=False)
class Schedule:
    """The timed events of one run of one placement; n operations, x transfers. Times in seconds from the start.

    Attributes:
        op_device, op_stream: [n] where each operation ran.
        op_start_s, op_end_s: [n] when.
        transfer_tensor, transfer_src, transfer_dst: [x] what was sent from where to where.
        transfer_start_s, transfer_end_s: [x] when.
        value_s: the objective of the run.
    """

    op_device: NDArray[np.int16]
    op_stream: NDArray[np.int32]
    op_start_s: NDArray[np.float64]
    op_end_s: NDArray[np.float64]
    transfer_tensor: NDArray[np.int32]
    transfer_src: NDArray[np.int16]
    transfer_dst: NDArray[np.int16]
    transfer_start_s: NDArray[np.float64]
    transfer_end_s: NDArray[np.float64]
    value_s: float


@dataclass(frozen=True, eq=False)
class Trace:
    """Where `Kernel.function` leaves when and why everything started, in its working arrays.

    Tasks are numbers: operation v is v; the transfer that makes received copy k is n + k, for k from 0 in the order of
    announcement. With multicast, one task makes all copies of a tensor and has the number of the first; the numbers of
    the others stay unused.

    Attributes:
        tasks: how many numbers there can be.
        times: place in the float scratch of [tasks] starts, then [tasks] ends, seconds; only of tasks that ran. Sources
            end at 0.
        cause: place in the integer scratch of [tasks], only of tasks that ran, which are kernels and transfers: the task
            at whose end this one started, because it produced or brought the last thing waited for, or released the
            stream or channel. What waited for none that ran, and started at 0, has the number of a source that it reads
            or sends, or -1. Causes followed from any task end there.
        last: place in the integer scratch of the task that ended last; -1 if none ran.
        copies: place in the integer scratch of the number of received copies.
        copy_tensor, copy_dst: places in the integer scratch of the tensor and destination of each received copy.
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
    and fills `peak_bytes`. Memory over capacity does not change the value: compare `peak_bytes` yourself. All arguments
    are writable contiguous arrays; `device` must hold existing devices only, nothing checks it again.

    Attributes:
        function: compiled function of the signature `kernel_signature()`.
        ints, floats: the packed problem; `function` only reads them.
        scratch_ints, scratch_floats: sizes of the working arrays (int32, float64) that each thread allocates for itself.
        trace: where the critical path of the run can be read afterwards, or None where the backend does not leave one.

    `device` is [g] int16; `priority` is [g] float32, or of length 0 for none; `peak_bytes` is [D] float64.

    A loop that takes the function as an argument of numba's type `types.FunctionType(kernel_signature())` is compiled
    once for all backends, and numba keeps it on disk (`cache=True`) as long as its own signature is explicit::

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
