"""Groups that can be merged two at a time without closing a cycle in the forward phase."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from placekit_layers.repeated import nominal_s
from placekit_layers.units import Ints, Units, distinct_pairs

from placekit_core import strongly_connected


class Contraction:
    """Groups [u] numbered 0..g-1 without a cycle in their forward phase, and merges that create none.

    When two groups are safe to merge: let the groups be in a topological order `at` of the forward phase, with x before y.
    There is no path from y to x, so merging them closes a cycle if and only if a path from x to y goes through a third group.

    - If no predecessor of y comes after x, there is no such path: its last step would be a predecessor of y that is reachable
      from x, and so comes after x. The merged group takes the place of x: groups that feed x or y come before it, groups that
      read from x come after it, and groups that read from y come after y.
    - The same holds if no successor of x comes before y; then the merged group takes the place of y.

    So `at` stays a topological order. Pairs that meet the rule include: x and its first successor; y and its last predecessor;
    a group and the only group that it reads from, or that reads from it; a group without neighbours in the forward phase and
    any other; two that follow each other in the order. If any two groups of equal types meet the rule, then so do two with no
    other group of these types between them (y and the one before it, in the first case), so `safe_adjacent` finds one.

    Attributes:
        remaining: number of groups that are left; the others were merged into them.
        cost: [g] seconds on a nominal device, of all phases.
        types: [g] device types (see `Units`); only groups with equal types are merged.
        at: [g] place of each group in the order, all different.
        after, before: [g] successors and predecessors of each group in the forward phase.
        bytes: [g] by other group: bytes that the two exchange in both directions, over all phases, each tensor once.
        merged_into: [g] the group that each was merged into; itself for a remaining group.
        group_at: [g] by place: the group at this place, or the last one that was.
        earlier, later: [g] by place: the next place in each direction with a group of equal types; -1 if there is none.
    """

    def __init__(self, units: Units, group: Ints) -> None:
        graph = units.graph
        count = int(group.max(initial=-1)) + 1
        self.group, self.remaining = group, count
        self.cost: list[float] = np.bincount(group[units.of], nominal_s(units.graph), minlength=count).tolist()
        self.total = sum(self.cost)
        types = np.full(count, -1, np.int64)
        np.bitwise_and.at(types, group, units.types)
        self.types: list[int] = types.tolist()
        a, b = group[units.source], group[units.target]
        source, target = distinct_pairs(a[a != b], b[a != b])
        self.at: list[int] = strongly_connected(count, source, target).tolist()
        self.group_at: list[int] = np.argsort(self.at).tolist()
        self.earlier, self.later = [-1] * count, [-1] * count
        latest: dict[int, int] = {}
        for place, x in enumerate(self.group_at):
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
        self.merged_into = list(range(count))

    def groups(self) -> Iterator[int]:
        """The remaining groups, ascending."""
        return (x for x, y in enumerate(self.merged_into) if x == y)

    def result(self) -> Ints:
        """[u] groups of the units; not every number is used."""
        return np.asarray([self._root(x) for x in range(len(self.merged_into))], np.int64)[self.group]

    def safe_neighbours(self, x: int) -> dict[int, int]:
        """Neighbours that are safe to merge with x, and the place of the merged group in the order.

        There may be more: these are found quickly, from the neighbours of x and the numbers of their neighbours.
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

    def adjacent(self, x: int) -> list[int]:
        """The closest groups of the same types before and after x in the order."""
        return [self.group_at[p] for p in (self.earlier[self.at[x]], self.later[self.at[x]]) if p >= 0]

    def safe_adjacent(self, x: int) -> dict[int, int]:
        """The groups of `adjacent` that are safe to merge with x, connected or not, and the place of the merged group."""
        found = ((y, self.place(x, y)) for y in self.adjacent(x))
        return {y: place for y, place in found if place is not None}

    def place(self, x: int, y: int) -> int | None:
        """Place of the merged group in the order if x and y are safe to merge; else None."""
        at = self.at
        if self.types[x] != self.types[y]:
            return None
        if at[x] > at[y]:
            x, y = y, x
        # a hub keeps its place; check its neighbours only if those of the other group do not decide
        if len(self.before[y]) <= len(self.after[x]) and all(at[z] <= at[x] for z in self.before[y]):
            return at[x]
        if all(at[z] >= at[y] for z in self.after[x]):
            return at[y]
        return at[x] if all(at[z] <= at[x] for z in self.before[y]) else None

    def merge(self, x: int, y: int, place: int) -> int:
        """Merge the group with fewer neighbours into the other one. Returns the remaining group."""
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
        self.group_at[place] = keep
        self.merged_into[gone] = keep
        self.remaining -= 1
        return keep

    def _root(self, x: int) -> int:
        while self.merged_into[x] != x:
            self.merged_into[x] = self.merged_into[self.merged_into[x]]
            x = self.merged_into[x]
        return x
