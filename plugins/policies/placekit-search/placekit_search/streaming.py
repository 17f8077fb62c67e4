"""Starts for backends that stream parameters: copy them from other devices shortly before use (`Session.prefetch`)."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray
from placekit_layers import sequence
from placekit_scheduling import b_level, group_priority

from placekit_core import PHASES, Graph, Placements, Problem

LEVELS = (1.0, 0.9, 0.7, 0.0)  # shares of a device's memory, without activations and copies, to fill with parameters
MOST_DEVICES = 4  # most devices that compute in a start

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def streamed(problem: Problem, prefetch: int, count: int) -> Placements:
    """At most `count` starts: the fastest 1, 2, ... devices compute, and parameters that do not fit there are elsewhere.

    Several devices compute contiguous blocks, in proportion to their memory. The parameters that stay on a device are spread
    evenly over the order of use, so that copies and operations overlap. In some starts, an operation moves to its remote
    parameters if it is faster there than the copies would be.
    """
    finder = _ParameterHomes(problem, prefetch)
    seconds = np.where(problem.allowed, problem.group_s, 1e3 * problem.group_s.max(initial=0.0))[finder.works]
    fastest = np.argsort(seconds.sum(axis=0), kind="stable")[:MOST_DEVICES]
    computing = [_compute_devices(problem, fastest[:k]) for k in range(1, len(fastest) + 1)]
    ways = product(range(len(LEVELS)), range(2), range(len(computing)))
    chosen = sorted(ways, key=lambda way: (sum(way), way))[:count]
    rows = [finder.homes(computing[k], LEVELS[level], bool(cheaper)) for level, cheaper, k in chosen]
    device = np.stack(rows) if rows else np.empty((0, problem.g), np.int16)
    return Placements.of(device, np.broadcast_to(group_priority(problem, b_level(problem)), device.shape))


def _compute_devices(problem: Problem, devices: Ints) -> Ints:
    """[g] devices of groups that compute: contiguous blocks on `devices`, in proportion to memory, where this is allowed."""
    device = np.full(problem.g, devices[0])
    if len(devices) > 1:
        blocks, share = sequence(problem), np.cumsum(problem.cluster.memory_bytes[devices].astype(np.float64))
        middle = np.cumsum(blocks.persistent_bytes) - blocks.persistent_bytes / 2
        stage = np.searchsorted(share / share[-1], middle / max(float(blocks.persistent_bytes.sum()), 1.0))
        device = devices[np.minimum(stage, len(devices) - 1)][blocks.of_group]
    best = np.where(problem.allowed, problem.group_s, np.inf).argmin(axis=1)
    return np.where(problem.allowed[np.arange(problem.g), device], device, best)


class _ParameterHomes:
    """Finds a device (home) for every group of parameters.

    Attributes:
        works: [g] whether a group computes. The others have only inputs, or parameters with their state and updates.
        reader: [g] for a group that does not compute, the first group that reads it and computes; -1 if there is none.
        parameters: the groups that do not compute, in the order in which they are read.
        reserved_bytes: bytes that a device needs besides its parameters: activations, and copies of other parameters.
    """

    def __init__(self, problem: Problem, prefetch: int) -> None:
        self.problem = problem
        graph, group = problem.graph, problem.grouping.group_of
        self.works = np.zeros(problem.g, np.bool_)
        self.works[group[graph.kernel & (graph.phase != PHASES.index("update"))]] = True
        position = np.empty(graph.n, np.int64)
        position[graph.topological_order] = np.arange(graph.n)
        reader, source = group[graph.edge_op], group[graph.tensor_producer[graph.input_tensor]]
        known = self.works[reader] & ~self.works[source]
        first = np.full(problem.g, graph.n)
        np.minimum.at(first, source[known], position[graph.edge_op[known]])
        self.reader = np.full(problem.g, -1, np.int64)
        read = np.flatnonzero(first < graph.n)
        self.reader[read] = group[graph.topological_order[first[read]]]
        parameters = np.flatnonzero(~self.works)
        self.parameters: Ints = parameters[np.argsort(first[parameters], kind="stable")]
        self.reserved_bytes = live_bytes(graph) + _copies(graph, position, prefetch + 1)

    def homes(self, computing: Ints, level: float, cheaper: bool) -> NDArray[np.int16]:
        """[g] devices of all groups: those that compute as in `computing` [g]; parameters with their readers if there is room.

        `level`: one of `LEVELS`. `cheaper`: move operations to their parameters if this is faster than copying these.
        """
        problem, works = self.problem, self.works
        device, bytes_, size = computing.copy(), problem.group_persistent_bytes, problem.cluster.size
        user = np.where(self.reader >= 0, device[self.reader], device)
        room = problem.cluster.memory_bytes.astype(np.float64)
        computes = np.unique(device[works])
        room[computes] = level * np.maximum(room[computes] - self.reserved_bytes, 0.0)
        room -= np.bincount(device[works], bytes_[works], minlength=size)
        total = np.bincount(user[self.parameters], bytes_[self.parameters], minlength=size)
        part = np.clip(room / np.maximum(total, 1.0), 0.0, 1.0)
        seen, kept, remote = np.zeros(size), np.zeros(size), []
        for g in self.parameters.tolist():
            d = int(user[g])
            seen[d] += bytes_[g]
            if problem.allowed[g, d] and kept[d] + bytes_[g] <= part[d] * seen[d]:
                kept[d] += bytes_[g]
                device[g] = d
            else:
                remote.append(g)
        self._place_remote(device, user, room - kept, remote)
        if cheaper:
            self._move_computation(device, user, remote)
        return device.astype(np.int16)

    def _place_remote(self, device: Ints, user: Ints, room: Floats, remote: list[int]) -> None:
        """Put each group of `remote`, the largest first, on the device nearest to its `user` [g] that has room."""
        problem, slow = self.problem, self.problem.cluster.routes.s_per_byte
        for g in sorted(remote, key=lambda g: (-problem.group_persistent_bytes[g], g)):
            others = problem.allowed[g] & (np.arange(len(room)) != user[g])
            others = others if others.any() else problem.allowed[g]
            fits = others & (room >= problem.group_persistent_bytes[g])
            cost = np.where(fits, slow[:, user[g]], np.inf) if fits.any() else np.where(others, -room, np.inf)
            device[g] = cost.argmin()
            room[device[g]] -= problem.group_persistent_bytes[g]

    def _move_computation(self, device: Ints, user: Ints, remote: list[int]) -> None:
        """Move groups that compute to their remote parameters if running them there is faster than copying the parameters."""
        problem, reads = self.problem, dict[int, list[int]]()
        for g in remote:
            if self.reader[g] >= 0:
                reads.setdefault(int(self.reader[g]), []).append(g)
        slow, bytes_ = problem.cluster.routes.s_per_byte, problem.group_persistent_bytes
        for r, own in reads.items():
            there = int(device[max(own, key=lambda g: (bytes_[g], -g))])
            copying = sum(bytes_[g] * slow[device[g], user[g]] for g in own)
            if problem.allowed[r, there] and problem.group_s[r, there] < copying:
                device[r] = there
        for g in self.parameters.tolist():  # the other parameters of a moved group follow it
            r = int(self.reader[g])
            if r >= 0 and device[r] != user[g] and problem.allowed[g, device[r]]:
                device[g] = device[r]


def live_bytes(graph: Graph) -> float:
    """The most bytes of outputs in use at the same time, if one device runs all operations in topological order."""
    position = np.empty(graph.n, np.int64)
    position[graph.topological_order] = np.arange(graph.n)
    ends = position[graph.tensor_producer].copy()
    np.maximum.at(ends, graph.input_tensor, position[graph.edge_op])
    last = np.zeros(graph.t, np.int64)
    np.maximum.at(last, graph.tensor_storage, ends)
    change = np.zeros(graph.n + 1)
    np.add.at(change, position[graph.tensor_producer], graph.owned_bytes)
    np.add.at(change, last + 1, -graph.owned_bytes)
    return float(np.cumsum(change).max(initial=0.0))


def _copies(graph: Graph, position: Ints, window: int) -> float:
    """The most bytes that `window` successive operations read from sources; operations that read no source are skipped."""
    edge = ~graph.kernel[graph.tensor_producer[graph.input_tensor]]
    bytes_ = np.bincount(position[graph.edge_op[edge]], graph.tensor_bytes[graph.input_tensor[edge]], graph.n)
    total = np.concatenate([[0.0], np.cumsum(bytes_[bytes_ > 0])])
    window = min(window, len(total) - 1)
    return float((total[window:] - total[: len(total) - window]).max(initial=0.0))
