"""The bytes that groups exchange, as an undirected graph for methods that weigh cut edges, and the seconds of transfers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placekit_core import Problem


@dataclass(frozen=True, eq=False)
class Exchange:
    """The undirected graph of the groups, without loops, in compressed rows; each of its m edges is an entry of both its ends.

    Attributes:
        ptr: [g + 1] the neighbours of group i are at `ptr[i] : ptr[i + 1]`, ascending.
        neighbour: [2m] group at the other end.
        bytes_: [2m] bytes that the two exchange in either direction.
    """

    ptr: NDArray[np.int64]
    neighbour: NDArray[np.int64]
    bytes_: NDArray[np.int64]

    @classmethod
    def of(cls, problem: Problem) -> Exchange:
        """The exchange between the groups of `problem`, by its quotient graph."""
        graph = problem.grouped
        u, v = graph.tensor_producer[graph.input_tensor].astype(np.int64), graph.edge_op.astype(np.int64)
        return cls.from_edges(problem.g, u, v, graph.tensor_bytes[graph.input_tensor])

    @classmethod
    def from_edges(cls, g: int, u: NDArray[np.int64], v: NDArray[np.int64], bytes_: NDArray[np.int64]) -> Exchange:
        """The graph of g groups with edges u[i] -- v[i], each pair once, no loops."""
        source, target = np.concatenate([u, v]), np.concatenate([v, u])
        order = np.lexsort((target, source))
        ptr = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=g))])
        return cls(ptr, target[order], np.concatenate([bytes_, bytes_])[order])

    @property
    def source(self) -> NDArray[np.int64]:
        """[2m] group that each entry belongs to."""
        return np.repeat(np.arange(len(self.ptr) - 1), np.diff(self.ptr))

    def among(self, groups: NDArray[np.int64]) -> Exchange:
        """The graph of these groups alone, numbered as in `groups` (ascending)."""
        index = np.full(len(self.ptr) - 1, -1)
        index[groups] = np.arange(len(groups))
        u, v = index[self.source], index[self.neighbour]
        once = (u >= 0) & (v > u)
        return self.from_edges(len(groups), u[once], v[once], self.bytes_[once])

    def merged(self, unit: NDArray[np.int64], count: int) -> Exchange:
        """The graph of `count` units; `unit` [g] is the unit of each group."""
        u, v = unit[self.source], unit[self.neighbour]
        once = u < v
        key, row = np.unique(u[once] * count + v[once], return_inverse=True)
        bytes_ = np.bincount(row, self.bytes_[once], minlength=len(key)).astype(np.int64)
        return self.from_edges(count, key // count, key % count, bytes_)

    def to_devices(self, problem: Problem, device: NDArray[np.int16]) -> NDArray[np.float64]:
        """[g, D] bytes that each group exchanges with the groups on each device."""
        size = problem.cluster.size
        bytes_ = np.bincount(self.source * size + device[self.neighbour], self.bytes_, problem.g * size)
        return np.asarray(bytes_.reshape(problem.g, size), np.float64)

    def to_devices_of(self, problem: Problem, device: NDArray[np.int16], group: int) -> NDArray[np.float64]:
        """[D] `to_devices` for one group, whose neighbours may not be placed yet (-1)."""
        row = slice(self.ptr[group], self.ptr[group + 1])
        at = device[self.neighbour[row]]
        return np.asarray(np.bincount(at[at >= 0], self.bytes_[row][at >= 0], problem.cluster.size), np.float64)


def mean_s_per_byte(problem: Problem) -> NDArray[np.float64]:
    """[D, D] seconds per byte between two devices, the mean of the two directions; 0 on the diagonal."""
    s_per_byte = problem.cluster.routes.s_per_byte
    return np.asarray((s_per_byte + s_per_byte.T) / 2)


@dataclass(frozen=True, eq=False)
class Transfers:
    """Estimates the seconds of transfers between groups: latency and bytes / bandwidth of each, as means of both directions.

    A tensor is sent once to each other group that reads it, even if these groups share a device.

    Attributes:
        problem: the problem with these groups and devices.
        bytes_: the graph of the groups, by the bytes that they exchange.
        tensors: the same graph by the number of tensors: its `bytes_` are these numbers, not bytes.
    """

    problem: Problem
    bytes_: Exchange
    tensors: Exchange

    @classmethod
    def of(cls, problem: Problem) -> Transfers:
        """The transfers of `problem`."""
        graph, group, g = problem.graph, problem.grouping.group_of.astype(np.int64), max(problem.g, 1)
        sent = np.unique(graph.input_tensor.astype(np.int64) * g + group[graph.edge_op])  # each tensor once per group
        source, to = group[graph.tensor_producer[sent // g]], sent % g
        low, high = np.minimum(source, to), np.maximum(source, to)
        pair, count = np.unique((low * g + high)[low < high], return_counts=True)
        return cls(problem, Exchange.of(problem), Exchange.from_edges(problem.g, pair // g, pair % g, count))

    def seconds(self, device: NDArray[np.int16], bytes_: NDArray[np.float64]) -> NDArray[np.float64]:
        """[g, D] seconds of the transfers of each group if it were on each device, and all others as in `device`.

        `bytes_`: [g, D] bytes that each group exchanges with each device: `self.bytes_.to_devices(problem, device)`.
        """
        latency_s, s_per_byte = self._costs
        return bytes_ @ s_per_byte + self.tensors.to_devices(self.problem, device) @ latency_s

    def seconds_of(self, device: NDArray[np.int16], group: int) -> NDArray[np.float64]:
        """[D] `seconds` for one group, whose neighbours may not be placed yet (-1)."""
        latency_s, s_per_byte = self._costs
        return (
            self.bytes_.to_devices_of(self.problem, device, group) @ s_per_byte
            + self.tensors.to_devices_of(self.problem, device, group) @ latency_s
        )

    @cached_property
    def _costs(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """[D, D] latency in seconds and seconds per byte between two devices; 0 on the diagonal."""
        latency_s = self.problem.cluster.routes.latency_s
        return (latency_s + latency_s.T) / 2, mean_s_per_byte(self.problem)
