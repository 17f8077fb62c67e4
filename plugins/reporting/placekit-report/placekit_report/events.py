"""The events of a schedule by number, and the reasons for which they start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placekit_core import Problem, Schedule

NONE, INPUT, TRANSFER, DEVICE, LINK, AHEAD = range(6)
WHY = (
    "started at once",
    "waited for its input from",
    "waited for the transfer of",
    "waited for the device, which ran",
    "waited for the link, which sent",
    "was copied ahead, once the device had run",
)
"""Why something started; the name of the operation, or of the transfer's tensor, follows."""


@dataclass(frozen=True, eq=False)
class Events:
    """What runs in a schedule: m events, by number.

    Operation v is event v, and transfer x of the schedule is event n + x. If the schedule has spans, its events are those.

    Attributes:
        device: [m] where each runs; of a transfer, where it comes from.
        to: [m] where a transfer goes; -1 for what computes.
        start_s, end_s: [m] times.
        ran: [m] False for sources, which only exist.
    """

    device: NDArray[np.int16]
    to: NDArray[np.int16]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    ran: NDArray[np.bool_]

    @classmethod
    def of(cls, problem: Problem, schedule: Schedule) -> Events:
        """The events of a schedule of `problem`."""
        spans, n = schedule.spans, problem.graph.n
        if spans is not None:
            return cls(spans.device, spans.to, spans.start_s, spans.end_s, np.ones(len(spans.to), np.bool_))
        sent = len(schedule.transfer_tensor)
        return cls(
            device=np.concatenate([schedule.op_device, schedule.transfer_src]),
            to=np.concatenate([np.full(n, -1, np.int16), schedule.transfer_dst]),
            start_s=np.concatenate([schedule.op_start_s, schedule.transfer_start_s]),
            end_s=np.concatenate([schedule.op_end_s, schedule.transfer_end_s]),
            ran=np.concatenate([problem.graph.kernel, np.ones(sent, np.bool_)]),
        )
