"""Packs a problem and rules into two flat arrays for the compiled kernel, as laid out in `layout.FIELDS`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling import Kernel, Trace
from placekit_scheduling.fields import Layout, lay_out
from placekit_scheduling.heaps import SPAN

from placekit_core import UNLIMITED, Graph, Problem, Routes, launches_of
from placekit_sim.compiled_variants import compiled, variant
from placekit_sim.layout import FIELDS
from placekit_sim.rules import Rules
from placekit_sim.ticks import in_ticks


@dataclass(frozen=True, eq=False)
class Packed:
    """Arguments of the kernel, and where it stores when and why each task started.

    Attributes:
        variant: name of the kernel, see `compiled_variants.compiled`.
        layout: the arrays, and where each of them begins.
        tasks: n + e, enough for all operations and all received copies.
    """

    variant: str
    layout: Layout
    tasks: int

    @property
    def rounds(self) -> int:
        """Where the round in which each task started is recorded: first index in the integer scratch."""
        return self.layout.begin["rounds"]

    @property
    def trace(self) -> Trace:
        """Where a run stores the time and cause of every start."""
        begin = self.layout.begin
        names = ("times", "cause", "last", "copies", "copy_tensor", "copy_dst")
        return Trace(tasks=self.tasks, **{name: begin[name] for name in names})

    def kernel(self, trace: Trace | None = None) -> Kernel:
        """The compiled evaluation."""
        o = self.layout
        return Kernel(compiled(self.variant), o.ints, o.floats, o.scratch_ints, o.scratch_floats, trace)


@dataclass(frozen=True, eq=False)
class _Queues:
    """The queues in which tasks wait: one per device, then one per set of channels of a route.

    A channel queue that shares no channel with another queue works like a device that runs `capacity` tasks at a time. The
    queues from `first_shared` on compete for channels.
    """

    capacity: NDArray[np.int32]
    first_shared: int
    of_route: NDArray[np.int32]
    held_ptr: NDArray[np.int32]
    held: NDArray[np.int32]
    user_ptr: NDArray[np.int32]
    user: NDArray[np.int32]


def _pointer(rows: list[list[int]]) -> NDArray[np.int32]:
    return np.cumsum([0, *map(len, rows)]).astype(np.int32)


def _flat(rows: list[list[int]]) -> NDArray[np.int32]:
    return np.asarray([x for row in rows for x in row], np.int32)


def _queues(streams: NDArray[np.int32], routes: Routes, compete: bool) -> _Queues:
    """The queues of a machine. With `compete`, all channel queues count as competing, so that they share one order."""
    size = len(streams)
    held = [tuple(sorted(routes.channel[routes.ptr[r] : routes.ptr[r + 1]].tolist())) for r in range(size * size)]
    sets = sorted({held[r] for r in range(size * size) if r // size != r % size})
    users = [[s for s in sets if c in s] for c in range(len(routes.channels))]
    simple = [s for s in sets if not compete and all(len(users[c]) == 1 for c in s)]
    shared = [s for s in sets if s not in simple]
    number = {s: size + i for i, s in enumerate(simple + shared)}
    capacity = [min((int(routes.capacity[c]) for c in s), default=UNLIMITED) for s in simple] + [0] * len(shared)
    user_rows = [[number[s] for s in u if s in shared] for u in users]
    return _Queues(
        capacity=np.concatenate([streams, capacity]).astype(np.int32),
        first_shared=size + len(simple),
        of_route=np.asarray([number.get(h, 0) for h in held], np.int32),
        held_ptr=_pointer([list(s) for s in shared]),
        held=_flat([list(s) for s in shared]),
        user_ptr=_pointer(user_rows),
        user=_flat(user_rows),
    )


def pack(problem: Problem, rules: Rules, track_memory: bool = True) -> Packed:
    """The arrays for `compiled_variants.compiled`.

    Args:
        problem, rules: what is simulated.
        track_memory: False simulates time only, and the peak is the persistent bytes (for benchmarks).
    """
    queues = _queues(problem.cluster.streams, problem.cluster.routes, rules.arrival)
    arrays = in_ticks(_arrays(problem, rules, queues))
    numbers = _numbers(problem, rules, arrays)
    numbers |= {"first_shared": queues.first_shared, "memory": track_memory}
    tasks, ends = numbers["tasks"], numbers["n_queues"] + numbers["n_channels"]
    sizes = {**numbers, "n_ends": ends, "n_times": 2 * tasks, "one": 1, "span": SPAN}
    ahead = {"n_if_ahead": problem.graph.n, "e_if_ahead": problem.graph.e}
    sizes |= {name: size if numbers["window"] else 0 for name, size in ahead.items()}
    sizes["n_if_hosted"] = problem.graph.n if numbers["hosted"] else 0
    sizes["tasks_if_arrival"] = tasks if numbers["arrival"] else 0
    sizes["rows"] = (int(arrays["read_row"].max(initial=-1)) + 1) * problem.cluster.size
    return Packed(variant(numbers), lay_out(FIELDS, numbers, arrays, sizes), tasks)


def _numbers(problem: Problem, rules: Rules, arrays: Mapping[str, NDArray[Any]]) -> dict[str, int]:
    """The numbers and flags of the problem."""
    graph = problem.graph
    return {
        "n": graph.n,
        "t": graph.t,
        "e": graph.e,
        "tasks": graph.n + graph.e,
        "size": problem.cluster.size,
        "g": problem.g,
        "n_queues": len(arrays["capacity"]),
        "n_channels": len(arrays["channel_capacity"]),
        "n_sources": len(arrays["sources"]),
        "n_roots": len(arrays["roots"]),
        "n_levels": len(arrays["level_ptr"]) - 1,
        "n_launched": len(arrays["launch_order"]),
        "hosted": problem.cluster.launchers.any,
        "order": 2 if rules.use_priority else 1 if rules.rank is not None else 0,
        "multicast": problem.cluster.multicast,
        "bulk": rules.bulk,
        "noisy": rules.transfer_factor is not None,
        "n_reads": len(arrays["read_op"]),
        "ahead": rules.prefetch is not None,
        "arrival": rules.arrival,
        "window": 0 if rules.prefetch is None else min(rules.prefetch, graph.n) + 1,
    }


def source_reads(graph: Graph) -> NDArray[np.int64]:
    """The edges from sources, in topological order of the operations that read them."""
    position = np.empty(graph.n, np.int64)
    position[graph.topological_order] = np.arange(graph.n)
    edge = np.flatnonzero(~graph.kernel[graph.tensor_producer[graph.input_tensor]])
    return edge[np.argsort(position[graph.edge_op[edge]], kind="stable")]


def _arrays(problem: Problem, rules: Rules, queues: _Queues) -> dict[str, NDArray[Any]]:
    """The arrays of the problem."""
    graph, routes = problem.graph, problem.cluster.routes
    kernels = np.flatnonzero(graph.kernel)
    levels: list[list[int]] = []
    if rules.bulk and len(kernels):
        depth = graph.depth[kernels]
        levels = [kernels[depth == i].tolist() for i in range(int(depth.max()) + 1)]
    home_bytes = graph.owned_bytes.astype(np.float64)
    unread = np.ones(graph.t, np.bool_)
    unread[graph.tensor_storage[graph.input_tensor]] = False
    unread_bytes = np.where(unread, home_bytes, 0.0)
    owner = graph.tensor_storage
    read = np.diff(graph.consumer_ptr) > 0
    in_place = (
        (graph.tensor_producer[owner] != graph.tensor_producer) & graph.kernel[graph.tensor_producer[owner]] & read
    )
    edge = np.zeros(0, np.int64) if rules.prefetch is None else source_reads(graph)
    return {
        "group_of": problem.grouping.group_of,
        "n_inputs": np.diff(graph.input_ptr),
        "output_ptr": graph.output_ptr,
        "input_ptr": graph.input_ptr,
        "input_tensor": graph.input_tensor,
        "consumer_ptr": graph.consumer_ptr,
        "consumer_op": graph.consumer_op,
        "storage": graph.tensor_storage,
        "in_place": in_place,
        "writers": np.bincount(owner[in_place], minlength=graph.t),
        "sources": np.flatnonzero(~graph.kernel),
        "roots": kernels[np.diff(graph.input_ptr)[kernels] == 0],
        "fixed_rank": np.zeros(0, np.int32) if rules.rank is None else rules.rank,
        **_launches(problem),
        "level_ptr": _pointer(levels),
        "level_op": _flat(levels),
        "read_op": graph.edge_op[edge],
        "read_edge": edge,
        "read_tensor": graph.input_tensor[edge],
        "read_source": graph.tensor_producer[graph.input_tensor[edge]],
        "read_row": np.unique(graph.input_tensor[edge], return_inverse=True)[1],
        "capacity": queues.capacity,
        "queue_of_route": queues.of_route,
        "held_ptr": queues.held_ptr,
        "held": queues.held,
        "channel_capacity": routes.capacity,
        "user_ptr": queues.user_ptr,
        "user": queues.user,
        "op_s": rules.op_s(problem),
        "tensor_bytes": graph.tensor_bytes,
        "home_bytes": home_bytes,
        "op_bytes": np.bincount(graph.tensor_producer, home_bytes, minlength=graph.n),
        "unread_bytes": np.bincount(graph.tensor_producer, unread_bytes, minlength=graph.n),
        "group_bytes": problem.group_persistent_bytes,
        "latency_s": routes.latency_s,
        "s_per_byte": routes.s_per_byte,
        "noise": np.zeros(0) if rules.transfer_factor is None else rules.transfer_factor,
    }


def _launches(problem: Problem) -> dict[str, NDArray[Any]]:
    """The arrays of the hosts."""
    graph, launchers = problem.graph, problem.cluster.launchers
    order = graph.topological_order[graph.kernel[graph.topological_order]]
    return {
        "launch_order": order, "host": launchers.host, "launches": launches_of(graph), "launch_s": launchers.launch_s
    }  # fmt: skip
