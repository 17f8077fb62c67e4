"""Packs one problem under one set of rules into two flat arrays for the compiled kernel, laid out by `layout.FIELDS`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling import Kernel, Trace, Trial
from placekit_scheduling.fields import Layout, lay_out
from placekit_scheduling.heaps import NEAR, SPAN

from placekit_core import UNLIMITED, Graph, Problem, Routes
from placekit_sim.compiled_variants import compiled
from placekit_sim.layout import FIELDS
from placekit_sim.rules import Rules
from placekit_sim.snapshots import row_length

SNAPSHOTS = 16  # most snapshots of a run
SNAPSHOT_INTS = 2**23  # most integers in all of them: for large problems there are fewer snapshots, or none
_SHARED = ("snapshot_count", "snapshot_s", "snapshot_ints", "snapshot_floats", "snapshot_keys")


@dataclass(frozen=True, eq=False)
class Packed:
    """Arguments of the kernel, and where a recorded run leaves its results.

    Attributes:
        variant: which kernel it is for, see `compiled_variants.compiled`.
        layout: as in `placekit_scheduling.Kernel`.
        tasks: n + e, enough for all operations and all received copies.
    """

    variant: str
    layout: Layout
    tasks: int

    @property
    def rounds(self) -> int:
        """Index in the integer scratch where the recorded rounds begin, in which the tasks started."""
        return self.layout.begin["rounds"]

    @property
    def trace(self) -> Trace:
        """Where a recorded run stores when and why everything started."""
        begin = self.layout.begin
        names = ("times", "cause", "last", "copies", "copy_tensor", "copy_dst")
        return Trace(tasks=self.tasks, **{name: begin[name] for name in names})

    def kernel(self, trace: Trace | None = None, trial: Packed | None = None) -> Kernel:
        """The compiled evaluation; `trial` was packed after this one."""
        o = self.layout
        made = Kernel(compiled(self.variant), o.ints, o.floats, o.scratch_ints, o.scratch_floats, trace)
        if trial is None:
            return made
        t, shared, variant = trial.layout, o.begin, trial.variant

        @cache
        def faster() -> Trial:
            return Trial(
                function=compiled(variant),
                ints=t.ints,
                floats=t.floats,
                go_on=t.begin["go_on"],
                kernel_go_on=shared["go_on"],
                limit_s=t.begin["limit_s"],
                worked=t.begin["worked"],
                marks=shared["snapshot_count"],
                mark_s=shared["snapshot_s"],
            )

        return replace(made, scratch_ints=t.scratch_ints, scratch_floats=t.scratch_floats, trial=faster)


@dataclass(frozen=True, eq=False)
class _Queues:
    """The queues in which tasks wait: one per device, then one per set of channels that a route holds.

    A channel queue that shares no channel with another one works like a device that runs `capacity` tasks at a time. Queues
    from `first_shared` on compete for channels.
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
    """The queues of a machine. With `compete`, all channel queues count as competing, so that one order holds among them."""
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


def pack(
    problem: Problem,
    rules: Rules,
    track_memory: bool = True,
    record: bool = False,
    snapshots: bool = False,
    after: Packed | None = None,
) -> Packed:
    """The arrays for `compiled_variants.compiled`.

    Args:
        problem, rules: what is simulated.
        track_memory: False leaves the persistent bytes as the peak (for benchmarks).
        record: also write the time of every event into the scratch space; see `recording.record`.
        snapshots: save snapshots during a run, where the machine is a plain one; see `snapshots`.
        after: pack for trials, in the working arrays of this kernel, which saves snapshots.
    """
    queues = _queues(problem.cluster.streams, problem.cluster.routes, rules.arrival)
    arrays = _arrays(problem, rules, queues)
    numbers = _numbers(problem, rules, arrays)
    plain = not any(numbers[name] for name in ("multicast", "bulk", "noisy", "ahead", "arrival"))
    variant = "trial" if after is not None else "recorded" if record else "plain"
    numbers |= {"first_shared": queues.first_shared, "memory": track_memory, "record": record}
    numbers |= {"resumes": plain and (snapshots or after is not None), "limited": after is not None}
    numbers |= _snapshots(numbers)
    if after is not None:
        arrays |= _limits(problem)
    tasks, ends = numbers["tasks"], numbers["n_queues"] + numbers["n_channels"]
    recorded = {"recorded_tasks": tasks, "recorded_ends": ends, "recorded_times": 2 * tasks, "recorded_one": 1}
    sizes = {**numbers, **{name: size if record else 0 for name, size in recorded.items()}, "one": 1, "span": SPAN}
    ahead = {"n_if_ahead": problem.graph.n, "e_if_ahead": problem.graph.e}
    sizes |= {name: size if numbers["window"] else 0 for name, size in ahead.items()}
    sizes["tasks_if_arrival"] = tasks if numbers["arrival"] else 0
    sizes["n_if_limited"] = problem.graph.n if numbers["limited"] else 0
    sizes["rows"] = (int(arrays["read_row"].max(initial=-1)) + 1) * problem.cluster.size
    for name in ("row_ints", "row_floats"):
        sizes[f"all_{name}"] = numbers["snapshots"] * numbers[name]
    sizes["all_keys"] = numbers["snapshots"] * tasks
    base = None if after is None else after.layout
    return Packed(variant if plain else "any", lay_out(FIELDS, numbers, arrays, sizes, base, _SHARED), tasks)


def _snapshots(numbers: Mapping[str, int]) -> dict[str, int]:
    """How many snapshots a run saves, every how many operations, and the lengths of their rows."""
    row = row_length(numbers)
    count = min(SNAPSHOTS, SNAPSHOT_INTS // row) if numbers["resumes"] else 0
    kernels = numbers["n"] - numbers["n_sources"]
    return {
        "snapshots": count,
        "snapshot_every": max(1, -(-kernels // (count + 1))),
        "row_ints": row,
        "row_floats": 3 * numbers["size"] + NEAR,
    }


def _limits(problem: Problem) -> dict[str, NDArray[Any]]:
    """Arrays for ending a run early: for a lower bound on its value, and how many bytes groups may keep so that any run fits."""
    graph, cluster = problem.graph, problem.cluster
    most = float(graph.owned_bytes.sum()) + float(graph.tensor_bytes.sum())  # all outputs and a copy of everything
    return {
        "latest_first": graph.topological_order[::-1][graph.kernel[graph.topological_order[::-1]]],
        "per_stream": 1.0 / cluster.streams,
        "room": cluster.memory_bytes.astype(np.float64) - most,
    }


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
    """The edges from sources, in the topological order of the operations that read; those of one operation in its order."""
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
        "sources": np.flatnonzero(~graph.kernel),
        "roots": kernels[np.diff(graph.input_ptr)[kernels] == 0],
        "fixed_rank": np.zeros(0, np.int32) if rules.rank is None else rules.rank,
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
        **dict.fromkeys(("latest_first", "per_stream", "room"), np.zeros(0)),
        "noise": np.zeros(0) if rules.transfer_factor is None else rules.transfer_factor,
    }
