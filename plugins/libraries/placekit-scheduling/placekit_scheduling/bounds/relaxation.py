"""A problem as makespan.py sees it: operations on kinds of devices, and the least seconds of transfers between kinds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from placekit_core import Problem
from placekit_scheduling.bounds.work import Prices, best_prices

THRESHOLDS = 256  # values of heads and of tails that windows begin and end at
LARGEST = 2**24  # entries of the table of transfers above which all kinds are treated as one

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
R = TypeVar("R", bound="Relaxation")


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
    def of(cls: type[R], problem: Problem) -> R:
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
        )

    @property
    def n(self) -> int:
        return len(self.seconds)

    @cached_property
    def kernels(self) -> Ints:
        """The operations that take time."""
        return np.flatnonzero(self.problem.graph.kernel)

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
        """Heads and tails [n, K] of `makespan.communication_bound`; inf where an operation cannot be."""
        from placekit_scheduling.bounds import head_loops

        possible, levels = np.isfinite(self.seconds), (np.zeros_like(self.seconds), np.zeros_like(self.seconds))
        for backwards, (order, level) in enumerate(zip(self.orders, levels, strict=True)):
            head_loops.raise_heads(
                order.order, order.ptr, order.other, order.by_edge(self.transfer_s, bool(backwards)), self.seconds,
                self.streams, self.cluster, possible, level,
            )  # fmt: skip
        head, tail = levels
        return np.where(possible, head, np.inf), np.where(possible, tail, np.inf)

    @cached_property
    def orders(self) -> tuple[Order, Order]:
        """The graph forwards and backwards, in the order of heads and of tails."""
        topological = np.empty(self.n, np.int64)
        topological[self.problem.graph.topological_order] = np.arange(self.n)
        return Order.of(self, topological, False), Order.of(self, -topological, True)


@dataclass(frozen=True, eq=False)
class Order:
    """The graph in one direction: rows (`ptr`, `other`) of what an operation waits for, `edge`: the numbers of these edges."""

    ptr: Ints
    other: Ints
    edge: Ints
    order: Ints
    position: Ints

    @classmethod
    def of(cls, relaxation: Relaxation, topological: Ints, backwards: bool) -> Order:
        """`topological` [n]: positions in a topological order, which decide ties of heads without communication."""
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
        return cls(ptr, other[edge], edge, order, position)

    def by_edge(self, transfer_s: Floats, backwards: bool) -> Floats:
        """[e, K, K] `transfer_s` in the order of `other`, and backwards in time if so."""
        table = transfer_s[self.edge]
        return np.ascontiguousarray(table.transpose(0, 2, 1)) if backwards else table


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


def longest_window(head: Floats, tail: Floats, work: Floats) -> float:
    """The highest of h + work + q over sets of all rows with head >= h and tail >= q; see `makespan.window_bound`.

    If there are many values of h or q, THRESHOLDS of them are tried. 0 without rows.
    """
    if not len(head):
        return 0.0
    h, q = _thresholds(head), _thresholds(tail)
    # total[i, j]: work with i thresholds at or below the head, j at or below the tail
    cell = (np.searchsorted(h, head, "right") - 1) * len(q) + np.searchsorted(q, tail, "right") - 1
    shape = len(h), len(q)
    inside = _from_end(np.bincount(cell, work, minlength=len(h) * len(q)).reshape(shape))
    some = _from_end(np.bincount(cell, minlength=len(h) * len(q)).reshape(shape)) > 0
    return float(np.where(some, h[:, None] + inside + q, 0.0).max())  # an empty set proves nothing


def _from_end(table: NDArray[np.generic]) -> Floats:
    return np.asarray(table[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1], np.float64)


def _thresholds(values: Floats) -> Floats:
    """Up to THRESHOLDS of the distinct values, the least among them."""
    distinct = np.unique(values)
    if len(distinct) <= THRESHOLDS:
        return distinct
    return distinct[np.unique(np.linspace(0, len(distinct) - 1, THRESHOLDS).astype(np.int64))]
