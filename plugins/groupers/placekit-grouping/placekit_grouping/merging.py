"""Small groups are merged with their neighbours, without closing a cycle in the forward phase."""

from __future__ import annotations

import heapq
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from placekit_core.grouping import strongly_connected
from placekit_grouping.units import Ints, Units

FLOPS_PER_S, BYTES_PER_S, LAUNCH_S = 1e13, 5e11, 5e-6  # of a nominal device: groups are only compared with each other


def nominal_s(units: Units) -> NDArray[np.float64]:
    """[n] seconds of each operation on a nominal device; 0 for sources."""
    graph = units.graph
    busy = np.maximum(graph.flops / FLOPS_PER_S, graph.bytes_accessed / BYTES_PER_S)
    return np.asarray(np.where(graph.kernel, LAUNCH_S + busy, 0.0))


def merge_small(units: Units, group: Ints, max_groups: int | None, min_share: float) -> Ints:
    """[u] groups after merging, from groups [u] numbered 0..g-1 whose forward phase has no cycle.

    While there are more than `max_groups`, or the cheapest costs less than `min_share` of the whole: the cheapest group
    joins the neighbour with which it exchanges most bytes (in both directions, over all phases), among those that keep
    the forward phase free of cycles and may run on the same device types.

    Which neighbours are safe. Let the groups be in a topological order `at` of the forward phase. Merging x with v closes
    a cycle if and only if there is a path from one to the other through a third group. There is none

    - between x and the first of its successors: such a path would begin with an earlier successor. Nothing between x and
      v can be reached from x, so the merged group can take the place of v.
    - between the last of its predecessors and x, likewise; the merged group takes the place of the predecessor.
    - between x and a successor that has no other predecessor: such a path would end with another one. The merged group
      takes the place of x. Likewise for a predecessor that has no other successor.
    - where one of the two has neither predecessors nor successors; the other's place is kept.

    So `at` stays a topological order, and every group has a safe neighbour if it has any: only device types can stop it.
    """
    return _Merging(units, group).run(max_groups, min_share)


class _Merging:
    def __init__(self, units: Units, group: Ints) -> None:
        graph = units.graph
        count = int(group.max(initial=-1)) + 1
        self.group, self.count = group, count
        self.cost: list[float] = np.bincount(group[units.of], nominal_s(units), minlength=count).tolist()
        types = np.full(count, -1, np.int64)
        np.bitwise_and.at(types, group, units.types)
        self.types: list[int] = types.tolist()
        a, b = group[units.source], group[units.target]
        key = np.unique(a[a != b] * count + b[a != b])
        self.at: list[int] = strongly_connected(count, key // max(count, 1), key % max(count, 1)).tolist()
        self.after: list[set[int]] = [set() for _ in range(count)]
        self.before: list[set[int]] = [set() for _ in range(count)]
        for k in key.tolist():
            self.after[k // count].add(k % count)
            self.before[k % count].add(k // count)
        self.bytes: list[dict[int, int]] = [{} for _ in range(count)]
        of = group[units.of]
        home, reader = of[graph.tensor_producer[graph.input_tensor]], of[graph.edge_op]
        crossing = np.unique((graph.input_tensor * count + reader)[home != reader])  # once per tensor and reading group
        for k in crossing.tolist():
            x, y, size = int(of[graph.tensor_producer[k // count]]), k % count, int(graph.tensor_bytes[k // count])
            self.bytes[x][y] = self.bytes[x].get(y, 0) + size
            self.bytes[y][x] = self.bytes[y].get(x, 0) + size
        self.into = list(range(count))

    def run(self, max_groups: int | None, min_share: float) -> Ints:
        least = min_share * sum(self.cost)
        heap = [(c, x) for x, c in enumerate(self.cost)]
        heapq.heapify(heap)
        stuck: set[int] = set()
        alone: defaultdict[int, list[int]] = defaultdict(list)  # by device types: groups that are connected to nothing
        left = self.count
        while heap and (heap[0][0] < least or left > (max_groups or left)):
            cost, x = heapq.heappop(heap)
            if self.into[x] != x or cost != self.cost[x] or x in stuck:
                continue
            choice = self._choose(x)
            if choice is None and not self.bytes[x] and not self.after[x] and not self.before[x]:
                alone[self.types[x]].append(x)
                if len(alone[self.types[x]]) < 2:
                    continue
                other = alone[self.types[x]].pop(0)
                alone[self.types[x]].clear()
                choice = (other, self.at[other])
            if choice is None:
                stuck.add(x)
                continue
            kept = self._merge(x, *choice)
            left -= 1
            for y in (kept, *self.bytes[kept], *self.after[kept], *self.before[kept]):
                if y in stuck or y == kept:
                    stuck.discard(y)
                    heapq.heappush(heap, (self.cost[y], y))
        if max_groups is not None and left > max_groups:
            left -= self._join_alone(alone, left - max_groups)
        root = np.asarray([self._root(x) for x in range(self.count)], np.int64)
        return root[self.group]

    def _join_alone(self, alone: dict[int, list[int]], excess: int) -> int:
        """Put a lone group with any group of its device types: nothing orders it. Returns how many were merged."""
        merged = 0
        for kind, waiting in alone.items():
            others = [y for y in range(self.count) if self.into[y] == y and self.types[y] == kind]
            for x in waiting:
                rest = [y for y in others if y != x and self.into[y] == y]
                if merged < excess and self.into[x] == x and rest:
                    y = min(rest, key=lambda y: (self.cost[y], y))
                    self._merge(x, y, self.at[y])
                    merged += 1
        return merged

    def _root(self, x: int) -> int:
        while self.into[x] != x:
            self.into[x] = self.into[self.into[x]]
            x = self.into[x]
        return x

    def _choose(self, x: int) -> tuple[int, int] | None:
        """The safe neighbour with most bytes, and the place of the merged group in the order."""
        at, after, before = self.at, self.after[x], self.before[x]
        places: dict[int, int] = {}
        if not after and not before:
            places = {y: at[y] for y in self.bytes[x]}
        else:
            for y in self.bytes[x]:
                if not self.after[y] and not self.before[y]:
                    places[y] = at[x]
            places |= {y: at[x] for y in after if len(self.before[y]) == 1}
            places |= {y: at[x] for y in before if len(self.after[y]) == 1}
            if after:
                first = min(after, key=lambda y: at[y])
                places[first] = at[first]
            if before:
                last = max(before, key=lambda y: at[y])
                places[last] = at[last]
        places = {y: place for y, place in places.items() if self.types[y] == self.types[x]}
        if not places:
            return None
        best = min(places, key=lambda y: (-self.bytes[x].get(y, 0), self.cost[y], y))
        return best, places[best]

    def _merge(self, x: int, y: int, place: int) -> int:
        """Merge two groups; the one with fewer neighbours goes into the other. Returns the one that is kept."""
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
        self.into[gone] = keep
        return keep
