"""A problem as makespan.py sees it: operations on kinds of devices, and the least seconds of transfers between kinds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placekit_core import Problem
from placekit_scheduling.bounds.labels import LARGEST as LARGEST_AROUND, Pairs, Surroundings, raised
from placekit_scheduling.bounds.work import Prices, best_prices

THRESHOLDS = 256  # values of heads and of tails that windows begin and end at
WORDS = 8  # 64 * WORDS positions of ancestors are known
LARGEST = 2**24  # entries of the table of transfers above which all kinds are treated as one

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Relaxation:
    """n operations on K kinds of devices, with e edges: pairs of operations where one reads tensors of the other.

    Attributes:
        problem: the problem that it relaxes.
        seconds: [n, K] of each operation on each kind; inf where its group may not run.
        devices, streams: [K] devices of each kind, and streams of one of them.
        memory: [K] bytes of one device of each kind.
        cluster: [n] first operation of each one's cluster. A cluster is on one device for sure: it is a group, or all
            operations that only this device may run.
        producer, consumer: [e] the edges, by consumer.
        transfer_s: [e, K, K] least seconds of the largest tensor of the edge, from a device of one kind to another device
            of another or the same kind; inf if there are no two such devices.
        refined: whether `raised` is higher than `levels`.
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
    refined: bool = True

    @classmethod
    def of(cls, problem: Problem, refined: bool = True) -> Relaxation:
        graph, cluster = problem.graph, problem.cluster
        kind_of = cluster.kind_of
        key, edge = np.unique(
            graph.edge_op.astype(np.int64) * graph.n + graph.tensor_producer[graph.input_tensor], return_inverse=True
        )
        if len(key) * (int(kind_of.max()) + 1) ** 2 > LARGEST:
            kind_of = np.zeros_like(kind_of)
        kinds = int(kind_of.max()) + 1
        bytes_ = np.zeros(len(key))
        np.maximum.at(bytes_, edge, graph.tensor_bytes[graph.input_tensor].astype(np.float64))
        allowed = problem.expand(_may_fit(problem).T).T
        on_device = np.where(allowed, problem.op_s, np.inf)
        seconds, streams, memory = np.full((graph.n, kinds), np.inf), np.zeros(kinds), np.zeros(kinds)
        transfer_s = np.full((len(key), kinds, kinds), np.inf)
        routes, size = cluster.routes, cluster.size
        for a in range(kinds):
            members = np.flatnonzero(kind_of == a)
            seconds[:, a] = on_device[:, members].min(axis=1, initial=np.inf)
            streams[a] = cluster.streams[members].max()
            memory[a] = cluster.memory_bytes[members].max()
            for b in range(kinds):
                pair = (kind_of[:, None] == a) & (kind_of == b) & ~np.eye(size, dtype=np.bool_)
                ways = np.unique(np.column_stack([routes.latency_s[pair], routes.s_per_byte[pair]]), axis=0)
                for latency_s, s_per_byte in ways:
                    transfer_s[:, a, b] = np.minimum(transfer_s[:, a, b], latency_s + bytes_ * s_per_byte)
        devices = np.bincount(kind_of, minlength=kinds).astype(np.int64)
        _, first = np.unique(problem.grouping.group_of, return_index=True)
        together = first.astype(np.int64)[problem.grouping.group_of]
        for a in np.flatnonzero(devices == 1).tolist():
            only = np.flatnonzero(np.isfinite(seconds[:, a]) & (np.isfinite(seconds).sum(axis=1) == 1))
            if len(only):
                together[only] = only[0]
        return cls(
            problem=problem,
            seconds=seconds,
            devices=devices,
            streams=streams,
            memory=memory,
            cluster=together,
            producer=key % graph.n,
            consumer=key // graph.n,
            transfer_s=transfer_s,
            refined=refined,
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
    def everywhere(self) -> Places:
        """One place per kind."""
        return Places(np.arange(len(self.devices)), self.devices, -1)

    @cached_property
    def prices(self) -> Prices:
        """The best prices for the work of all groups, if memory is left out."""
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
    def levels(self) -> tuple[Floats, Floats]:
        """Heads and tails, [n, K]: see `makespan.communication_bound`."""
        return Levels.start(self, self.everywhere, self.cluster, plain=True).raise_all()

    @cached_property
    def around(self) -> Surroundings | None:
        """The places around one device; None if the tables would be too large, or there is nothing to raise.

        :meta private:
        """
        kinds, edges = len(self.devices), len(self.producer)
        if not self.refined or not edges or kinds * edges * (1 + kinds) ** 2 > LARGEST_AROUND:
            return None
        return Surroundings.of(self)

    @cached_property
    def detours(self) -> Pairs:
        """The pairs of `makespan.detour_bound`.

        :meta private:
        """
        return Pairs.none(len(self.devices)) if self.around is None else Pairs.of(self, self.around)

    @cached_property
    def raised(self) -> tuple[Floats, Floats]:
        """Heads and tails, [n, K]: `levels`, raised as in `makespan.detour_bound` and `makespan.tree_bound`."""
        return self.levels if self.around is None else raised(self, self.around, self.detours, trees=True)

    @cached_property
    def orders(self) -> tuple[Order, Order]:
        """The graph forwards and backwards, in the order of heads and of tails."""
        topological = np.empty(self.n, np.int64)
        topological[self.problem.graph.topological_order] = np.arange(self.n)
        return Order.of(self, topological, False), Order.of(self, -topological, True)


@dataclass(frozen=True, eq=False)
class Places:
    """P sets of like devices, which together are all devices. See kernel.py.

    Attributes:
        kind: [P] kind of each.
        devices: [P] devices in each, at least 1.
        main: 0 if the first is the device of one cluster, else -1.
    """

    kind: Ints
    devices: Ints
    main: int

    @classmethod
    def around(cls, kind: int, devices: Ints) -> Places:
        """One device of `kind`, and the others by their kinds."""
        left = devices - (np.arange(len(devices)) == kind)
        some = np.flatnonzero(left)
        return cls(np.concatenate([[kind], some]), np.concatenate([[1], left[some]]), 0)

    def transfer_s(self, transfer_s: Floats) -> Floats:
        """[e, P, P] from [e, K, K]."""
        table = transfer_s[:, self.kind[:, None], self.kind]
        alone = np.flatnonzero(self.devices == 1)
        table[:, alone, alone] = np.inf
        return np.ascontiguousarray(table)


@dataclass(frozen=True, eq=False)
class Order:
    """The graph in one direction: rows (`ptr`, `other`) of what an operation waits for, `edge`: the numbers of these edges."""

    ptr: Ints
    other: Ints
    edge: Ints
    order: Ints
    position: Ints
    reach: NDArray[np.uint64]

    @classmethod
    def of(cls, relaxation: Relaxation, topological: Ints, backwards: bool) -> Order:
        """`topological` [n]: positions in a topological order, which decide ties of heads without communication."""
        from placekit_scheduling.bounds import kernel
        from placekit_scheduling.list_scheduling.levels import b_level, t_level

        problem, n = relaxation.problem, relaxation.n
        waits, other = relaxation.consumer, relaxation.producer
        level = t_level(problem, "min", communication=0.0)
        if backwards:
            waits, other = other, waits
            level = np.zeros(n)  # not b-levels less costs: rounding would put operations before what they wait for
            np.maximum.at(level, waits, b_level(problem, "min", communication=0.0)[other])
        edge = np.lexsort((other, waits))
        ptr = np.searchsorted(waits[edge], np.arange(n + 1)).astype(np.int64)
        order = np.lexsort((topological, level)).astype(np.int64)
        position = np.empty(n, np.int64)
        position[order] = np.arange(n)
        reach = kernel.reach_back(order, position, ptr, other[edge], WORDS)
        return cls(ptr, other[edge], edge, order, position, reach)

    def before(self, cluster: Ints) -> Ints:
        """[n] the operation of the same cluster that comes last before each, -1 if there is none."""
        by_cluster = self.order[np.argsort(cluster[self.order], kind="stable")]
        same = np.flatnonzero(cluster[by_cluster[1:]] == cluster[by_cluster[:-1]])
        result = np.full(len(cluster), -1, np.int64)
        result[by_cluster[same + 1]] = by_cluster[same]
        return result

    def before_any(self, members: Flags) -> Ints:
        """[n] the operation of `members` that comes last before each, -1 if there is none."""
        last = np.maximum.accumulate(np.where(members[self.order], self.position[self.order], -1))[:-1]
        result = np.full(len(members), -1, np.int64)
        result[self.order[1:]] = np.where(last >= 0, self.order[last], -1)
        return result


@dataclass(eq=False)
class Levels:
    """Heads and tails [n, P] at some places, and what may be where: raised and restricted step by step.

    Attributes:
        seconds: [n, P] of each operation at each place.
        possible: [n, P] whether it may be there.
        cluster: [n] one operation of each one's cluster, the same for all members; a cluster is on one device.
        center: an operation of the main cluster.
    """

    relaxation: Relaxation
    places: Places
    seconds: Floats
    transfer_s: Floats
    possible: Flags
    cluster: Ints
    head: Floats
    tail: Floats
    center: int = 0

    @classmethod
    def start(
        cls, relaxation: Relaxation, places: Places, cluster: Ints, center: int = 0, plain: bool = False
    ) -> Levels:
        """Before anything is raised: from `relaxation.raised`, or from nothing if `plain`."""
        seconds = np.ascontiguousarray(relaxation.seconds[:, places.kind])
        table = places.transfer_s(relaxation.transfer_s)
        nothing = np.zeros_like(relaxation.seconds)
        levels = relaxation.raised if relaxation.refined and not plain else (nothing, nothing)
        head, tail = (np.ascontiguousarray(level[:, places.kind]) for level in levels)
        return cls(
            relaxation=relaxation,
            places=places,
            seconds=seconds,
            transfer_s=table,
            possible=np.isfinite(seconds + head + tail),
            cluster=cluster.copy(),
            head=np.where(np.isfinite(head), head, 0.0),
            tail=np.where(np.isfinite(tail), tail, 0.0),
            center=center,
        )

    def raise_all(self) -> tuple[Floats, Floats]:
        """One pass over heads and one over tails. Returns both, with inf where an operation cannot be."""
        from placekit_scheduling.bounds import kernel

        streams = np.ascontiguousarray(self.relaxation.streams[self.places.kind])
        for order, level, backwards in zip(self.relaxation.orders, (self.head, self.tail), (False, True), strict=True):
            table = self.transfer_s[order.edge]
            if backwards:
                table = np.ascontiguousarray(table.transpose(0, 2, 1))
            main = (
                self.cluster == self.cluster[self.center] if self.places.main == 0 else np.zeros(len(level), np.bool_)
            )
            kernel.raise_heads(
                order.order, order.position, order.ptr, order.other, table, self.seconds, streams, self.cluster,
                self.places.main, order.before(self.cluster), order.before_any(main), order.reach, self.possible, level,
            )  # fmt: skip
        return np.where(self.possible, self.head, np.inf), np.where(self.possible, self.tail, np.inf)


def _may_fit(problem: Problem) -> Flags:
    """[g, D] where a group may run and the device has enough memory for each single one of its operations.

    While an operation runs its device holds the persistent bytes of its group, what the operation writes and, either at
    home or as copies, what it reads of other kernels. Where no device is left for a group, nothing fits, and any bound
    holds: then memory is left out.
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


def longest_window(head: Floats, tail: Floats, work: Floats, capacity: float = 1.0) -> float:
    """The highest of h + work / capacity + q over sets of all rows with head >= h and tail >= q; see `makespan.window_bound`.

    If there are many values of h or q, THRESHOLDS of them are tried. 0 without rows.
    """
    return best_window(head, tail, work, capacity)[0]


def best_window(head: Floats, tail: Floats, work: Floats, capacity: float = 1.0) -> tuple[float, float, float]:
    """`longest_window`, with its h and q."""
    if not len(head):
        return 0.0, 0.0, 0.0
    h, q = _thresholds(head), _thresholds(tail)
    # total[i, j]: work with i thresholds at or below the head, j at or below the tail
    cell = (np.searchsorted(h, head, "right") - 1) * len(q) + np.searchsorted(q, tail, "right") - 1
    shape = len(h), len(q)
    inside = _from_end(np.bincount(cell, work, minlength=len(h) * len(q)).reshape(shape))
    some = _from_end(np.bincount(cell, minlength=len(h) * len(q)).reshape(shape)) > 0
    long = np.where(some, h[:, None] + inside / capacity + q, 0.0)  # an empty set proves nothing
    i, j = np.unravel_index(int(long.argmax()), shape)
    return float(long[i, j]), float(h[i]), float(q[j])


def _from_end(table: NDArray[np.generic]) -> Floats:
    return np.asarray(table[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1], np.float64)


def _thresholds(values: Floats) -> Floats:
    """Up to THRESHOLDS of the distinct values, the least among them."""
    distinct = np.unique(values)
    if len(distinct) <= THRESHOLDS:
        return distinct
    return distinct[np.unique(np.linspace(0, len(distinct) - 1, THRESHOLDS).astype(np.int64))]
