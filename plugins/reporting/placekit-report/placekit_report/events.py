"""The events of a schedule, and the reasons why they start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placekit_core import Problem, Schedule

NONE, INPUT, TRANSFER, DEVICE, LINK, AHEAD, HOST = range(7)
WHY = (
    "started at once",
    "waited for its input from",
    "waited for the transfer of",
    "waited for the device, which ran",
    "waited for the link, which sent",
    "was copied ahead, once the device had run",
    "waited for the host to launch it",
)
"""Why an event started; the name of an operation, or of a transfer's tensor, follows."""


@dataclass(frozen=True, eq=False)
class Events:
    """The m events of a schedule. Operation v is event v, and transfer x is event n + x; with spans, span r is event r.

    Attributes:
        device: [m] device of a computation, or the device that sends a transfer.
        to: [m] the device that receives a transfer; -1 for computations.
        start_s, end_s: [m] times.
        ran: [m] False for sources, which take no time.
    """

    device: NDArray[np.int64]
    to: NDArray[np.int64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    ran: NDArray[np.bool_]

    @staticmethod
    def of(problem: Problem, schedule: Schedule) -> Events:
        """The events of a schedule of `problem`."""
        spans, n = schedule.spans, problem.graph.n
        if spans is not None:
            device, to = spans.device.astype(np.int64), spans.to.astype(np.int64)
            return Events(device, to, spans.start_s, spans.end_s, np.ones(len(to), np.bool_))
        sent = len(schedule.transfer_tensor)
        return Events(
            device=np.concatenate([schedule.op_device, schedule.transfer_src]).astype(np.int64),
            to=np.concatenate([np.full(n, -1), schedule.transfer_dst]).astype(np.int64),
            start_s=np.concatenate([schedule.op_start_s, schedule.transfer_start_s]),
            end_s=np.concatenate([schedule.op_end_s, schedule.transfer_end_s]),
            ran=np.concatenate([problem.graph.kernel, np.ones(sent, np.bool_)]),
        )
