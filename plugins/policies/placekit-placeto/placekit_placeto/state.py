"""The state of an episode, and the per-device network's view of it: sums over the groups on each device, and a schedule.

Its loops are compiled, because each step makes only a few additions for each group.

Shapes: n episodes, T steps, g groups, D devices, H numbers of an embedding, e edges. Times are in units of the mean group's run
time.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling.jit import compiled

from placekit_core import Problem
from placekit_placeto.arrays import Episodes, Floats, Groups, Ints, Rules
from placekit_placeto.prepared import as_matrix, edges, edges_by_target, longest_paths, mean_seconds

SETS = 4
"""Sets of groups: ancestors of the current group, its descendants, other groups that were visited, and others that were not."""
NUMBERS = 7
"""Numbers of each device that the head sees besides the sums, without those of the schedule: see `observe`."""
TIMES = 2
"""Numbers of each device that the schedule adds."""
_BESIDE, _NONE = 2, -1  # of `View.role`


class View(NamedTuple):
    """The constants of a problem."""

    role: NDArray[np.int8]  # [g, g] row v: the set of each group when v is the current one, if it was visited; -1: none
    share: float  # factor on the sums
    pointer: Ints  # [2, g + 1] where the senders (0) and the receivers (1) of each group begin in `near`
    near: Ints  # [2, e]
    bytes: Floats  # [2, e] bytes from or to each of these
    time: Floats  # [g, D] of a group on a device; 0 where it is not allowed
    load: Floats  # [g, D] the same, over each device's share of the time of all groups
    memory: Floats  # [g, D] bytes that the group keeps, over those of the device
    s_per_byte: Floats  # [D, D] from, to
    latency: Floats  # [D, D]
    earliest_end: Floats  # [g] end of each group if transfers took no time and no device were busy
    allowed: NDArray[np.bool_]  # [g, D]


class State(NamedTuple):
    """The states of n episodes, each with a schedule. A visited group starts when its device is free and its inputs are there,
    in the order of visits. A group that was not visited yet ends as early as the graph allows; from the second visit on, when
    it ended in the visit before. Transfers do not wait for each other."""

    device: Ints  # [n, g] the placement
    visited: NDArray[np.bool_]  # [n, g]
    end: Floats  # [n, g] when each group ends
    free: Floats  # [n, D] when each device is free

    @classmethod
    def of(cls, view: View, start: NDArray[np.int16]) -> State:
        """The state before the first step; `start` [n, g] is the placement."""
        n, (g, devices) = len(start), view.time.shape
        return cls(
            start.astype(np.int64), np.zeros((n, g), np.bool_), np.tile(view.earliest_end, (n, 1)),
            np.zeros((n, devices), np.float32),
        )  # fmt: skip


def view_of(problem: Problem, groups: Groups, rules: Rules) -> View:
    """The arrays of a problem."""
    g, routes = problem.g, problem.cluster.routes
    role = np.full((g, g), _BESIDE, np.int8)
    for number, bits in enumerate((groups.before, groups.after)):
        role[as_matrix(bits, g)] = number
    np.fill_diagonal(role, _NONE)
    if rules.whole:
        role[:] = 0
    time_s = np.where(problem.allowed, problem.group_s, 0.0)
    own_s = mean_seconds(problem)
    mean_s = max(float(own_s.mean()), 1e-12)
    source, target, sent = edges(problem.grouped)
    sides = (edges_by_target(g, source, target), edges_by_target(g, target, source))
    return View(
        role=role,
        share=groups.pooled_share * problem.cluster.size,
        pointer=np.stack([pointer for pointer, _ in sides]),
        near=np.stack([x[order] for x, (_, order) in zip((source, target), sides, strict=True)]),
        bytes=_floats(np.stack([sent[order] for _, order in sides])),
        time=_floats(time_s / mean_s),
        load=_floats(time_s / max(float(own_s.sum()), 1e-12) * problem.cluster.size),
        memory=_floats(problem.group_persistent_bytes[:, None] / problem.cluster.memory_bytes[None, :]),
        s_per_byte=_floats(routes.s_per_byte / mean_s),
        latency=_floats(routes.latency_s / mean_s),
        earliest_end=_floats(longest_paths(problem.grouped, own_s)[0] / mean_s),
        allowed=np.ascontiguousarray(problem.allowed),
    )


@compiled
def begin_visit(s: State) -> None:
    """Begin to visit all groups (again): mark none as visited, and all devices as free."""
    s.visited[:] = False
    s.free[:] = 0.0


@compiled
def _set_of(view: View, v: int, u: int, visited: bool) -> Any:
    """The set (0 to SETS - 1) of group u when v is the current one; -1: none."""
    role = view.role[v, u]
    return role + 1 if role == _BESIDE and not visited else role


@compiled
def _start(view: View, s: State, i: int, v: int, d: int) -> Any:
    """When group v could start on device d, in episode i."""
    found = s.free[i, d]
    for k in range(view.pointer[0, v], view.pointer[0, v + 1]):
        u = view.near[0, k]
        on = s.device[i, u]
        found = max(found, s.end[i, u] + view.bytes[0, k] * view.s_per_byte[on, d] + view.latency[on, d])
    return found


@compiled
def observe(view: View, s: State, i: int, v: int, pooled: Floats, sums: Floats, numbers: Floats) -> None:
    """Compute the network's inputs before group v is placed in episode i: `sums` [SETS, D, H] of `pooled` [SETS, g, H] over the
    groups of each set on each device, and `numbers` [D, NUMBERS + TIMES].

    The numbers: whether v is on it now; log(1 + time) to send v's inputs there, and its outputs from there; log(1 + v's run
    time); run time of all groups on it but v, and of those visited; share of its memory in use, with v; log(1 + delay) of v's
    start and of its end, by the schedule, behind the best device.
    """
    devices, size = numbers.shape[0], pooled.shape[2]
    sums[:] = 0.0
    numbers[:] = 0.0
    for u in range(view.role.shape[0]):
        d = s.device[i, u]
        k = _set_of(view, v, u, s.visited[i, u])
        if k >= 0:
            for j in range(size):
                sums[k, d, j] += pooled[k, u, j]
        if u != v:
            numbers[d, 4] += view.load[u, d]
            if s.visited[i, u]:
                numbers[d, 5] += view.load[u, d]
            numbers[d, 6] += view.memory[u, d]
    for k in range(sums.shape[0]):
        for d in range(devices):
            for j in range(size):
                sums[k, d, j] *= view.share
    numbers[s.device[i, v], 0] = 1.0
    for side in range(2):
        for k in range(view.pointer[side, v], view.pointer[side, v + 1]):
            on, sent = s.device[i, view.near[side, k]], view.bytes[side, k]
            for d in range(devices):
                a, b = (on, d) if side == 0 else (d, on)
                numbers[d, 1 + side] += sent * view.s_per_byte[a, b] + view.latency[a, b]
    start, end = np.float32(np.inf), np.float32(np.inf)
    for d in range(devices):
        numbers[d, 7] = _start(view, s, i, v, d)
        numbers[d, 8] = numbers[d, 7] + view.time[v, d]
        if view.allowed[v, d]:
            start, end = min(start, numbers[d, 7]), min(end, numbers[d, 8])
    for d in range(devices):
        numbers[d, 1], numbers[d, 2] = np.log1p(numbers[d, 1]), np.log1p(numbers[d, 2])
        numbers[d, 3] = np.log1p(view.time[v, d])
        numbers[d, 6] += view.memory[v, d]
        numbers[d, 7] = np.log1p(max(numbers[d, 7] - start, np.float32(0.0)))
        numbers[d, 8] = np.log1p(max(numbers[d, 8] - end, np.float32(0.0)))


@compiled
def place(view: View, s: State, i: int, v: int, d: int) -> None:
    """Visit group v in episode i, and put it on device d."""
    s.end[i, v] = s.free[i, d] = _start(view, s, i, v, d) + view.time[v, d]
    s.device[i, v], s.visited[i, v] = d, True


@compiled
def observe_all(view: View, s: State, v: Any, pooled: Floats, sums: Floats, numbers: Floats) -> None:
    """`observe` in all episodes: v [n], `sums` [n, SETS, D, H], `numbers` [n, D, NUMBERS + TIMES]."""
    for i in range(len(v)):
        observe(view, s, i, v[i], pooled, sums[i], numbers[i])


@compiled
def place_all(view: View, s: State, v: Any, chosen: Ints) -> None:
    """`place` in all episodes: v and `chosen` [n]."""
    for i in range(len(v)):
        place(view, s, i, v[i], chosen[i])


@compiled
def replay(view: View, s: State, e: Episodes, pooled: Floats, sums: Floats, numbers: Floats) -> None:
    """`observe` at each step of episodes from the states `s`: fills `sums` [n, T, SETS, D, H] and `numbers` [n, T, ...]."""
    g = view.role.shape[0]
    for t in range(e.order.shape[1]):
        if t % g == 0:
            begin_visit(s)
        for i in range(len(e.order)):
            v = e.order[i, t]
            observe(view, s, i, v, pooled, sums[i, t], numbers[i, t])
            place(view, s, i, v, e.device[i, t])


@compiled
def replay_gradients(view: View, s: State, e: Episodes, sums_back: Floats, pooled_back: Floats) -> None:
    """The backward pass of `replay`: add gradients to `pooled_back` [SETS, g, H], given those of the sums."""
    g, size = view.role.shape[0], pooled_back.shape[2]
    for t in range(e.order.shape[1]):
        if t % g == 0:
            begin_visit(s)
        for i in range(len(e.order)):
            v = e.order[i, t]
            for u in range(g):
                k = _set_of(view, v, u, s.visited[i, u])
                if k >= 0:
                    for j in range(size):
                        pooled_back[k, u, j] += view.share * sums_back[i, t, k, s.device[i, u], j]
            s.device[i, v], s.visited[i, v] = e.device[i, t], True


def _floats(values: NDArray[np.float64]) -> Floats:
    return np.ascontiguousarray(values, np.float32)
