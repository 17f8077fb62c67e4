"""Objectives that are the largest load of a device or channel, in a form that a solver can take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class Net(NamedTuple):
    """A group and the groups that read from it, without itself."""

    maker: int
    readers: tuple[int, ...]


class Charge(NamedTuple):
    """A resource is busy for `seconds` where one of `nets` has its maker on `senders` and a reader on `receivers`.

    Resources are the D devices, then channels. `senders` and `receivers` are devices in rising order and have none in common.
    """

    resource: int
    seconds: float
    nets: tuple[int, ...]
    senders: tuple[int, ...]
    receivers: tuple[int, ...]


class Store(NamedTuple):
    """Bytes that a device keeps if one of the groups `holders` is on it."""

    bytes_: float
    holders: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Loads:
    """A lower bound on an objective, for every placement that fits: the largest load of a resource. g groups, D devices.

    Attributes:
        seconds: [g, D] load of each group on its device.
        nets: what groups send each other.
        charges: the loads of transfers.
        ahead: pairs of groups (u, v): there is an order of the devices in which v is on no earlier device than u. Empty if
            devices may wait for each other.
        bytes_: [g] bytes of each group on its device.
        work_bytes: [g] bytes of each group of which only the largest on a device counts.
        stores: bytes that groups share.
        exact: the largest load is the value, not only a bound, and whatever respects the bytes and `ahead` fits.
    """

    seconds: NDArray[np.float64]
    nets: tuple[Net, ...]
    charges: tuple[Charge, ...]
    ahead: tuple[tuple[int, int], ...]
    bytes_: NDArray[np.float64]
    work_bytes: NDArray[np.float64]
    stores: tuple[Store, ...]
    exact: bool

    @property
    def most_s(self) -> float:
        """More than any load, seconds."""
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
        """Whether net x has its maker on one of `senders` and a reader on one of `receivers`; group g is on `home[g]`."""
        net = self.nets[x]
        return home[net.maker] in senders and any(home[r] in receivers for r in net.readers)


@runtime_checkable
class HasLoads(Protocol):
    """A backend's session whose values may be largest loads."""

    def loads(self) -> Loads | None:
        """The loads of its problem; None if its objective is none."""
