"""The problem to solve: a graph in groups, to be placed on a cluster, with costs."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placekit_core.contracts.arrays import cached_arrays
from placekit_core.contracts.cluster import Cluster
from placekit_core.contracts.costs import CostTable, launches_of, roofline
from placekit_core.contracts.errors import ClusterError, PlacementError, listed
from placekit_core.contracts.graph import Graph
from placekit_core.contracts.grouping import Grouping, quotient
from placekit_core.contracts.placement import Placement, Placements
from placekit_core.contracts.units import mebibytes

Scalar = TypeVar("Scalar", bound=np.generic)
_machine: ContextVar[Cluster | None] = ContextVar("machine", default=None)  # the machine of the run that imports


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph to place on a cluster, in groups. Policies place the g groups; backends evaluate the n operations.

    Raises ClusterError on creation if an operation may not run on any device, or if the parameters and state do not fit in any
    placement; PlacekitError if the costs are not seconds of this graph's operations.
    """

    graph: Graph
    grouping: Grouping
    cluster: Cluster
    costs: CostTable

    def __post_init__(self) -> None:
        self.grouping.check(self.graph)
        self.costs.check(self.graph)
        _ = self.op_s  # raises if the costs lack a kind of the cluster
        stuck = np.flatnonzero(~self.allowed.any(axis=1))
        if len(stuck):
            members = np.flatnonzero(self.grouping.group_of == stuck[0])
            needs = sorted({self.graph.allowed[v].replace("|", " or ") for v in members} - {""})
            where = f"allowed: {needs[0]}" if len(needs) == 1 else f"allowed: {' for some, '.join(needs)} for others"
            others = {1: "", 2: " and the operation grouped with it"}
            raise ClusterError(
                f"no device of {self.cluster.name!r} may run {self.graph.op_name[members[0]]!r}"
                + others.get(len(members), f" and the {len(members) - 1} operations grouped with it")
                + f" ({where})",
                "devices: " + listed(f"{d} ({self.device_type(i)})" for i, d in enumerate(self.cluster.device_names)),
            )
        need = float(self.graph.persistent_bytes.sum())
        _refuse_larger(self.graph.name, "parameters, state and inputs take", need, self.cluster)

    @classmethod
    def of(
        cls, graph: Graph, cluster: Cluster, grouping: Grouping | None = None, costs: CostTable | None = None
    ) -> Problem:
        """A problem with defaults: only co-located operations grouped, roofline costs."""
        return cls(graph, grouping or Grouping.colocated(graph), cluster, costs or roofline(graph, cluster))

    @cached_property
    def fingerprint(self) -> str:
        """Hash of graph, grouping, cluster and costs: problems with equal fingerprints have the same answers."""
        digest = hashlib.sha256(f"placekit-problem-1 {self.graph.fingerprint} {self.cluster.fingerprint}".encode())
        digest.update(self.grouping.group_of.tobytes())
        digest.update(self.op_s.tobytes())
        return digest.hexdigest()[:32]

    @cached_property
    def costs_fingerprint(self) -> str:
        """Hash of the seconds of each operation on each device, whatever the grouping."""
        return hashlib.sha256(self.op_s.tobytes()).hexdigest()[:32]

    @property
    def g(self) -> int:
        """Number of groups."""
        return self.grouping.count

    def device_type(self, device: int) -> str:
        """`gpu` or `cpu`."""
        return self.cluster.kinds[self.cluster.device_kind[device]].type

    @cached_arrays
    def op_s(self) -> NDArray[np.float64]:
        """[n, D] seconds of each operation on each device."""
        return self.costs.on(self.cluster)

    @cached_arrays
    def group_s(self) -> NDArray[np.float64]:
        """[g, D] seconds of all operations of each group on each device."""
        group = self.grouping.group_of
        return np.stack([np.bincount(group, own_s, minlength=self.g) for own_s in self.op_s.T], axis=1)

    @cached_arrays
    def op_allowed(self) -> NDArray[np.bool_]:
        """[n, D] whether the device may run the operation."""
        types = [self.device_type(d) for d in range(self.cluster.size)]
        rows = [[not a or t in a.split("|") for t in types] for a in self.graph.allowed.vocabulary]
        table = np.asarray(rows, np.bool_).reshape(-1, len(types))
        return table[self.graph.allowed.codes]

    @cached_arrays
    def allowed(self) -> NDArray[np.bool_]:
        """[g, D] whether the device may run every operation of the group."""
        ok = np.ones((self.g, self.cluster.size), np.bool_)
        op, device = np.nonzero(~self.op_allowed)
        ok[self.grouping.group_of[op], device] = False
        return ok

    @cached_arrays
    def group_persistent_bytes(self) -> NDArray[np.float64]:
        """[g] persistent bytes of each group."""
        return np.bincount(self.grouping.group_of, self.graph.persistent_bytes, minlength=self.g).astype(np.float64)

    def launched_s(self, device: NDArray[np.integer]) -> NDArray[np.float64]:
        """[n] when the host has launched each operation, with operation v on `device[v]`, seconds; 0 without a host.

        A host launches the operations of its devices in topological order, without pauses; see "Hosts" in docs/machine-model.md.
        """
        graph, launchers = self.graph, self.cluster.launchers
        order = graph.topological_order[graph.kernel[graph.topological_order]]
        own, host = launches_of(graph)[order] * launchers.launch_s[device[order]], launchers.host[device[order]]
        found = np.zeros(graph.n)
        for h in np.unique(host):
            found[order[host == h]] = np.cumsum(own[host == h])
        return found

    @cached_property
    def grouped(self) -> Graph:
        """The quotient graph that policies see: one operation per group, acyclic (see `grouping.quotient`)."""
        return quotient(self.graph, self.grouping)

    def expand(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """[..., g] values of groups to [..., n] values of their operations."""
        return np.ascontiguousarray(values[..., self.grouping.group_of])

    def placement(self, device: ArrayLike, priority: ArrayLike | None = None) -> Placement:
        """One checked placement of this problem from devices [g] and priorities [g]."""
        batch = self.check(Placements.of(device, priority))
        if len(batch) != 1:
            raise PlacementError(f"one placement has one row of {self.g} devices, not {len(batch)} rows")
        return self.row(batch, 0)

    def row(self, placements: Placements, i: int) -> Placement:
        """Placement i of a batch that was checked, with arrays of its own."""
        device, priority = placements.one(i)
        own = None if priority is None else priority.copy()
        return Placement(device.copy(), own, self.graph.fingerprint, self.cluster.fingerprint)

    def check(self, placements: Placements) -> Placements:
        """Raise PlacementError, naming the group, unless every group is on an existing, allowed device."""
        device, size = placements.device, self.cluster.size
        if device.shape[1] != self.g:
            raise PlacementError(f"a placement of {self.graph.name!r} has {self.g} groups, not {device.shape[1]}")
        if placements.priority is not None and np.isnan(placements.priority).any():
            raise PlacementError("a priority is not a number")
        outside = np.argwhere((device < 0) | (device >= size))
        if len(outside):
            row, group = outside[0]
            raise PlacementError(
                f"group {self.grouping.name(group)!r} is on device {device[row, group]}", f"devices are 0..{size - 1}"
            )
        if not self.allowed.all():
            wrong = np.argwhere(~self.allowed[np.arange(self.g), device])
            if len(wrong):
                row, group = wrong[0]
                can = [n for n, ok in zip(self.cluster.device_names, self.allowed[group], strict=True) if ok]
                raise PlacementError(
                    f"group {self.grouping.name(group)!r} may not run on {self.cluster.device_names[device[row, group]]}",
                    f"it may run on: {listed(can)}",
                )
        return placements


def check_weights(name: str, bytes_: float) -> None:
    """Raise ClusterError if the machine that a run imports for has too little memory for these parameters and buffers.

    Importers that take long call it as soon as they know the bytes. It does nothing where the machine is not known yet.
    """
    if (machine := _machine.get()) is not None:
        _refuse_larger(name, "parameters and buffers alone take", bytes_, machine)


@contextlib.contextmanager
def importing_for(cluster: Cluster | None) -> Iterator[None]:
    """Within the block, `check_weights` compares with this machine."""
    token = _machine.set(cluster)
    try:
        yield
    finally:
        _machine.reset(token)


def _refuse_larger(name: str, what: str, need: float, cluster: Cluster) -> None:
    room, withheld = float(cluster.memory_bytes.sum()), cluster.withheld_bytes
    if need > room:
        less = f" without {mebibytes(withheld)} of reserves and headroom" if withheld else ""
        raise ClusterError(
            f"{name!r} does not fit on {cluster.name!r}: {what} {mebibytes(need)}, all devices together have"
            f" {mebibytes(room)}{less}",
            "use a cluster with more memory (host memory counts if the cluster has a CPU), numbers of fewer bits, or a smaller"
            " model; for a language model also less context or a smaller batch",
        )
