"""The arrays that moves use: the graph, and the relations between units of groups."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling import Kernel, b_level, group_priority
from placekit_scheduling.list_scheduling.placement_levels import LevelGraph, level_graph

from placekit_core import Labels, Problem
from placekit_search.coarsening import LARGE, allowed_for_units, coarse

Ints = NDArray[np.int32]
SIMILARITY = 0.05  # largest relative difference in seconds between similar units, about


class Flow(NamedTuple):
    """The graph of operations, and where a run stores its trace (`placekit_scheduling.Trace`); n operations, t tensors.

    Attributes:
        group_of: [n].
        kernel: [n].
        producer: [t] operation that produces each tensor.
        consumer_ptr, consumer_op: operations that read each tensor, in compressed rows.
        tasks, cause, last, copy_tensor, copy_dst: fields of the trace; all 0 without one.
        streams: whether parameters and inputs may be copied for use instead of moved (`Session.prefetch`).
        levels: for `set_levels`.
    """

    group_of: Ints
    kernel: NDArray[np.bool_]
    producer: Ints
    consumer_ptr: Ints
    consumer_op: Ints
    tasks: int
    cause: int
    last: int
    copy_tensor: int
    copy_dst: int
    streams: bool
    levels: LevelGraph


class Neighbourhood(NamedTuple):
    """Units (sets of groups that move together) and the relations between them; u units, g groups, D devices.

    Attributes:
        member_ptr, member: groups of each unit, in compressed rows.
        unit_of: [g].
        movable: units that may run on more than one device.
        allowed: [u, D].
        near_ptr, near: neighbours: units that each unit exchanges tensors with, in compressed rows.
        after_ptr, after, before_ptr, before: the neighbours after a unit, and before it, in an order of all units.
        tree, tree_first, tree_end: units in preorder of the forest where the parent of a unit is its only consumer;
            `tree[tree_first[v]:tree_end[v]]` is v with all producers that feed nothing else, directly or not.
        region_ptr, region, region_of: units of the same call of the same module (or of the same meta-operation), in
            compressed rows; the row of each unit.
        similar_ptr, similar, similar_of: units of about the same seconds, in compressed rows; the row of each unit.
        source: [u] whether the unit computes nothing: it holds parameters or inputs.
        urgent: [u] units by falling b-level.
    """

    member_ptr: Ints
    member: Ints
    unit_of: Ints
    movable: Ints
    allowed: Annotated[NDArray[np.bool_], 2]
    near_ptr: Ints
    near: Ints
    after_ptr: Ints
    after: Ints
    before_ptr: Ints
    before: Ints
    tree: Ints
    tree_first: Ints
    tree_end: Ints
    region_ptr: Ints
    region: Ints
    region_of: Ints
    similar_ptr: Ints
    similar: Ints
    similar_of: Ints
    source: NDArray[np.bool_]
    urgent: Ints


def flow(problem: Problem, kernel: Kernel | None, streams: bool = False) -> Flow:
    """The graph of `problem`, with the trace of `kernel`."""
    graph = problem.graph
    trace = kernel.trace if kernel is not None else None
    return Flow(
        group_of=_ints(problem.grouping.group_of),
        kernel=graph.kernel.copy(),
        producer=_ints(graph.tensor_producer),
        consumer_ptr=_ints(graph.consumer_ptr),
        consumer_op=_ints(graph.consumer_op),
        **{name: getattr(trace, name, 0) for name in ("tasks", "cause", "last", "copy_tensor", "copy_dst")},
        streams=streams,
        levels=level_graph(problem),
    )


def neighbourhood(problem: Problem, unit_of: NDArray[np.integer] | None = None) -> Neighbourhood:
    """The neighbourhood over units of the groups of `problem`: `unit_of` [g], numbered from 0, or single groups if None."""
    of = np.arange(problem.g) if unit_of is None else np.asarray(unit_of, np.int64)
    allowed = allowed_for_units(problem, of)
    count = len(allowed)
    unit, quotient = of, problem.grouped if problem.g <= LARGE else None
    if quotient is None:  # the graph of a million groups takes a minute
        unit, quotient = np.arange(count), coarse(problem, of).grouped
    u, v = unit[quotient.tensor_producer[quotient.input_tensor]], unit[quotient.edge_op]
    key = np.sort((u * count + v)[u != v])  # numpy's `unique` takes several times as long for a million edges
    key = key[np.diff(key, prepend=-1) > 0]
    edges = np.stack([key // count, key % count], axis=1)
    seconds = np.zeros(count)
    np.add.at(seconds, of, np.where(problem.allowed, problem.group_s, np.inf).min(axis=1))
    computes = np.zeros(count, np.bool_)
    np.logical_or.at(computes, of[problem.grouping.group_of], problem.graph.kernel)
    level = np.full(count, -np.inf)
    np.maximum.at(level, of, group_priority(problem, b_level(problem)))
    both = np.concatenate([edges, edges[:, ::-1]])
    scale = np.round(np.log(np.maximum(seconds, 1e-12)) / np.log1p(SIMILARITY)).astype(np.int64)
    member_ptr, member = rows(of, count)
    near_ptr, near = rows_of(both[:, 0], both[:, 1], count)
    flows = _one_way(edges, level)
    after_ptr, after = rows_of(flows[:, 0], flows[:, 1], count)
    before_ptr, before = rows_of(flows[:, 1], flows[:, 0], count)
    tree, tree_first, tree_end = _forest(edges, count)
    region_ptr, region, region_of = _labelled(_regions(problem, of, count))
    similar_ptr, similar, similar_of = _labelled(scale)
    return Neighbourhood(
        member_ptr=member_ptr,
        member=member,
        unit_of=_ints(of),
        movable=_ints(np.flatnonzero(allowed.sum(axis=1) > 1)),
        allowed=allowed,
        near_ptr=near_ptr,
        near=near,
        after_ptr=after_ptr,
        after=after,
        before_ptr=before_ptr,
        before=before,
        tree=tree,
        tree_first=tree_first,
        tree_end=tree_end,
        region_ptr=region_ptr,
        region=region,
        region_of=region_of,
        similar_ptr=similar_ptr,
        similar=similar,
        similar_of=similar_of,
        source=~computes,
        urgent=_ints(np.argsort(-level, kind="stable")),
    )


def _one_way(edges: NDArray[np.int64], level: NDArray[np.float64]) -> NDArray[np.int64]:
    """Edges between units. If two units have edges both ways, keep only the one from the higher b-level to the lower."""
    if not len(edges):
        return edges.reshape(-1, 2)
    count = len(level)
    back = np.isin(edges[:, 1] * count + edges[:, 0], edges[:, 0] * count + edges[:, 1])
    first = level[edges[:, 0]] > level[edges[:, 1]]
    tied = (level[edges[:, 0]] == level[edges[:, 1]]) & (edges[:, 0] < edges[:, 1])
    return np.asarray(edges[~back | first | tied], np.int64)


def rows(label: NDArray[np.int64], count: int) -> tuple[Ints, Ints]:
    """Pointers and entries of compressed rows; row r holds every i with label[i] == r."""
    return rows_of(label, np.arange(len(label)), count)


def rows_of(row: NDArray[np.int64], entry: NDArray[np.int64], count: int) -> tuple[Ints, Ints]:
    """Pointers and entries of compressed rows from pairs (row, entry); the entries of a row keep their order."""
    order = np.argsort(row, kind="stable")
    return _ints(np.concatenate([[0], np.cumsum(np.bincount(row, minlength=count))])), _ints(entry[order])


def _labelled(label: NDArray[np.int64]) -> tuple[Ints, Ints, Ints]:
    """Compressed rows of equal labels, and the row of each entry."""
    distinct, row = np.unique(label, return_inverse=True)
    return *rows(row, len(distinct)), _ints(row)


def _forest(edges: NDArray[np.int64], count: int) -> tuple[Ints, Ints, Ints]:
    """Preorder of the forest where a unit's parent is its only consumer; first and end of each subtree in it."""
    consumers = np.bincount(edges[:, 0], minlength=count)
    own = edges[consumers[edges[:, 0]] == 1]  # producers with a single consumer, and this consumer
    parent = np.full(count, -1)
    parent[own[:, 0]] = own[:, 1]
    first_child, children = (a.tolist() for a in rows_of(own[:, 1], own[:, 0], count))
    tree: list[int] = []
    first, end = [-1] * count, [0] * count
    # units may read from each other in both directions; a unit that no root reaches becomes a root
    for root in [*np.flatnonzero(parent < 0).tolist(), *range(count)]:
        stack = [] if first[root] >= 0 else [(root, False)]
        while stack:
            v, left = stack.pop()
            if left:
                end[v] = len(tree)
            elif first[v] < 0:
                first[v] = len(tree)
                tree.append(v)
                stack.append((v, True))
                stack += [(c, False) for c in children[first_child[v] : first_child[v + 1]] if first[c] < 0]
    return _ints(tree), _ints(first), _ints(end)


def _regions(problem: Problem, of: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """[u] region of each unit: the meta-operation, or the module and call, of its longest operation.

    A unit whose operation has neither is a region of its own.
    """
    graph, unit = problem.graph, of[problem.grouping.group_of]
    longest = np.zeros(count, np.int64)
    order = np.argsort(problem.op_s.min(axis=1), kind="stable")
    longest[unit[order]] = order  # the last assignment to a unit stays: its longest operation
    meta, labels, call = graph.columns.get("meta_op"), graph.module, np.asarray(graph.call)
    if isinstance(meta, Labels):
        labels, call = meta, np.zeros(graph.n, np.int32)
    named = np.asarray([bool(name) for name in labels.vocabulary], np.bool_)[labels.codes[longest]]
    keys = np.stack([labels.codes[longest], call[longest]], axis=1)
    _, region = np.unique(keys, axis=0, return_inverse=True)
    return np.where(named, region.reshape(-1), count + np.arange(count))


def _ints(values: object) -> Ints:
    return np.array(values, np.int32)
