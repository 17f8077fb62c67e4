"""The groupers. Each decides which forward operations are in one group; the other operations follow these."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.random import Generator
from placekit_layers.following import follow
from placekit_layers.module_calls import block_tags
from placekit_layers.repeated import nominal_s
from placekit_layers.units import FREE, Ints, Units

from placekit_core import Graph, Grouper, Grouping
from placekit_grouping import (
    ColocationOptions,
    MergingOptions,
    MetisOptions,
    ModuleOptions,
)
from placekit_grouping.coarsening import contract_chains, contract_heavy_edges, match_by_levels, merge_small
from placekit_grouping.contraction import Contraction


class NoGrouper(Grouper):
    """The finest grouping: one group per operation or co-location set.

    `acyclic` is False, because a path from one co-located operation to another may pass through other groups.
    """

    name = "none"
    acyclic: ClassVar[bool] = False
    requested: ClassVar[bool] = False

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        """One group per operation or co-location set."""
        return Grouping.colocated(graph)


class _ForwardGrouper(Grouper):
    """Groups forward operations; gradients, parameters and updates follow them."""

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        """The groups; `rng` is not used."""
        units = Units.build(graph)
        label = np.full(units.count, FREE, np.int64)
        # device types are part of the label: otherwise one CPU operation would force its whole group onto CPUs
        kinds, types = np.unique(units.types, return_inverse=True)
        key = (self.label(units) * max(len(kinds), 1) + types.reshape(-1))[units.forward]
        label[units.forward] = np.unique(key, return_inverse=True)[1]
        fine = follow(units, units.acyclic(label))
        groups = Contraction(units, fine)
        self.contract(groups)
        merge_small(groups, self.options.max_groups)
        merged = groups.result()
        return Grouping.of(merged[units.of], self._names(units, fine, merged)).check(graph)

    @abstractmethod
    def label(self, units: Units) -> Ints:
        """[u] a label per unit: forward units with the same label belong together."""

    def contract(self, groups: Contraction) -> None:
        """Merge groups further, before small ones are merged; by default, do nothing."""

    @abstractmethod
    def describe(self, units: Units) -> Sequence[str]:
        """[n] the name that each operation gives its group if it is the most expensive one there."""

    def _names(self, units: Units, fine: Ints, merged: Ints) -> tuple[str, ...]:
        """The name of each group: the name of its most expensive part, and how many other parts joined it."""
        fine_of, merged_of = fine[units.of], merged[units.of]
        cost = np.bincount(fine_of, nominal_s(units.graph))
        text = [""] * len(cost)
        order = np.lexsort((np.arange(units.graph.n), -nominal_s(units.graph), ~units.leading))
        seen: Counter[str] = Counter()
        described = self.describe(units)
        for v in order.tolist():
            if not text[fine_of[v]]:
                name = described[v]
                seen[name] += 1
                text[fine_of[v]] = name if seen[name] == 1 else f"{name} ({seen[name]})"
        names = [""] * (int(merged_of.max(initial=-1)) + 1)
        parts = np.unique(merged_of * max(len(cost), 1) + fine_of)
        wholes, begin = np.unique(parts // max(len(cost), 1), return_index=True)
        for whole, members in zip(wholes.tolist(), np.split(parts % max(len(cost), 1), begin[1:]), strict=False):
            name = text[members[np.argmax(cost[members])]]
            names[whole] = name if len(members) == 1 else f"{name} +{len(members) - 1}"
        return tuple(names)


class ColocationGrouper(_ForwardGrouper):
    """Mirhoseini et al. 2017, §3.3: an operation whose output has only one consumer is co-located with it.

    Consumers are counted between forward operations, and a group holds all operations that such pairs connect. The paper can
    also be read as counting between groups after every merge. Then any network that ends in one loss would collapse into one
    group, because the last group is always the only consumer of the one before it.
    """

    name = "colocation"
    options_class = ColocationOptions

    def label(self, units: Units) -> Ints:
        """Sets of operations that single consumers connect."""
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

    def describe(self, units: Units) -> Sequence[str]:
        """The operation."""
        return units.graph.op_name


class ModuleGrouper(_ForwardGrouper):
    """One group per call of a module, by the module path and call number of every operation.

    With `blocks`, one group per call of a module with a matching path. An operation without a module joins the kernel from
    which it reads most bytes (the last of equals, so that a residual sum joins the added branch), or else one of its readers.
    If none of them has a module, it is a group of its own.
    """

    name = "module"
    options_class = ModuleOptions

    def label(self, units: Units) -> Ints:
        """Module and call of the first forward operation of each unit."""
        tags, number = self._tags(units), dict[str, int]()
        keys = [tags[v] or f" {v}" if v >= 0 else "" for v in units.first_leading.tolist()]
        return np.asarray([number.setdefault(key, len(number)) for key in keys], np.int64)

    def describe(self, units: Units) -> Sequence[str]:
        """Module and call, or the operation's name."""
        return [tag or name for tag, name in zip(self._tags(units), units.graph.op_name, strict=True)]

    def _tags(self, units: Units) -> list[str]:
        graph = units.graph
        tags = block_tags(graph, self.options.blocks, self.options.depth)
        order = [v for v in graph.topological_order.tolist() if units.leading[v]]
        producer, size = graph.tensor_producer.tolist(), graph.tensor_bytes.tolist()
        for v in order:
            if not tags[v]:
                near = [(size[t], producer[t]) for t in graph.inputs(v).tolist() if units.leading[producer[t]]]
                tags[v] = next((tags[u] for _, u in sorted(near, reverse=True) if tags[u]), "")
        for v in reversed(order):
            if not tags[v]:
                readers = [c for t in graph.outputs(v) for c in graph.consumers(t).tolist() if units.leading[c]]
                tags[v] = next((tags[c] for c in readers if tags[c]), "")
        return tags


class _CoarseningGrouper(_ForwardGrouper):
    """Groups by the graph alone, not by modules: starts with single operations, which `contract` merges."""

    def label(self, units: Units) -> Ints:
        """A label per unit."""
        return np.arange(units.count)

    def describe(self, units: Units) -> Sequence[str]:
        """The operation."""
        return units.graph.op_name


class ChainsGrouper(_CoarseningGrouper):
    """Contracts linear chains of forward operations, each the only consumer of the one before and without other inputs.

    If no kernels are co-located, the groups are the same as with `colocation` and `keep_branches`.
    """

    name = "chains"
    options_class = MergingOptions

    def contract(self, groups: Contraction) -> None:
        """Merge along chains."""
        contract_chains(groups)


class HeavyEdgeGrouper(_CoarseningGrouper):
    """Contracts heavy edges one by one: merges the groups that exchange most bytes first, if the result is small enough."""

    name = "heavy_edge"
    options_class = MergingOptions

    def contract(self, groups: Contraction) -> None:
        """Merge along the heaviest remaining edge."""
        contract_heavy_edges(groups, self.options.max_groups)


class MetisGrouper(_CoarseningGrouper):
    """The coarsening of METIS to k groups, by heavy-edge matching level by level (Karypis & Kumar 1998, §3.1).

    As in Herrmann et al. 2019 ("Multilevel Algorithms for Acyclic Partitioning of Directed Acyclic Graphs", §4.1), only pairs
    that close no cycle are matched. There is no partition and no refinement: the k vertices of the coarsest graph are the
    groups, and the policy places them.
    """

    name = "metis"
    options_class = MetisOptions

    def contract(self, groups: Contraction) -> None:
        """Match and merge until there are `max_groups`."""
        match_by_levels(groups, self.options.max_groups)
