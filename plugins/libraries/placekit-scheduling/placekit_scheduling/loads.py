"""Describes objectives that are the largest load of a device or channel, for policies that solve for the best placement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class Net(NamedTuple):
    """A hyperedge of the graph of groups: a group (`producer`) and the other groups that read from it."""

    producer: int
    readers: tuple[int, ...]


class Charge(NamedTuple):
    """A resource is busy for `seconds` if one of `nets` has its producer on `senders` and a reader on `receivers`.

    Resources are the D devices, then channels. `senders` and `receivers` are disjoint sets of devices in rising order.
    """

    resource: int
    seconds: float
    nets: tuple[int, ...]
    senders: tuple[int, ...]
    receivers: tuple[int, ...]


class Store(NamedTuple):
    """Bytes that a device stores if any of the groups `holders` is on it."""

    bytes_: float
    holders: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Loads:
    """The loads of all resources. The largest is a lower bound on the objective of a placement. g groups, D devices.

    Attributes:
        seconds: [g, D] load of each group on its device.
        nets: the transfers between groups.
        charges: the loads of transfers.
        ahead: pairs of groups (u, v). The devices must be stages of a pipeline: in some order of them, v is never on an
            earlier device than u. Empty if devices may wait for each other.
        bytes_: [g] bytes of each group on its device.
        work_bytes: [g] bytes of each group; only the largest on a device counts.
        stores: bytes that groups share.
    """

    seconds: NDArray[np.float64]
    nets: tuple[Net, ...]
    charges: tuple[Charge, ...]
    ahead: tuple[tuple[int, int], ...]
    bytes_: NDArray[np.float64]
    work_bytes: NDArray[np.float64]
    stores: tuple[Store, ...]

    @property
    def most_s(self) -> float:
        """An upper limit on any load, seconds."""
        return float(self.seconds.max(axis=1, initial=0.0).sum()) + sum(c.seconds for c in self.charges)

    def largest_s(self, device: NDArray[np.int16]) -> float:
        """The largest load with group g on `device[g]`, seconds."""
        home = device.tolist()
        load: dict[int, float] = defaultdict(float)
        for g, d in enumerate(home):
            load[d] += float(self.seconds[g, d])
        for c in self.charges:
            if any(self.crosses(x, home, c.senders, c.receivers) for x in c.nets):
                load[c.resource] += c.seconds
        return max(load.values(), default=0.0)

    def crosses(self, x: int, home: Sequence[int], senders: Sequence[int], receivers: Sequence[int]) -> bool:
        """Whether net x has its producer on one of `senders` and a reader on one of `receivers`; group g is on `home[g]`."""
        net = self.nets[x]
        return home[net.producer] in senders and any(home[r] in receivers for r in net.readers)


@runtime_checkable
class HasLoads(Protocol):
    """A session whose objective may be a largest load."""

    def loads(self) -> Loads | None:
        """The loads of the problem; None if the objective is not a largest load."""
