"""Groups of operations that are placed as one, and the quotient graph that policies see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placekit_core.contracts.errors import GraphError
from placekit_core.contracts.graph import PHASES, Graph
from placekit_core.contracts.graph_builder import GraphBuilder


@dataclass(frozen=True, eq=False)
class Grouping:
    """A partition of the n operations into g groups; operations with one `colocate` number share a group.

    Attributes:
        group_of: [n] group of each operation, 0..g-1, every group with at least one operation.
        names: g names, or empty: each group then has the name of its first operation.
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
        """The finest grouping: every operation on its own, except those that must share a device."""
        free = graph.colocate < 0
        key = np.where(free, np.arange(graph.n) + graph.n, graph.colocate)
        grouping = cls.of(key)
        _, first = np.unique(grouping.group_of, return_index=True)
        return cls(grouping.group_of, tuple(graph.op_name[v] for v in first))

    def sources_apart(self, graph: Graph) -> Grouping:
        """The groups, with their sources (parameters, state, inputs) in groups of their own: `weights of NAME`.

        What must share a device with a source goes with it if it is an update; else the source stays where it is.
        """
        works = graph.kernel & (graph.phase != PHASES.index("update"))
        tied = np.flatnonzero(graph.colocate >= 0)
        used = np.unique(graph.colocate[tied[works[tied]]])  # sets of which a kernel computes more than an update
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
        sets, first = np.unique(graph.colocate[tied], return_index=True)
        home = dict(zip(sets.tolist(), self.group_of[tied[first]].tolist(), strict=True))
        for v in tied:
            if self.group_of[v] != home[int(graph.colocate[v])]:
                raise GraphError(
                    f"the grouping separates {graph.op_name[v]!r} from operations that it must share a device with"
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
    key = np.unique(tensor[cross].astype(np.int64) * g + b[cross])
    sent, to = (key // g).astype(np.int64), key % g
    source = group[graph.tensor_producer[sent]].astype(np.int64)
    order = _order_of_groups(graph, grouping)
    swap = order[source] > order[to]
    low, high = np.where(swap, to, source), np.where(swap, source, to)
    pair, inverse = np.unique(low * g + high, return_inverse=True)
    bytes_ = np.bincount(inverse, graph.tensor_bytes[sent], minlength=len(pair)).astype(np.int64)

    builder = GraphBuilder(f"{graph.name}/groups")
    rows = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group, minlength=g))[:-1])
    tensor_of: dict[int, int] = {}
    starts = np.searchsorted(pair // max(g, 1), np.arange(g + 1))
    for i in range(g):
        members = rows[i]
        heavy = members[np.argmax(graph.flops[members] + 1e-3 * graph.bytes_accessed[members])]
        outs = range(starts[i], starts[i + 1])
        ids = builder.add(
            f"{i}:{grouping.name(i)}",
            op_type=graph.op_type[heavy], op_class=graph.op_class[heavy], dtype=graph.dtype[heavy],
            flops=float(graph.flops[members].sum()), bytes_accessed=float(graph.bytes_accessed[members].sum()),
            persistent_bytes=int(graph.persistent_bytes[members].sum()), outputs=[int(bytes_[j]) for j in outs],
            module=graph.module[heavy], allowed=_common_types(graph, members), kernel=bool(graph.kernel[members].any()),
        )  # fmt: skip
        tensor_of.update(zip(outs, ids, strict=True))
    for j, p in enumerate(pair.tolist()):
        builder.operations[p % g].inputs.append(tensor_of[j])
    builder.attributes = {"groups_of": graph.fingerprint}
    return builder.build()


def _common_types(graph: Graph, members: NDArray[np.integer]) -> str:
    """Device types that may run all of these operations, in the form of `Graph.allowed`; `none` if there are none."""
    limits = [set(graph.allowed.vocabulary[c].split("|")) for c in np.unique(graph.allowed.codes[members])]
    limits = [types for types in limits if types != {""}]
    return ("|".join(sorted(set.intersection(*limits))) or "none") if limits else ""


def _order_of_groups(graph: Graph, grouping: Grouping) -> NDArray[np.int64]:
    """[g] position of each group: a topological order of the strongly connected sets of groups, then first kernel."""
    g, group = grouping.count, grouping.group_of
    position = np.empty(graph.n, np.int64)
    position[graph.topological_order] = np.arange(graph.n)
    rank = np.full(g, np.iinfo(np.int64).max)
    kernels = np.flatnonzero(graph.kernel)
    np.minimum.at(rank, group[kernels], position[kernels])
    only_sources = rank == np.iinfo(np.int64).max  # groups of sources only come first: nothing orders them
    rank[only_sources] = -1
    u, v = graph.op_edges
    ordered = graph.kernel[u] & (group[u] != group[v])
    key = np.unique(group[u[ordered]].astype(np.int64) * g + group[v[ordered]])
    component = strongly_connected(g, (key // g).astype(np.int64), (key % g).astype(np.int64))
    # strongly_connected numbers components in topological order
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
