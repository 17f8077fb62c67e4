"""Groups that are merged two at a time, without closing a cycle in the forward phase: the basis of all coarsening here."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from placekit_layers.repeated import nominal_s
from placekit_layers.units import Ints, Units, distinct_pairs

from placekit_core import strongly_connected


class Contraction:
    """Groups [u] numbered 0..g-1 whose forward phase has no cycle, and merges that keep it so.

    Which two groups are safe to merge. Let the groups be in a topological order `at` of the forward phase, x before y. There
    is no path from y to x, so merging them closes a cycle if and only if a path from x to y goes through a third group.

    - If no predecessor of y comes after x, there is no such path: it would end with a predecessor of y that can be reached
      from x, hence comes after x. The merged group takes the place of x: groups that feed x or y come before it, groups that
      read from x come after it, and groups that read from y come after y.
    - If no successor of x comes before y, likewise; the merged group takes the place of y.

    So `at` stays a topological order. Some pairs that meet the rule: x and the first of its successors; y and the last of
    its predecessors; a group and the only one that it reads from, or that reads from it; a group without predecessors and
    successors, with any other; two that follow each other in the order. If any two groups of equal types meet it, then two
    with no other group of these types between them do (y and the one before it, in the first case): `beside` misses nothing.

    Attributes:
        left: number of groups that are left; the others were merged into them.
        cost: [g] seconds on a nominal device, of all phases.
        types: [g] device types (see `Units`); only groups of equal types are merged.
        at: [g] places in the order, all different.
        after, before: [g] successors and predecessors of each group in the forward phase.
        bytes: [g] by other group: bytes that the two exchange in both directions, over all phases, each tensor once.
        into: [g] the group itself, or one that it was merged into.
        here: [g] by place: the group that has it, or had it last.
        earlier, later: [g] by place: the next one with a group of equal types, in either direction; -1 where there is none.
    """

    def __init__(self, units: Units, group: Ints) -> None:
        graph = units.graph
        count = int(group.max(initial=-1)) + 1
        self.group, self.left = group, count
        self.cost: list[float] = np.bincount(group[units.of], nominal_s(units.graph), minlength=count).tolist()
        self.total = sum(self.cost)
        types = np.full(count, -1, np.int64)
        np.bitwise_and.at(types, group, units.types)
        self.types: list[int] = types.tolist()
        a, b = group[units.source], group[units.target]
        source, target = distinct_pairs(a[a != b], b[a != b])
        self.at: list[int] = strongly_connected(count, source, target).tolist()
        self.here: list[int] = np.argsort(self.at).tolist()
        self.earlier, self.later = [-1] * count, [-1] * count
        latest: dict[int, int] = {}
        for place, x in enumerate(self.here):
            self.earlier[place] = latest.get(self.types[x], -1)
            if self.earlier[place] >= 0:
                self.later[self.earlier[place]] = place
            latest[self.types[x]] = place
        self.after: list[set[int]] = [set() for _ in range(count)]
        self.before: list[set[int]] = [set() for _ in range(count)]
        for x, y in zip(source.tolist(), target.tolist(), strict=True):
            self.after[x].add(y)
            self.before[y].add(x)
        self.bytes: list[dict[int, int]] = [{} for _ in range(count)]
        of = group[units.of]
        home, reader = of[graph.tensor_producer[graph.input_tensor]], of[graph.edge_op]
        sent, to = distinct_pairs(graph.input_tensor[home != reader], reader[home != reader])  # once per reading group
        ends = of[graph.tensor_producer[sent]].tolist(), to.tolist(), graph.tensor_bytes[sent].tolist()
        for x, y, size in zip(*ends, strict=True):
            self.bytes[x][y] = self.bytes[x].get(y, 0) + size
            self.bytes[y][x] = self.bytes[y].get(x, 0) + size
        self.into = list(range(count))

    def groups(self) -> Iterator[int]:
        """The groups that are left, ascending."""
        return (x for x, y in enumerate(self.into) if x == y)

    def result(self) -> Ints:
        """[u] groups of the units; not every number is used."""
        return np.asarray([self._root(x) for x in range(len(self.into))], np.int64)[self.group]

    def safe(self, x: int) -> dict[int, int]:
        """Neighbours that x may be merged with, and the place of the merged group in the order.

        Only those that the neighbours of x show to be safe: the neighbours of a neighbour are counted, not looked at.
        """
        at, after, before = self.at, self.after[x], self.before[x]
        places: dict[int, int] = {}
        if not after and not before:
            places = {y: at[y] for y in self.bytes[x]}
        else:
            if after:
                first = min(after, key=at.__getitem__)
                places[first] = at[first]
            if before:
                last = max(before, key=at.__getitem__)
                places[last] = at[last]
            places |= {y: at[x] for y in self.bytes[x] if not self.after[y] and not self.before[y]}
            places |= {y: at[x] for y in after if len(self.before[y]) == 1}
            places |= {y: at[x] for y in before if len(self.after[y]) == 1}
        return {y: place for y, place in places.items() if self.types[y] == self.types[x]}

    def next_to(self, x: int) -> list[int]:
        """The groups of the same types that come last before x and first after it in the order."""
        return [self.here[p] for p in (self.earlier[self.at[x]], self.later[self.at[x]]) if p >= 0]

    def beside(self, x: int) -> dict[int, int]:
        """Those of `next_to` that x may be merged with, related or not, and the place of the merged group."""
        found = ((y, self.place(x, y)) for y in self.next_to(x))
        return {y: place for y, place in found if place is not None}

    def place(self, x: int, y: int) -> int | None:
        """Place of the merged group in the order if x and y are safe to merge; else None."""
        at = self.at
        if self.types[x] != self.types[y]:
            return None
        if at[x] > at[y]:
            x, y = y, x
        # a hub keeps its place, and its neighbours are looked at only where those of the other group do not decide
        if len(self.before[y]) <= len(self.after[x]) and all(at[z] <= at[x] for z in self.before[y]):
            return at[x]
        if all(at[z] >= at[y] for z in self.after[x]):
            return at[y]
        return at[x] if all(at[z] <= at[x] for z in self.before[y]) else None

    def merge(self, x: int, y: int, place: int) -> int:
        """Merge two groups; the one with fewer neighbours goes into the other. Returns the one that is kept."""
        free = self.at[x] if place == self.at[y] else self.at[y]
        earlier, later = self.earlier[free], self.later[free]
        if earlier >= 0:
            self.later[earlier] = later
        if later >= 0:
            self.earlier[later] = earlier
        keep, gone = (x, y) if len(self.bytes[x]) > len(self.bytes[y]) else (y, x)
        for z, size in self.bytes[gone].items():
            del self.bytes[z][gone]
            if z != keep:
                self.bytes[keep][z] = self.bytes[keep].get(z, 0) + size
                self.bytes[z][keep] = self.bytes[keep][z]
        for here, there in ((self.after, self.before), (self.before, self.after)):
            for z in here[gone]:
                there[z].discard(gone)
                if z != keep:
                    here[keep].add(z)
                    there[z].add(keep)
            here[gone] = set()
        self.bytes[gone] = {}
        self.cost[keep] += self.cost[gone]
        self.at[keep] = place
        self.here[place] = keep
        self.into[gone] = keep
        self.left -= 1
        return keep

    def _root(self, x: int) -> int:
        while self.into[x] != x:
            self.into[x] = self.into[self.into[x]]
            x = self.into[x]
        return x
