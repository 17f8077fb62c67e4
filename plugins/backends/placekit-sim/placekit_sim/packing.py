"""One problem under one set of rules as two flat arrays: what the compiled kernel reads.

The integers begin with numbers about the problem, followed by where each array begins (in the integers, the floats, the
two scratch arrays), in the order in which kernel.py takes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placekit_core.cluster import UNLIMITED, Routes
from placekit_core.measurement import Trace
from placekit_core.problem import Problem
from placekit_sim.rules import Rules

OFFSETS, HEADER = 20, 84  # where the offsets begin in the integers, and where the arrays do


@dataclass(frozen=True, eq=False)
class Packed:
    """Arguments of the kernel, and where a recorded run leaves its results.

    Attributes:
        ints, floats, scratch_ints, scratch_floats: as of `placekit_core.measurement.Kernel`.
        tasks: n + e, room for all operations and all received copies.
        recorded: where the recorded times begin in the float scratch: starts of all tasks, then their ends.
        first_copy: where the first received copy of each tensor is noted in the integer scratch.
        trace: where a recorded run leaves why everything started when it did.
    """

    ints: NDArray[np.int32]
    floats: NDArray[np.float64]
    scratch_ints: int
    scratch_floats: int
    tasks: int
    recorded: int
    first_copy: int
    trace: Trace


@dataclass(frozen=True, eq=False)
class _Queues:
    """What tasks wait for, as queues: one per device, then one per set of channels that some route holds.

    The first kind of channel queues is simple: no other queue holds any of its channels, so that it is no different from
    a device that runs `capacity` tasks at a time. The second kind, from `first_shared`, competes for channels.
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


def _queues(streams: NDArray[np.int32], routes: Routes) -> _Queues:
    size = len(streams)
    held = [tuple(sorted(routes.channel[routes.ptr[r] : routes.ptr[r + 1]].tolist())) for r in range(size * size)]
    sets = sorted({held[r] for r in range(size * size) if r // size != r % size})
    users = [[s for s in sets if c in s] for c in range(len(routes.channels))]
    simple = [s for s in sets if all(len(users[c]) == 1 for c in s)]
    shared = [s for s in sets if all(s != x for x in simple)]
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


def pack(problem: Problem, rules: Rules, track_memory: bool = True, record: bool = False) -> Packed:
    """The arrays for `kernel.simulate`.

    `track_memory` False leaves the persistent bytes as the peak (for benchmarks); `record` True also writes the time of
    every event into the scratch (see `kernel.record`).
    """
    graph, cluster, routes = problem.graph, problem.cluster, problem.cluster.routes
    n, t, e, size = graph.n, graph.t, graph.e, cluster.size
    queues = _queues(cluster.streams, routes)
    levels: list[list[int]] = []
    kernels = np.flatnonzero(graph.kernel)
    if rules.bulk and len(kernels):
        depth = graph.depth[kernels]
        levels = [kernels[depth == i].tolist() for i in range(int(depth.max()) + 1)]
    sources = np.flatnonzero(~graph.kernel)
    roots = kernels[np.diff(graph.input_ptr)[kernels] == 0]
    rank = rules.rank if rules.rank is not None else np.zeros(0, np.int32)
    order = 2 if rules.use_priority else 1 if rules.rank is not None else 0

    home_bytes = graph.owned_bytes.astype(np.float64)
    op_bytes = np.bincount(graph.tensor_producer, home_bytes, minlength=n)
    unread = np.ones(t, np.bool_)
    unread[graph.tensor_storage[graph.input_tensor]] = False
    unread_bytes = np.bincount(graph.tensor_producer, np.where(unread, home_bytes, 0.0), minlength=n)
    noise = np.zeros(0) if rules.transfer_factor is None else rules.transfer_factor.ravel()

    ints: list[NDArray[Any]] = [
        problem.grouping.group_of, np.diff(graph.input_ptr), graph.output_ptr, graph.input_ptr,
        graph.input_tensor, graph.consumer_ptr, graph.consumer_op, graph.tensor_storage,
        sources, roots, rank, _pointer(levels), _flat(levels),
        queues.capacity, queues.of_route, queues.held_ptr, queues.held, routes.capacity, queues.user_ptr, queues.user,
    ]  # fmt: skip
    floats: list[NDArray[Any]] = [
        rules.op_s(problem).ravel(), graph.tensor_bytes, home_bytes, op_bytes, unread_bytes,
        problem.group_persistent_bytes, routes.latency_s.ravel(), routes.s_per_byte.ravel(), noise,
    ]  # fmt: skip
    tasks, q, channels = n + e, len(queues.capacity), len(routes.channels)
    scratch_ints = [n] * 5 + [t] * 4 + [e] * 3 + [tasks] * 4 + [q] * 6 + [channels] + [size] * 3
    scratch_ints += [tasks, tasks, q + channels + 2] if record else [0, 0, 0]
    scratch_floats = [tasks, tasks, size, 2 * tasks if record else 0]
    header = [
        n, t, tasks, size, problem.g, len(queues.capacity), queues.first_shared, len(routes.channels),
        len(sources), len(roots), order, track_memory, cluster.multicast, rules.bulk, len(levels), len(noise), record,
    ]  # fmt: skip
    working = _starts(scratch_ints)
    offsets = [
        *_starts([len(a) for a in ints], HEADER), *_starts([len(a) for a in floats]),
        *working, *_starts(scratch_floats),
    ]  # fmt: skip
    first = np.zeros(HEADER, np.int32)
    first[: len(header)] = header
    first[OFFSETS : OFFSETS + len(offsets)] = offsets
    return Packed(
        ints=np.concatenate([first, *ints]).astype(np.int32),
        floats=np.concatenate(floats).astype(np.float64),
        scratch_ints=sum(scratch_ints),
        scratch_floats=sum(scratch_floats),
        tasks=tasks,
        recorded=sum(scratch_floats[:3]),
        first_copy=working[7],
        trace=Trace(
            tasks=tasks,
            cause=working[26],
            last=working[28] + q + channels,
            copies=working[28] + q + channels + 1,
            copy_tensor=working[9],
            copy_dst=working[10],
            times=sum(scratch_floats[:3]),
        ),
    )


def _starts(sizes: list[int], first: int = 0) -> list[int]:
    return [first + x for x in (0, *accumulate(sizes[:-1]))]
