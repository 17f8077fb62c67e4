"""Results of a backend: values and memory of a batch of placements, and the timed events of one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        error: [b] None, or the reason why a placement could not be measured.
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
class Spans:
    """Tasks larger than operations that devices run one after another, such as the micro-batches of a pipeline's stage.

    Attributes:
        name: [r] what each is.
        device: [r] where it ran; of a message, where it came from.
        to: [r] where a message went; -1 for tasks.
        bytes_: [r] of messages; 0 for tasks.
        start_s, end_s: [r] when it started and ended.
    """

    name: tuple[str, ...]
    device: NDArray[np.int16]
    to: NDArray[np.int16]
    bytes_: NDArray[np.float64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]

    @property
    def is_task(self) -> NDArray[np.bool_]:
        """[r] False for messages."""
        return self.to < 0


@dataclass(frozen=True, eq=False)
class Schedule:
    """The timed events of one run of one placement; n operations, x transfers. Times in seconds from the start.

    If an operation runs several times, once for each micro-batch, its times are those of the first, and so are transfers. A
    tensor that is streamed (`Session.prefetch`) may be sent to a device several times.

    Attributes:
        op_device, op_stream: [n] where each operation ran.
        op_start_s, op_end_s: [n] when each operation started and ended.
        transfer_tensor, transfer_src, transfer_dst: [x] tensor of each transfer, and the devices it went from and to.
        transfer_start_s, transfer_end_s: [x] when each transfer started and ended.
        value_s: the objective of the run.
        spans: all tasks and messages of the run, if it has tasks larger than operations.
        op_runs: [n] how often each operation ran; None: once.
        op_round, transfer_round: [n], [x] the round of each start, ascending with time, where events of one instant are carried
            out in rounds (a task that takes no time ends before the next round's starts); None if the backend has none.
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
    spans: Spans | None = None
    op_runs: NDArray[np.int64] | None = None
    op_round: NDArray[np.int32] | None = None
    transfer_round: NDArray[np.int32] | None = None

    @property
    def op_total_s(self) -> NDArray[np.float64]:
        """[n] seconds of each operation, all times that it ran together."""
        once = self.op_end_s - self.op_start_s
        return once if self.op_runs is None else once * self.op_runs

    @property
    def end_s(self) -> float:
        """When the last operation, task or transfer ended."""
        ends = [self.op_end_s, self.transfer_end_s, *([] if self.spans is None else [self.spans.end_s])]
        return float(max(e.max(initial=0.0) for e in ends))


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
class Trial:
    """An evaluation of placements that are close to the last one that `Kernel.function` evaluated, for searches.

    `function` has the arguments of `Kernel.function`, with `ints` and `floats` of its own and the same working arrays. It
    goes on from a mark, which is a state that `Kernel.function` left on its way, and it ends early: as soon as a proven
    lower bound on the value is above a limit, it returns that bound. Then `peak_bytes` says nothing; but it ends early only
    where the placement fits whatever happens. In all other cases value and peaks are those of `Kernel.function`, to the
    last bit.

    Before each call the caller writes where it goes on, and the limit. A mark may be used if both placements do the same
    before its time. They do so until the first of these: an operation ends whose output has a reader with another device or
    priority than before; an operation without inputs from other operations has another device or priority; a parameter or
    an input (a source) is sent, and it or a reader of it has another device or priority. These last two happen at 0.
    `Kernel.function` goes on from a mark, too, if the caller writes one; then marks and trace are those of its placement.

    Attributes:
        function, ints, floats: as in `Kernel`.
        go_on, kernel_go_on: in the integer scratch, for `function` and for `Kernel.function`: the number of the mark to go
            on from, plus 1; or 0, to begin at the start. `Kernel.function` leaves marks only if this is not 0; -1 lets it
            begin at the start and leave some.
        limit_s: in the float scratch: the limit, in seconds; it may be infinite.
        worked: in the integer scratch: how many operations `function` began when it was last called.
        marks: in the integer scratch: how many marks there are.
        mark_s: in the float scratch: [marks] their times, seconds, ascending.
    """

    function: Any
    ints: NDArray[np.int32]
    floats: NDArray[np.float64]
    go_on: int
    kernel_go_on: int
    limit_s: int
    worked: int
    marks: int
    mark_s: int


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
        trial: gives a faster evaluation of placements that are close to the last one, and compiles it when first called; None
            if the backend has none.

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
    trial: Callable[[], Trial] | None = None
