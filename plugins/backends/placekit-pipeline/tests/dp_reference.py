"""The dynamic program of Tarnawski et al. (NeurIPS 2020, section 5) for graphs in the format of `msr`, in plain Python.

It imports nothing of placekit. A class is the nodes of one colour, or of several colours on a cycle; a set of classes is an
integer with one bit for each. A class without forward nodes gets an artificial one, whose edges mirror the backward ones (their
appendix).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any


def contiguous_optimum(doc: dict[str, Any]) -> float:
    """The least largest load, ms, of contiguous splits; infinite if none fits."""
    nodes = {node["id"]: node for node in doc["nodes"]}
    edges = [(edge["sourceId"], edge["destId"]) for edge in doc["edges"]]
    color = {i: ("color", node["colorClass"]) if "colorClass" in node else ("node", i) for i, node in nodes.items()}
    forward = {color[i] for i, node in nodes.items() if not node["isBackwardNode"]}
    order = set[tuple[Any, Any]]()
    for u, v in edges:
        if not nodes[v]["isBackwardNode"]:
            order.add((color[u], color[v]))
        elif nodes[u]["isBackwardNode"] and not {color[u], color[v]} <= forward:
            order.add((color[v], color[u]))
    reach = {a: _reachable(a, order) for a in color.values()}
    members: dict[frozenset[Any], list[Any]] = {}
    for i in nodes:
        cycle = frozenset(b for b in reach[color[i]] if color[i] in reach[b])
        members.setdefault(cycle, []).append(i)
    number = {i: k for k, some in enumerate(members.values()) for i in some}
    of_color = {color[i]: number[i] for i in nodes}
    needs = [0] * len(members)
    for a, b in order:
        if of_color[a] != of_color[b]:
            needs[of_color[b]] |= 1 << of_color[a]
    return _Program(doc, nodes, edges, number, list(members.values())).best(_ideals(needs))


def _reachable(start: Any, order: Iterable[tuple[Any, Any]]) -> set[Any]:
    after: dict[Any, list[Any]] = {}
    for a, b in order:
        after.setdefault(a, []).append(b)
    found, stack = {start}, [start]
    while stack:
        new = [b for b in after.get(stack.pop(), ()) if b not in found]
        found.update(new)
        stack += new
    return found


def _ideals(needs: list[int]) -> list[int]:
    found, stack = {0}, [0]
    while stack:
        ideal = stack.pop()
        for k, need in enumerate(needs):
            larger = ideal | 1 << k
            if need & ideal == need and larger not in found:
                found.add(larger)
                stack.append(larger)
    return sorted(found, key=lambda ideal: (ideal.bit_count(), ideal))


class _Program:
    def __init__(
        self,
        doc: dict[str, Any],
        nodes: dict[int, Any],
        edges: list[tuple[int, int]],
        number: dict[int, int],
        members: Any,
    ) -> None:
        self.doc, self.nodes, self.members = doc, nodes, members
        self.cost = {edge["sourceId"]: edge["cost"] for edge in doc["edges"]}
        self.maker = {u: 1 << number[u] for u in self.cost}
        self.readers = dict.fromkeys(self.cost, 0)
        for u, v in edges:
            self.readers[u] |= 1 << number[v]

    def loads(self, stage: int) -> tuple[float, float]:
        """The load of a set of classes on an accelerator and on a CPU, ms."""
        own = [self.nodes[i] for k, some in enumerate(self.members) if stage >> k & 1 for i in some]
        crosses = (
            u
            for u, maker in self.maker.items()
            if (self.readers[u] & ~stage if maker & stage else self.readers[u] & stage)
        )
        accelerator = sum(node["fpgaLatency"] for node in own) + sum(self.cost[u] for u in crosses)
        fits = sum(math.ceil(node["size"]) for node in own) <= self.doc["maxSizePerFPGA"]
        if not fits or not all(node["supportedOnFpga"] for node in own):
            accelerator = math.inf
        return accelerator, sum(node["cpuLatency"] for node in own)

    def best(self, ideals: list[int]) -> float:
        """`value[f, c]` of an ideal: the least largest load of its classes on f accelerators and c CPUs."""
        accelerators, cpus = self.doc["maxFPGAs"], self.doc["maxCPUs"]
        devices = [(f, c) for f in range(accelerators + 1) for c in range(cpus + 1)]
        value = {0: dict.fromkeys(devices, 0.0)}
        for ideal in ideals[1:]:
            here = dict.fromkeys(devices, math.inf)
            for before in value:
                if before & ideal != before:
                    continue
                accelerator, cpu = self.loads(ideal & ~before)
                for f, c in devices:
                    if f:
                        here[f, c] = min(here[f, c], max(value[before][f - 1, c], accelerator))
                    if c:
                        here[f, c] = min(here[f, c], max(value[before][f, c - 1], cpu))
            value[ideal] = here
        return min(value[ideals[-1]].values())
