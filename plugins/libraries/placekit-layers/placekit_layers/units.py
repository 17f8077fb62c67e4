"""Units, the smallest sets of operations that groupings are made of, and how groups are kept free of cycles.

Only cycles in the forward phase matter: gradients and updates are in the groups of their forward operations and parameters, so
groups of a training step exchange data in both directions in any case.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from placekit_core import PHASES, Graph, Grouping, strongly_connected

FORWARD = PHASES.index("forward")
FREE = -1  # in no group yet

Ints = NDArray[np.int64]


def distinct_pairs(first: NDArray[np.integer], second: NDArray[np.integer]) -> tuple[Ints, Ints]:
    """The distinct pairs of two columns of numbers from 0, ascending by the first, then the second."""
    count = int(second.max(initial=-1)) + 1
    key = np.sort(first.astype(np.int64) * count + second)
    new = np.ones(len(key), np.bool_)
    np.not_equal(key[1:], key[:-1], out=new[1:])
    return key[new] // max(count, 1), key[new] % max(count, 1)


def position(graph: Graph) -> NDArray[np.int64]:
    """[n] place of each operation in the topological order."""
    place = np.empty(graph.n, np.int64)
    place[graph.topological_order] = np.arange(graph.n)
    return place


@dataclass(frozen=True, eq=False)
class Units:
    """The u units of a graph.

    A unit is a co-location set or a single operation, or several of these on a cycle of forward data flow (a path from one
    co-located operation to another passes through others). Units are numbered in topological order of the forward phase.

    Attributes:
        graph: their graph.
        of: [n] unit of each operation.
        count: u.
        leading: [n] the kernels of the forward phase, without those that only update buffers, because no data flow orders these.
        source, target: forward data flow between units, distinct pairs, sorted by source; source < target always.
        types: [u] device types that may run a unit: bit 0 GPUs, bit 1 CPUs, higher bits other types.
    """

    graph: Graph
    of: Ints
    count: int
    leading: NDArray[np.bool_]
    source: Ints
    target: Ints
    types: Ints

    @classmethod
    def build(cls, graph: Graph) -> Units:
        """The units of `graph`."""
        leading = graph.kernel & (graph.phase == FORWARD) & ~_updates_buffer(graph)
        first = Grouping.colocated(graph)
        source, target = _edges(graph, leading, first.group_of.astype(np.int64))
        of = strongly_connected(first.count, source, target)[first.group_of]
        count = int(of.max(initial=-1)) + 1
        types = np.full(count, -1, np.int64)
        np.bitwise_and.at(types, of, _types(graph))
        return cls(graph, of, count, leading, *_edges(graph, leading, of), types)

    @cached_property
    def forward(self) -> NDArray[np.bool_]:
        """[u] whether a unit has a leading kernel: groupers group these units, and the others follow them."""
        return np.bincount(self.of[self.leading], minlength=self.count) > 0

    @cached_property
    def first_leading(self) -> Ints:
        """[u] the first leading kernel of each unit; -1 for units without one."""
        result = np.full(self.count, -1, np.int64)
        order = self.graph.topological_order
        for v in order[self.leading[order]][::-1].tolist():
            result[self.of[v]] = v
        return result

    def acyclic(self, label: Ints) -> Ints:
        """[u] labels like `label` (`FREE` where not forward), with groups split so that no cycle is left among them.

        Inside each strongly connected set of groups, a group is split by c(x) = the largest number of changes of group on
        a path to unit x that stays in the set; or, if its readers allow it, the number that most units of the group have, so
        that a constant or a mask that a layer makes stays with the layer. Proof that (group, c) is acyclic: along an edge
        x -> y inside the set, c never falls, and rises where the group changes; so every edge between two different (group,
        c) has a rise of c (if the group is the same, c differs, and it cannot fall), and no path returns. A path that leaves
        a strongly connected set never comes back to it.
        """
        groups = int(label.max(initial=-1)) + 1
        a, b = label[self.source], label[self.target]
        first = np.full(groups, self.count)
        np.minimum.at(first, label[self.forward], np.flatnonzero(self.forward))
        if np.all(first[a[a != b]] < first[b[a != b]]):  # no cycle: each group leads to later ones only
            return label
        component = strongly_connected(groups, *distinct_pairs(a[a != b], b[a != b]))
        if not groups or component.max() + 1 == groups:
            return label
        change = np.zeros(self.count, np.int64)
        inside = component[a] == component[b]
        rise = (a != b)[inside]
        # sources ascend and units are in topological order: a unit's own changes are known before it is left
        edges = list(zip(self.source[inside].tolist(), self.target[inside].tolist(), rise.tolist(), strict=True))
        for x, y, step in edges:
            change[y] = max(change[y], change[x] + step)
        pairs, counts = np.unique(np.stack([label, change])[:, self.forward], axis=1, return_counts=True)
        most = dict(pairs[:, np.argsort(counts, kind="stable")].T.tolist())  # the last one wins
        for x, leaving in groupby(reversed(edges), itemgetter(0)):  # the changes of its readers are final
            if change[x] < most[int(label[x])] <= min(change[y] - step for _, y, step in leaving):
                change[x] = most[int(label[x])]
        pair = label * (int(change.max()) + 1) + change
        result = np.full(self.count, FREE, np.int64)
        result[self.forward] = np.unique(pair[self.forward], return_inverse=True)[1]
        return result


def _updates_buffer(graph: Graph) -> NDArray[np.bool_]:
    """[n] kernels that read only sources and write only new values of sources (a counter of batches, say)."""
    producer = graph.tensor_producer
    reads_kernel = np.bincount(graph.edge_op, graph.kernel[producer[graph.input_tensor]], minlength=graph.n) > 0
    elsewhere = graph.kernel[producer[graph.tensor_storage]]
    writes_own = np.bincount(producer, elsewhere, minlength=graph.n) > 0
    is_read = np.bincount(producer[graph.input_tensor], minlength=graph.n) > 0
    writes = np.bincount(producer, minlength=graph.n) > 0
    return np.asarray(graph.kernel & writes & ~reads_kernel & ~writes_own & ~is_read)


def _types(graph: Graph) -> Ints:
    """[n] device types that may run each operation, as bits."""
    bit = {"gpu": 1, "cpu": 2}
    for text in graph.allowed.vocabulary:
        for name in text.split("|"):
            if name:
                bit.setdefault(name, 2 ** len(bit))
    every = sum(bit.values())
    rows = [sum(bit[name] for name in set(text.split("|"))) if text else every for text in graph.allowed.vocabulary]
    return np.asarray(rows, np.int64)[graph.allowed.codes]


def _edges(graph: Graph, leading: NDArray[np.bool_], of: Ints) -> tuple[Ints, Ints]:
    """Distinct pairs of units that leading kernels connect, sorted by source."""
    u, v = graph.op_edges
    keep = leading[u] & leading[v] & (of[u] != of[v])
    return distinct_pairs(of[u[keep]], of[v[keep]])
