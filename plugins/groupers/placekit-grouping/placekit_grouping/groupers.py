"""The groupers: each says which forward operations belong together; what they share is in the other modules."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from placekit_core.graph import Graph
from placekit_core.grouping import Grouping
from placekit_core.interfaces import Grouper
from placekit_grouping import ColocationOptions, ModuleOptions
from placekit_grouping.following import follow
from placekit_grouping.merging import merge_small, nominal_s
from placekit_grouping.units import FREE, Ints, Units


class NoGrouper(Grouper):
    """The finest grouping: operations on their own, but for co-located ones.

    `acyclic` is False because co-located operations may have others between them.
    """

    name = "none"
    acyclic: ClassVar[bool] = False

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        """One group per operation or co-location set."""
        return Grouping.colocated(graph)


class _ForwardGrouper(Grouper):
    """Groups of forward operations, which gradients, parameters and updates follow."""

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        """The groups; `rng` is not used."""
        units = Units.build(graph)
        label = np.full(units.count, FREE, np.int64)
        # device types are part of the label: a group that held a CPU operation would have to run on CPUs as a whole
        key = np.stack([self.label(units), units.types])[:, units.forward]
        label[units.forward] = np.unique(key, axis=1, return_inverse=True)[1].reshape(-1)
        fine = follow(units, units.acyclic(label))
        merged = merge_small(units, fine, self.options.max_groups, self.options.min_share)
        return Grouping.of(merged[units.of], self._names(units, fine, merged)).check(graph)

    @abstractmethod
    def label(self, units: Units) -> Ints:
        """[u] units of one label belong together; only those of units with forward operations count."""

    @abstractmethod
    def describe(self, units: Units, op: int) -> str:
        """Name of the group whose costliest operation is `op`."""

    def _names(self, units: Units, fine: Ints, merged: Ints) -> tuple[str, ...]:
        """By the number of the group: that of its costliest part, and how many parts joined it."""
        fine_of, merged_of = fine[units.of], merged[units.of]
        cost = np.bincount(fine_of, nominal_s(units))
        text = [""] * len(cost)
        order = np.lexsort((np.arange(units.graph.n), -nominal_s(units), ~units.leading))
        seen: Counter[str] = Counter()
        for v in order.tolist():
            if not text[fine_of[v]]:
                name = self.describe(units, v)
                seen[name] += 1
                text[fine_of[v]] = name if seen[name] == 1 else f"{name} ({seen[name]})"
        names = [""] * (int(merged_of.max(initial=-1)) + 1)
        parts = np.unique(np.stack([merged_of, fine_of]), axis=1)
        for whole in np.unique(parts[0]).tolist():
            members = parts[1][parts[0] == whole]
            name = text[members[np.argmax(cost[members])]]
            names[whole] = name if len(members) == 1 else f"{name} +{len(members) - 1}"
        return tuple(names)


class ColocationGrouper(_ForwardGrouper):
    """Mirhoseini et al. 2017, §3.3: an operation whose output only one other consumes is co-located with it.

    Consumers are counted between forward operations, and a group holds all that is joined by such pairs. (Counted between
    groups after every merge, as the paper's text can be read, any network that ends in one loss collapses into one group:
    the last group but one always has the last as its only consumer.)
    """

    name = "colocation"
    options_class = ColocationOptions

    def label(self, units: Units) -> Ints:
        """Sets that single consumers connect."""
        graph = units.graph
        u, v = graph.op_edges
        keep = units.leading[u] & units.leading[v]
        u, v = u[keep], v[keep]
        joined = np.bincount(u, minlength=graph.n)[u] == 1
        if self.options.keep_branches:
            joined &= np.bincount(v, minlength=graph.n)[v] == 1
        parent = list(range(units.count))

        def root(x: int) -> int:
            while parent[x] != x:
                parent[x] = x = parent[parent[x]]
            return x

        for a, b in zip(units.of[u[joined]].tolist(), units.of[v[joined]].tolist(), strict=True):
            if units.types[a] == units.types[b]:
                parent[root(a)] = root(b)
        return np.asarray([root(x) for x in range(units.count)], np.int64)

    def describe(self, units: Units, op: int) -> str:
        """The operation."""
        return units.graph.op_name[op]


class ModuleGrouper(_ForwardGrouper):
    """One group per call of a module, by the module path and call number that the importer gave every operation.

    An operation without a module goes with the kernel that it reads most bytes from, else with one that reads from it;
    where none of them has a module, with the others of its type.
    """

    name = "module"
    options_class = ModuleOptions

    def label(self, units: Units) -> Ints:
        """Module and call of the first forward operation of each unit."""
        graph = units.graph
        tags = [self._tag(graph, v) for v in range(graph.n)]
        order = [v for v in graph.topological_order.tolist() if units.leading[v]]
        producer, size = graph.tensor_producer.tolist(), graph.tensor_bytes.tolist()
        for v in order:
            if not tags[v]:
                near = [(-size[t], producer[t]) for t in graph.inputs(v).tolist() if units.leading[producer[t]]]
                tags[v] = next((tags[u] for _, u in sorted(near) if tags[u]), "")
        for v in reversed(order):
            if not tags[v]:
                readers = [c for t in graph.outputs(v) for c in graph.consumers(t).tolist() if units.leading[c]]
                tags[v] = next((tags[c] for c in readers if tags[c]), "")
        number: dict[str, int] = {}
        return np.asarray(
            [
                FREE if v < 0 else number.setdefault(tags[v] or f" {graph.op_type[v]}", len(number))
                for v in units.first_leading.tolist()
            ],
            np.int64,
        )

    def _tag(self, graph: Graph, op: int) -> str:
        path = graph.module[op]
        if self.options.depth is not None:
            path = ".".join(path.split(".")[: self.options.depth])
        return f"{path}@{graph.call[op]}" if path and graph.call[op] else path

    def describe(self, units: Units, op: int) -> str:
        """Module and call, or the type of the operation."""
        return self._tag(units.graph, op) or units.graph.op_type[op]
