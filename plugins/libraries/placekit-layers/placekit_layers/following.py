"""Assigns gradients, parameters, optimizer state and updates to groups of forward operations: they follow these."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from placekit_core import Problem, strongly_connected
from placekit_layers.units import FREE, Ints, Units, distinct_pairs, position


def follow(units: Units, group: Ints) -> Ints:
    """[u] groups of all units, given the groups of units with forward operations (`FREE` for the others).

    A parameter or input, with all units co-located with it, joins the first forward operation that reads it. A gradient joins its
    forward operation (column `forward_of`). Other units join the forward operations of the same call of the same module, or else
    the neighbour with which they exchange most bytes. No unit joins a group that it would restrict to fewer device types. Units
    that are still left form one group per set of device types.
    """
    graph, of = units.graph, units.of
    group = group.copy()
    types: dict[int, int] = {}
    for x in np.flatnonzero(group != FREE).tolist():
        types[int(group[x])] = types.get(int(group[x]), -1) & int(units.types[x])

    def join(x: int, to: int) -> None:
        if group[x] == FREE and to != FREE and types[to] & units.types[x] == types[to]:
            group[x] = to

    by_reader = np.argsort(position(graph)[graph.edge_op], kind="stable")
    reader, producer = graph.edge_op[by_reader], graph.tensor_producer[graph.input_tensor[by_reader]]
    keep = ~graph.kernel[producer] & units.leading[reader]
    for u, v in zip(producer[keep].tolist(), reader[keep].tolist(), strict=True):
        join(int(of[u]), int(group[of[v]]))

    forward_of = graph.columns.get("forward_of")
    if isinstance(forward_of, np.ndarray):
        for v in np.flatnonzero(graph.kernel & (forward_of >= 0)).tolist():
            join(int(of[v]), int(group[of[forward_of[v]]]))

    tag = graph.module.codes.astype(np.int64) * (int(graph.call.max(initial=0)) + 1) + graph.call
    known: defaultdict[int, Counter[int]] = defaultdict(Counter)
    named = np.asarray([bool(m) for m in graph.module.vocabulary], np.bool_)[graph.module.codes]
    for v in np.flatnonzero(units.leading & named).tolist():
        known[int(tag[v])][int(group[of[v]])] += 1
    for v in np.flatnonzero(group[of] == FREE).tolist():
        if tag[v] in known:
            join(int(of[v]), known[int(tag[v])].most_common(1)[0][0])

    _to_neighbours(units, group, types)
    rest = group == FREE
    if rest.any():
        following = int(group.max()) + 1
        group[rest] = following + np.unique(units.types[rest], return_inverse=True)[1]
    return group


def _to_neighbours(units: Units, group: Ints, types: dict[int, int]) -> None:
    """Let each free unit join the assigned neighbour that it exchanges most bytes with, from inputs to outputs and back."""
    graph, of = units.graph, units.of
    near: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for v, t in zip(graph.edge_op.tolist(), graph.input_tensor.tolist(), strict=True):
        a, b = int(of[graph.tensor_producer[t]]), int(of[v])
        if a != b and (group[a] == FREE or group[b] == FREE):
            near[a][b] += int(graph.tensor_bytes[t])
            near[b][a] += int(graph.tensor_bytes[t])
    order = dict.fromkeys(of[graph.topological_order].tolist())
    free = [x for x in order if group[x] == FREE]
    for x in [*free, *reversed(free)]:
        if group[x] != FREE:
            continue
        total: Counter[int] = Counter()
        for y, size in near[x].items():
            to = int(group[y])
            if to != FREE and types[to] & units.types[x] == types[to]:
                total[to] += size
        if total:
            group[x] = min(total, key=lambda to: (-total[to], to))


def united(problem: Problem, of_op: Ints) -> Ints:
    """[g] unit of each group, numbered from 0, given units of operations [n]: units with operations in one group become one."""
    group = problem.grouping.group_of.astype(np.int64)
    count = int(of_op.max(initial=-1)) + 1
    # units and groups as nodes of one graph, with edges both ways: connected sets are strongly connected
    pair = np.stack(distinct_pairs(of_op, count + group))
    ends = np.concatenate([pair, pair[::-1]], axis=1)
    ends = ends[:, np.argsort(ends[0], kind="stable")]
    component = strongly_connected(count + problem.g, ends[0], ends[1])
    return np.unique(component[count:], return_inverse=True)[1].reshape(-1).astype(np.int64)


def followers(problem: Problem) -> Ints:
    """[g] unit of each group: groups of forward operations with those of their gradients, parameters and updates are one unit."""
    units = Units.build(problem.graph)
    return united(problem, follow(units, np.where(units.forward, np.arange(units.count), FREE))[units.of])


def leaders(problem: Problem) -> Ints:
    """[g] the group that each group follows; itself if it has forward operations, or follows none."""
    units, group = Units.build(problem.graph), problem.grouping.group_of.astype(np.int64)
    own = np.where(units.forward, np.arange(units.count), FREE)
    first = units.first_leading[np.minimum(follow(units, own), units.count - 1)]
    lead = np.arange(problem.g)
    of_op = first[units.of]
    follows = of_op >= 0
    lead[group[follows]] = group[of_op[follows]]
    has_forward = np.bincount(group[units.leading], minlength=problem.g) > 0
    return np.where(has_forward, np.arange(problem.g), lead)
