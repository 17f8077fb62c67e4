"""Groups of operations that are placed as one, and the quotient graph that policies see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placekit_core.contracts.errors import GraphError
from placekit_core.contracts.graph import PHASES, Graph, Labels, Scalar, distinct
from placekit_core.contracts.graph_rules import validate_graph


@dataclass(frozen=True, eq=False)
class Grouping:
    """A partition of the n operations into g groups; operations with one `colocate` number share a group.

    Attributes:
        group_of: [n] group of each operation, 0..g-1, every group with at least one operation.
        names: g names; if empty, the groups are called `group 0`, `group 1`, ...
        note: a sentence for the user about how the groups were chosen, or empty.
    """

    group_of: NDArray[np.int32]
    names: tuple[str, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        self.group_of.setflags(write=False)

    @cached_property
    def count(self) -> int:
        """Number of groups g."""
        return int(self.group_of.max()) + 1 if len(self.group_of) else 0

    def name(self, group: int) -> str:
        """The name of the group in reports."""
        return self.names[group] if self.names else f"group {group}"

    @classmethod
    def of(cls, key: NDArray[np.integer], names: tuple[str, ...] = ()) -> Grouping:
        """Groups of equal `key`, numbered by their first operation; `names[k]` is the name of key k, if given."""
        values, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order))
        return cls(rank[inverse], tuple(names[values[i]] for i in order) if names else ())

    @classmethod
    def colocated(cls, graph: Graph) -> Grouping:
        """The finest grouping: every operation on its own, except operations that must share a device."""
        free = graph.colocate < 0
        key = np.where(free, np.arange(graph.n) + graph.n, graph.colocate)
        grouping = cls.of(key)
        _, first = np.unique(grouping.group_of, return_index=True)
        return cls(grouping.group_of, tuple(graph.op_name[v] for v in first.tolist()))

    def sources_apart(self, graph: Graph) -> Grouping:
        """The groups, with their sources (parameters, state, inputs) in groups of their own: `weights of NAME`.

        Updates that must share a device with a source move with it. A source that must share one with another kernel stays.
        """
        works = graph.kernel & (graph.phase != PHASES.index("update"))
        tied = np.flatnonzero(graph.colocate >= 0)
        used = np.unique(graph.colocate[tied[works[tied]]])  # co-located sets with a kernel that is not an update
        holds = np.unique(graph.colocate[tied[~graph.kernel[tied]]])
        set_apart = np.isin(graph.colocate, np.setdiff1d(holds, used)) & (graph.colocate >= 0)
        apart = set_apart | (~graph.kernel & (graph.colocate < 0))
        count = self.count
        mixed = np.bincount(self.group_of[~apart], minlength=count) > 0  # else all of it is apart already
        key = np.where(apart & mixed[self.group_of], count + self.group_of, self.group_of)
        names = tuple(self.name(i) for i in range(count))
        return replace(Grouping.of(key, (*names, *(f"weights of {name}" for name in names))), note=self.note)

    def check(self, graph: Graph) -> Grouping:
        """Raise GraphError unless this is a partition of `graph` that keeps co-located operations together."""
        if len(self.group_of) != graph.n:
            raise GraphError(f"the grouping has {len(self.group_of)} operations, {graph.name!r} has {graph.n}")
        if graph.n and (self.group_of.min() < 0 or np.any(np.bincount(self.group_of) == 0)):
            raise GraphError("group numbers must be 0..g-1, every one of them used")
        if self.names and len(self.names) != self.count:
            raise GraphError(f"the grouping has {self.count} groups and {len(self.names)} names")
        tied = np.flatnonzero(graph.colocate >= 0)
        _, first, of_set = np.unique(graph.colocate[tied], return_index=True, return_inverse=True)
        apart = tied[self.group_of[tied] != self.group_of[tied[first[of_set.reshape(-1)]]]]
        if len(apart):
            raise GraphError(
                f"the grouping separates {graph.op_name[apart[0]]!r} from operations that it must share a device with"
            )
        return self


def quotient(graph: Graph, grouping: Grouping) -> Graph:
    """The graph of groups: one operation per group with summed costs, one tensor per connected pair of groups.

    The tensor between two groups carries the bytes of all distinct tensors that cross in either direction. If the groups
    have a topological order (no cycle among them), the edges follow it. Groups that hold a forward operation with its
    gradient, or a parameter with its update, exchange data both ways: the edge then goes from the group that comes
    first, so the quotient is always acyclic. Reads of sources (parameters) carry bytes but impose no order.
    """
    g, group = grouping.count, grouping.group_of
    tensor, consumer = graph.input_tensor, graph.edge_op
    a, b = group[graph.tensor_producer[tensor]], group[consumer]
    cross = a != b
    # each distinct tensor once per group that reads it
    key = distinct(tensor[cross].astype(np.int64) * g + b[cross])
    sent, to = (key // g).astype(np.int64), key % g
    source = group[graph.tensor_producer[sent]].astype(np.int64)
    order = _order_of_groups(graph, group.astype(np.int64), g)
    swap = order[source] > order[to]
    low, high = np.where(swap, to, source), np.where(swap, source, to)
    pair, inverse = np.unique(low * g + high, return_inverse=True)
    bytes_ = np.bincount(inverse, graph.tensor_bytes[sent], minlength=len(pair)).astype(np.int64)

    members, begin = np.argsort(group, kind="stable"), np.concatenate([[0], np.cumsum(np.bincount(group, minlength=g))])
    weight = graph.flops + 1e-3 * graph.bytes_accessed
    heavy = np.lexsort((-weight, group))[begin[:-1]]  # of equal ones the first: lexsort is stable
    names = tuple(f"{i}:{grouping.name(i)}" for i in range(g))
    types = graph.op_type.take(heavy)
    if "" in types.vocabulary:
        types = Labels.of(kind or name for kind, name in zip(types.tolist(), names, strict=True))
    return validate_graph(Graph(
        name=f"{graph.name}/groups", op_name=names, op_type=types.compact(), op_class=graph.op_class.take(heavy).compact(),
        dtype=graph.dtype.take(heavy).compact(), flops=_sums(graph.flops, members, begin),
        bytes_accessed=_sums(graph.bytes_accessed, members, begin),
        persistent_bytes=_sums(graph.persistent_bytes, members, begin),
        kernel=np.bincount(group[graph.kernel], minlength=g) > 0, phase=np.zeros(g, np.uint8),
        module=graph.module.take(heavy).compact(), call=np.zeros(g, np.int32), colocate=np.full(g, -1, np.int32),
        allowed=_common_types(graph, group, g), tensor_producer=(pair // max(g, 1)).astype(np.int32), tensor_bytes=bytes_,
        tensor_storage=np.arange(len(pair), dtype=np.int32), shape_ptr=np.zeros(len(pair) + 1, np.int32),
        shape_dim=np.empty(0, np.int64),
        input_ptr=np.concatenate([[0], np.cumsum(np.bincount(pair % max(g, 1), minlength=g))]).astype(np.int32),
        input_tensor=np.argsort(pair % max(g, 1), kind="stable").astype(np.int32),
        attributes={"groups_of": graph.fingerprint},
    ))  # fmt: skip


def _sums(values: NDArray[Scalar], members: NDArray[np.integer], begin: NDArray[np.integer]) -> NDArray[Scalar]:
    """[g] sums of each group's values, `members[begin[i] : begin[i + 1]]`; bitwise equal to `sum` of each group.

    A zero before each group makes `reduceat` add up a group as `sum` does, in pairs.
    """
    g = len(begin) - 1
    padded = np.zeros(len(members) + g, values.dtype)
    own = np.repeat(np.arange(1, g + 1), np.diff(begin)) + np.arange(len(members))
    padded[own] = values[members]
    return np.add.reduceat(padded, begin[:-1] + np.arange(g)) if g else padded


def _common_types(graph: Graph, group: NDArray[np.int32], g: int) -> Labels:
    """[g] device types that may run all operations of a group, in the form of `Graph.allowed`; `none` if no type may."""
    if len(graph.allowed.vocabulary) <= 1:
        return Labels(np.zeros(g, np.int32), (_common(graph.allowed.vocabulary),) if g else ())
    size = len(graph.allowed.vocabulary)
    key = distinct(group.astype(np.int64) * size + graph.allowed.codes)  # the limits of each group, once each
    count = np.bincount(key // size, minlength=g)
    limits = np.split(key % size, np.cumsum(count)[:-1])
    known: dict[tuple[int, ...], str] = {}
    found = []
    for codes in map(tuple, limits):
        if codes not in known:
            known[codes] = _common(graph.allowed.vocabulary[c] for c in codes)
        found.append(known[codes])
    return Labels.of(found)


def _common(limits: Iterable[str]) -> str:
    """The device types that all limits allow."""
    types = [set(limit.split("|")) for limit in limits if limit]
    return ("|".join(sorted(set.intersection(*types))) or "none") if types else ""


def _order_of_groups(graph: Graph, group: NDArray[np.int64], g: int) -> NDArray[np.int64]:
    """[g] position of each group: a topological order of the strongly connected sets of groups, then first kernel."""
    position = np.empty(graph.n, np.int64)
    position[graph.topological_order] = np.arange(graph.n)
    rank = np.full(g, np.iinfo(np.int64).max)
    kernels = np.flatnonzero(graph.kernel)
    np.minimum.at(rank, group[kernels], position[kernels])
    only_sources = rank == np.iinfo(np.int64).max  # they come first: nothing orders them
    rank[only_sources] = -1
    u, v = graph.op_edges
    ordered = graph.kernel[u] & (group[u] != group[v])
    key = distinct(group[u[ordered]] * g + group[v[ordered]])
    component = strongly_connected(g, key // g, key % g)  # numbered in topological order
    result = np.empty(g, np.int64)
    result[np.lexsort((rank, component, ~only_sources))] = np.arange(g)
    return result


def strongly_connected(n: int, source: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n] component of each node, numbered in topological order (Tarjan 1972, without recursion).

    `source`, `target`: the ends of the edges, sorted by source.
    """
    ptr = np.searchsorted(source, np.arange(n + 1)).tolist()
    out = target.tolist()
    index, low, component = [-1] * n, [0] * n, [-1] * n
    stack: list[int] = []
    clock = found = 0
    for root in range(n):
        if index[root] >= 0:
            continue
        work = [(root, ptr[root])]
        index[root] = low[root] = clock
        clock += 1
        stack.append(root)
        while work:
            v, i = work.pop()
            if i < ptr[v + 1]:
                work.append((v, i + 1))
                w = out[i]
                if index[w] < 0:
                    index[w] = low[w] = clock
                    clock += 1
                    stack.append(w)
                    work.append((w, ptr[w]))
                elif component[w] < 0:
                    low[v] = min(low[v], index[w])
                continue
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[v])
            if low[v] == index[v]:
                while True:
                    w = stack.pop()
                    component[w] = found
                    if w == v:
                        break
                found += 1
    return (found - 1) - np.asarray(component, np.int64)
