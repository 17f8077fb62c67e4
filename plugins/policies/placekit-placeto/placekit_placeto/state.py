"""What an episode has done so far: the placement, who was visited, and a schedule of those who were."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from placekit_placeto.per_device import Scene

TIMES = 2
"""Numbers of each device that `State.times` gives."""


class State:
    """n episodes in lock step.

    Groups that were visited are scheduled in the order of the visits: each starts when its device is free and its inputs are
    there. A group that was not visited yet ends as early as the graph allows: nothing is sent, no device is busy. No transfer
    waits for another. Times are in units of the mean group's run time.
    """

    def __init__(self, q: Scene, start: NDArray[np.int16]) -> None:
        n = len(start)
        self.q, self.everyone = q, torch.arange(n)
        self.device = torch.from_numpy(start.astype(np.int64))  # [n, g]
        self.visited = torch.zeros(self.device.shape)  # [n, g]
        self.end = q.earliest_end.repeat(n, 1)  # [n, g]
        self.free = torch.zeros(n, q.time.shape[1])  # [n, D] when each device is free

    def begin_visit(self) -> None:
        """All groups are to be visited, and all devices are free."""
        self.visited.zero_()
        self.free.zero_()

    def start(self, v: Tensor) -> Tensor:
        """[n, D] when the groups v [n] could start on each device."""
        near = self.q.near[0]
        senders = near.group[v]  # [n, P]
        on = self.device.gather(1, senders)
        sent = near.bytes[v][:, :, None] * self.q.s_per_byte[on] + self.q.latency[on]  # [n, P, D]
        there = (self.end.gather(1, senders)[:, :, None] + sent) * near.any[v][:, :, None]
        return torch.maximum(there.amax(dim=1), self.free)

    def times(self, v: Tensor) -> Tensor:
        """[n, D, TIMES] how much later than on the best device the groups v [n] would start, and end: log(1 + delay)."""
        start = self.start(v)
        delays = [
            x - x.masked_fill(~self.q.allowed[v], torch.inf).amin(dim=1, keepdim=True)
            for x in (start, start + self.q.time[v])
        ]
        return torch.stack([x.clamp(min=0.0).log1p() for x in delays], dim=2)

    def place(self, v: Tensor, chosen: Tensor) -> None:
        """Visit the groups v [n] and put them on the devices `chosen` [n]."""
        end = self.start(v)[self.everyone, chosen] + self.q.time[v, chosen]
        self.end[self.everyone, v] = self.free[self.everyone, chosen] = end
        self.device[self.everyone, v], self.visited[self.everyone, v] = chosen, 1.0
