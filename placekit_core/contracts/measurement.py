"""Results of a backend: values and memory of a batch of placements, and the timed events of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Measurements:
    """A batch of b measurements on D devices.

    Attributes:
        value_s: [b] the objective, in `Backend.unit` (seconds for most); NaN where `error` says why there is none.
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
    """Tasks larger than operations, such as a pipeline stage's work on one micro-batch, and the messages between them.

    Attributes:
        name: [r] what each is called.
        device: [r] the device that ran the task, or sent the message.
        to: [r] the device that received the message; -1 for tasks.
        bytes_: [r] size of the message; 0 for tasks.
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

    With micro-batches, operations run several times: the times of operations and transfers are those of the first micro-batch. A
    streamed tensor (`Session.prefetch`) may be sent to a device several times.

    Attributes:
        op_device, op_stream: [n] where each operation ran.
        op_start_s, op_end_s: [n] when each operation started and ended.
        transfer_tensor, transfer_src, transfer_dst: [x] tensor of each transfer, and the devices it went from and to.
        transfer_start_s, transfer_end_s: [x] when each transfer started and ended.
        value_s: the objective of the run.
        spans: all tasks and messages of the run, if it has tasks larger than operations.
        op_runs: [n] how often each operation ran; None: once.
        op_round, transfer_round: [n], [x] number of the round in which each started, ascending with time. Rounds order starts at
            the same instant: a task that takes no time ends before the next round. None if the backend has no rounds.
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
        """[n] seconds of each operation, summed over its runs."""
        once = self.op_end_s - self.op_start_s
        return once if self.op_runs is None else once * self.op_runs

    @property
    def end_s(self) -> float:
        """When the last operation, task or transfer ended."""
        ends = [self.op_end_s, self.transfer_end_s, *([] if self.spans is None else [self.spans.end_s])]
        return float(max(e.max(initial=0.0) for e in ends))
