"""The problem that the bounds of makespan.py are computed on: operations on kinds of devices instead of single devices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from placekit_core import Problem
from placekit_scheduling.bounds.routes import least_transfer_s
from placekit_scheduling.bounds.work import Prices, best_prices

WORDS = 8  # a bit set of 64 * WORDS positions holds the ancestors of each operation
LARGEST_TABLE = 2**24  # entries of the table of transfers above which all kinds are treated as one

if TYPE_CHECKING:
    from typing_extensions import Self

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class KindProblem:
    """n operations on K kinds of devices. An edge is a pair of operations where one reads tensors of the other; e edges.

    Attributes:
        problem: the original problem.
        seconds: [n, K] of each operation on each kind; inf where its group may not run.
        devices, streams: [K] number of devices of each kind, and streams of one of them.
        memory: [K] bytes of one device of each kind.
        cluster: [n] the first operation of each operation's cluster. All operations of a cluster must be on one device: they
            are a group, or all operations that only this device may run.
        producer, consumer: [e] the edges, sorted by consumer.
        transfer_s: [e, K, K] least seconds of sending the largest tensor of the edge from a device of one kind to another
            device of the same or another kind; inf if there are no two such devices.
    """

    problem: Problem
    seconds: Floats
    devices: Ints
    streams: Floats
    memory: Floats
    cluster: Ints
    producer: Ints
    consumer: Ints
    transfer_s: Floats

    @classmethod
    def of(cls, problem: Problem) -> Self:
        graph, cluster = problem.graph, problem.cluster
        kind_of = cluster.kind_of
        key, edge = np.unique(
            graph.edge_op.astype(np.int64) * graph.n + graph.tensor_producer[graph.input_tensor], return_inverse=True
        )
        if len(key) * (int(kind_of.max()) + 1) ** 2 > LARGEST_TABLE:
            kind_of = np.zeros_like(kind_of)
        kinds = int(kind_of.max()) + 1
        bytes_ = np.zeros(len(key))
        np.maximum.at(bytes_, edge, graph.tensor_bytes[graph.input_tensor].astype(np.float64))
        on_device = np.where(problem.expand(_may_fit(problem).T).T, problem.op_s, np.inf)
        seconds, streams, memory = np.full((graph.n, kinds), np.inf), np.zeros(kinds), np.zeros(kinds)
        transfer_s = np.full((len(key), kinds, kinds), np.inf)
        apart = ~np.eye(cluster.size, dtype=np.bool_)
        for a in range(kinds):
            members = np.flatnonzero(kind_of == a)
            seconds[:, a] = on_device[:, members].min(axis=1, initial=np.inf)
            streams[a] = cluster.streams[members].max()
            memory[a] = cluster.memory_bytes[members].max()
            for b in range(kinds):
                pairs = np.argwhere((kind_of[:, None] == a) & (kind_of == b) & apart)
                transfer_s[:, a, b] = least_transfer_s(cluster.routes, pairs, bytes_)
        devices = np.bincount(kind_of, minlength=kinds).astype(np.int64)
        return cls(
            problem=problem,
            seconds=seconds,
            devices=devices,
            streams=streams,
            memory=memory,
            cluster=_clusters(problem, seconds, devices),
            producer=key % graph.n,
            consumer=key // graph.n,
            transfer_s=transfer_s,
        )

    @property
    def n(self) -> int:
        return len(self.seconds)

    @cached_property
    def kernels(self) -> Ints:
        """The operations that take time."""
        return np.flatnonzero(self.problem.graph.kernel)

    @cached_property
    def persistent_bytes(self) -> Floats:
        """[n] of each operation."""
        return self.problem.graph.persistent_bytes.astype(np.float64)

    @cached_property
    def prices(self) -> Prices:
        """The best prices for the work of all groups, without the limits of memory."""
        return self._prices(np.zeros(self.problem.g))

    @cached_property
    def prices_with_memory(self) -> Prices:
        return self._prices(self.problem.group_persistent_bytes)

    def _prices(self, bytes_: Floats) -> Prices:
        group, (g, kinds) = self.problem.grouping.group_of, (self.problem.g, len(self.devices))
        seconds = np.zeros((g, kinds))
        for kind in range(kinds):
            seconds[:, kind] = np.bincount(group, self.seconds[:, kind], minlength=g)
        return best_prices(seconds, self.streams * self.devices, bytes_, self.memory * self.devices)

    @cached_property
    def orders(self) -> tuple[Order, Order]:
        """The graph forwards, in the order of heads, and backwards, in the order of tails."""
        topological = np.empty(self.n, np.int64)
        topological[self.problem.graph.topological_order] = np.arange(self.n)
        return Order.of(self, topological, False), Order.of(self, -topological, True)


@dataclass(frozen=True, eq=False)
class Order:
    """The graph in one direction.

    Attributes:
        ptr, other, edge: row v holds the operations that v waits for, and the numbers of these edges.
        order, position: [n] a topological order of this direction, and its inverse.
        reach: the ancestors of each operation; see kernel.py.
    """

    ptr: Ints
    other: Ints
    edge: Ints
    order: Ints
    position: Ints
    reach: NDArray[np.uint64]

    @classmethod
    def of(cls, kinds: KindProblem, topological: Ints, backwards: bool) -> Order:
        """`topological` [n]: positions in a topological order. They decide between equal heads without communication."""
        from placekit_scheduling.bounds import kernel
        from placekit_scheduling.jit import by_size
        from placekit_scheduling.list_scheduling.levels import b_level, t_level

        problem, n = kinds.problem, kinds.n
        waits, other = kinds.consumer, kinds.producer
        level = t_level(problem, "min", communication=0.0)
        if backwards:
            waits, other = other, waits
            # b-levels without an operation's own cost could be rounded to less than those of its consumers
            level = np.zeros(n)
            np.maximum.at(level, waits, b_level(problem, "min", communication=0.0)[other])
        edge = np.lexsort((other, waits))
        ptr = np.searchsorted(waits[edge], np.arange(n + 1)).astype(np.int64)
        order = np.lexsort((topological, level)).astype(np.int64)
        position = np.empty(n, np.int64)
        position[order] = np.arange(n)
        reach = by_size(kernel.reach_back, n * len(kinds.devices))(order, position, ptr, other[edge], WORDS)
        return cls(ptr, other[edge], edge, order, position, reach)

    @property
    def rows(self) -> Ints:
        """[e] the row of each entry of `other`: the operation that waits."""
        return np.repeat(np.arange(len(self.ptr) - 1), np.diff(self.ptr))

    def previous_in_cluster(self, cluster: Ints) -> Ints:
        """[n] the last operation of the same cluster before each operation; -1 if there is none."""
        by_cluster = self.order[np.argsort(cluster[self.order], kind="stable")]
        same = np.flatnonzero(cluster[by_cluster[1:]] == cluster[by_cluster[:-1]])
        result = np.full(len(cluster), -1, np.int64)
        result[by_cluster[same + 1]] = by_cluster[same]
        return result

    def previous_of(self, members: Flags) -> Ints:
        """[n] the last of `members` before each operation; -1 if there is none."""
        last = np.maximum.accumulate(np.where(members[self.order], self.position[self.order], -1))[:-1]
        result = np.full(len(members), -1, np.int64)
        result[self.order[1:]] = np.where(last >= 0, self.order[last], -1)
        return result


@dataclass(frozen=True, eq=False)
class Places:
    """P places: sets of devices of one kind each. See kernel.py.

    Attributes:
        kind: [P] kind of the devices of each place.
        devices: [P] number of devices in each place.
        main: 0 if the first place is the single device of one cluster, else -1.
    """

    kind: Ints
    devices: Ints
    main: int

    @classmethod
    def around(cls, kind: int, devices: Ints) -> Places:
        """One device of `kind`, and a place for each kind that the other devices have."""
        others = devices - (np.arange(len(devices)) == kind)
        left = np.flatnonzero(others)
        return cls(np.concatenate([[kind], left]), np.concatenate([[1], others[left]]), 0)

    def transfer_s(self, transfer_s: Floats) -> Floats:
        """[e, P, P] from [e, K, K]; a place of one device sends nothing to itself."""
        table = transfer_s[:, self.kind[:, None], self.kind]
        single = np.flatnonzero(self.devices == 1)
        table[:, single, single] = np.inf
        return np.ascontiguousarray(table)


def _clusters(problem: Problem, seconds: Floats, devices: Ints) -> Ints:
    """[n] the first operation of each cluster: of groups, and of all operations that must be on the only device of a kind."""
    _, first = np.unique(problem.grouping.group_of, return_index=True)
    cluster = first.astype(np.int64)[problem.grouping.group_of]
    for kind in np.flatnonzero(devices == 1).tolist():
        only_here = np.flatnonzero(np.isfinite(seconds[:, kind]) & (np.isfinite(seconds).sum(axis=1) == 1))
        if len(only_here):
            cluster[only_here] = only_here[0]
    return cluster


def _may_fit(problem: Problem) -> Flags:
    """[g, D] where a group may run and the device has enough memory for each of its operations alone.

    While an operation runs, its device holds the persistent bytes of the group, the operation's outputs, and the tensors of
    other kernels that it reads, either at home or as copies. If this leaves no device for a group, nothing fits and any
    bound holds; then memory is ignored.
    """
    graph, group = problem.graph, problem.grouping.group_of
    owner, bytes_ = graph.tensor_storage, graph.tensor_bytes
    tensor = graph.input_tensor
    tensor, reader = (a[graph.kernel[graph.tensor_producer[owner[tensor]]]] for a in (tensor, graph.edge_op))
    key, read = np.unique(reader.astype(np.int64) * max(graph.t, 1) + owner[tensor], return_inverse=True)
    size = np.zeros(len(key))
    np.maximum.at(size, read, np.minimum(bytes_[tensor], bytes_[owner[tensor]]).astype(np.float64))
    held = np.zeros(graph.n)
    np.add.at(held, key // max(graph.t, 1), size)
    np.add.at(held, graph.tensor_producer, graph.owned_bytes.astype(np.float64))
    most = problem.group_persistent_bytes.copy()
    np.maximum.at(most, group, problem.expand(problem.group_persistent_bytes) + np.where(graph.kernel, held, 0.0))
    fits = problem.allowed & (most[:, None] <= problem.cluster.memory_bytes)
    return fits if fits.any(axis=1).all() else problem.allowed
