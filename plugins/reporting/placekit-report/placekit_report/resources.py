"""Builds machines with more of one resource, to simulate a program on them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placekit_core import Cluster, CostTable, Problem, roofline

LINKS = 16
"""Up to this many links, each is changed by itself, too."""


@dataclass(frozen=True, eq=False)
class Resource:
    """A machine with more of one resource.

    Attributes:
        name: the change, as a sentence.
        cluster: the machine.
        speed: by kind, how many times as fast it computes; applied to operations whose work is not known.
    """

    name: str
    cluster: Cluster
    speed: Mapping[str, float] = field(default_factory=dict)

    def problem(self, problem: Problem) -> Problem:
        """The same program and groups on this machine."""
        costs = scaled_costs(problem, self.cluster, self.speed)
        return Problem(problem.graph, problem.grouping, self.cluster, costs)


def more_of_each(cluster: Cluster) -> list[Resource]:
    """The variants of a machine: a kind of device with twice the FLOP/s or memory bandwidth, or without launch overhead; hosts
    that launch twice as fast; a link, or all links, with twice the bandwidth or half the latency.

    An entry of the machine's file that links several pairs counts as one link. Above `LINKS` links, only all are changed.
    """
    found = []
    for kind in cluster.kind_names:
        who = f"each {kind}" if cluster.device_kind.count(kind) > 1 else kind
        k = cluster.kinds[kind]
        rates = {dtype: 2 * rate for dtype, rate in k.flops_per_s.items()}
        found.append(Resource(f"{who} computes 2x as fast", _with(cluster, kind, flops_per_s=rates), {kind: 2.0}))
        wide = _with(cluster, kind, memory_bytes_per_s=2 * k.memory_bytes_per_s)
        found.append(Resource(f"{who} has 2x the memory bandwidth", wide))
        if k.launch_overhead_s > 0:
            found.append(Resource(f"{who} has no launch overhead", _with(cluster, kind, launch_overhead_s=0.0)))
    if cluster.launchers.any:
        who = "the host launches" if len(cluster.hosts) == 1 else "the hosts launch"
        found.append(Resource(f"{who} 2x as fast", _hosted(cluster, "launch_s")))
    if cluster.launchers.handover_s.any():
        found.append(Resource("hand-overs take half the time", _hosted(cluster, "handover_s", "graph_handover_s")))
    each = [(_link_name(cluster, i), [i]) for i in range(len(cluster.links))]
    every = [("all links", list(range(len(each))))] if len(each) > 1 else []
    for name, links in (*every, *(each if len(each) <= LINKS else [])):
        found.append(Resource(f"{name}: 2x the bandwidth", _linked(cluster, links, "bytes_per_s", 2.0)))
        found.append(Resource(f"{name}: half the latency", _linked(cluster, links, "latency_s", 0.5)))
    return found


def launch_share(problem: Problem) -> NDArray[np.float64]:
    """[n, D] the share of launch overhead in each operation's seconds; 0 if these were measured or given, not estimated."""
    before = roofline(problem.graph, problem.cluster).on(problem.cluster)
    data = problem.cluster.model_dump()
    for kind in data["kinds"].values():
        kind["launch_overhead_s"] = 0.0
    without = roofline(problem.graph, Cluster.parse(data)).on(problem.cluster)
    estimated = (problem.op_s == before) & (before > 0)
    return np.where(estimated, 1.0 - without / np.where(before > 0, before, 1.0), 0.0)


def scaled_costs(problem: Problem, cluster: Cluster, speed: Mapping[str, float]) -> CostTable:
    """The seconds of the problem's operations on a changed machine.

    Estimated seconds are estimated again. Measured or given seconds change by the same factor as their estimate, or by
    `speed` of the kind if the operation's work is not known.
    """
    graph, costs = problem.graph, problem.costs
    before, after = roofline(graph, problem.cluster), roofline(graph, cluster)
    unknown = (graph.flops == 0) & (graph.bytes_accessed == 0)
    op_s = costs.op_s.copy()
    for k, kind in enumerate(before.kinds):
        column = costs.kinds.index(kind)
        own, old, new = costs.op_s[:, column], before.op_s[:, k], after.op_s[:, k]
        factor = np.where(old > 0, new / np.where(old > 0, old, 1.0), 1.0)
        factor = np.where(unknown, 1.0 / speed.get(kind, 1.0), factor)
        op_s[:, column] = np.where(own == old, new, own * factor)
    return CostTable(costs.kinds, op_s, costs.measured)


def is_same(one: Problem, other: Problem) -> bool:
    """Whether a program's operations, launches and transfers take the same seconds on both machines."""
    a, b = one.cluster.routes, other.cluster.routes
    return (
        np.array_equal(one.op_s, other.op_s)
        and np.array_equal(a.latency_s, b.latency_s)
        and np.array_equal(a.s_per_byte, b.s_per_byte)
        and np.array_equal(one.cluster.launchers.launch_s, other.cluster.launchers.launch_s)
    )


def _with(cluster: Cluster, kind: str, **changes: Any) -> Cluster:
    """The machine with some properties of a kind of device changed."""
    data = cluster.model_dump()
    data["kinds"][kind] |= changes
    return Cluster.parse(data, cluster.name)


def _hosted(cluster: Cluster, *names: str) -> Cluster:
    """The machine with half of these seconds of all hosts."""
    data = cluster.model_dump()
    for host in data["hosts"]:
        host |= {name: 0.5 * host[name] for name in names}
    return Cluster.parse(data, cluster.name)


def _linked(cluster: Cluster, links: Sequence[int], name: str, factor: float) -> Cluster:
    """The machine with the property `name` of these links multiplied, in both directions."""
    data = cluster.model_dump()
    for i in links:
        for way in (data["links"][i], data["links"][i]["reverse"]):
            if way is not None:
                way[name] *= factor
    return Cluster.parse(data, cluster.name)


def _link_name(cluster: Cluster, i: int) -> str:
    link = cluster.links[i]
    if link.mesh is not None:
        return "links among " + (link.mesh if isinstance(link.mesh, str) else ", ".join(link.mesh))
    several = any(c in f"{link.a}{link.b}" for c in "*?[")
    return f"{'links' if several else 'link'} {link.a} - {link.b}"
