"""Small problems of whole seconds and bytes, for the tests of list scheduling and of bounds; and what a schedule keeps."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from placekit_scheduling import ListScheduler, makespan_bound
from placekit_testing import strategies

from placekit_core import Cluster, CostTable, Graph, GraphBuilder, Grouping, Labels, PlacekitError, Problem


def machine(
    gpus: int = 2, cpus: int = 0, memory: int = 10**9, bytes_per_s: float = 1.0, streams: int | str = 1, **link: Any
) -> Cluster:
    """Devices g:0.. and c:0.., a channel per ordered pair."""
    rates = {"flops_per_s": {"float32": 1.0}, "memory_bytes": memory, "memory_bytes_per_s": 1.0, "streams": streams}
    return Cluster.parse({
        "kinds": {"g": rates, "c": {**rates, "type": "cpu"}},
        "devices": [{"kind": "g", "count": gpus}] + [{"kind": "c", "count": cpus}] * (cpus > 0),
        "links": [{"mesh": "*", "bytes_per_s": bytes_per_s, **link}] if gpus + cpus > 1 else [],
    })  # fmt: skip


def problem_of(graph: Graph, cluster: Cluster, seconds: Any, groups: Any = None) -> Problem:
    """A problem with these seconds per operation (or per operation and device kind); `groups` [n] the group of each."""
    kinds = cluster.kind_names
    table = np.broadcast_to(np.asarray(seconds, float).reshape(graph.n, -1), (graph.n, len(kinds))).copy()
    grouping = None if groups is None else Grouping(np.asarray(groups, np.int32))
    return Problem.of(graph, cluster, grouping, CostTable(kinds, table, np.zeros(table.shape, bool)))


def topcuoglu() -> Problem:
    """The example of Topcuoglu et al. 2002 (Fig. 2): ten tasks, three processors, every edge with its own data."""
    edges = {
        (1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14, (2, 8): 19, (2, 9): 16, (3, 7): 23, (4, 8): 27,
        (4, 9): 23, (5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11, (9, 10): 13,
    }  # fmt: skip
    seconds = [
        [14, 16, 9], [13, 19, 18], [11, 13, 19], [13, 8, 17], [12, 13, 10], [13, 16, 9], [7, 15, 11], [5, 11, 14],
        [18, 12, 20], [21, 7, 16],
    ]  # fmt: skip
    b = GraphBuilder("topcuoglu")
    for i in range(1, 11):
        b.add(f"n{i}")
    for (u, v), size in edges.items():
        b.operations[v - 1].inputs.append(b.output(u - 1, size))
    kind = {"flops_per_s": {"float32": 1.0}, "memory_bytes": 1000, "memory_bytes_per_s": 1.0}
    cluster = Cluster.parse({
        "kinds": {f"p{i}": kind for i in (1, 2, 3)}, "devices": [{"kind": f"p{i}"} for i in (1, 2, 3)],
        "links": [{"mesh": "*", "bytes_per_s": 1, "concurrent": "unlimited"}],
    })  # fmt: skip
    return problem_of(b.build(), cluster, seconds)


def random_problem(rng: np.random.Generator, tight: bool = False) -> Problem:
    """Sources, several outputs, co-located sets, groups, device types, several streams and lanes."""
    n = int(rng.integers(1, 40))
    b = GraphBuilder("random")
    tensors: list[int] = []
    for v in range(n):
        set_ = int(rng.integers(0, 4)) if rng.random() < 0.2 else -1
        if rng.random() < 0.25:
            tensors.append(b.source(f"s{v}", int(rng.integers(1, 20)), colocate=set_))
            continue
        reads = [t for t in tensors if rng.random() < 3 / (len(tensors) + 1)]
        outputs = rng.integers(0, 20, int(rng.integers(1, 3))).tolist()
        only = "cpu" if rng.random() < 0.1 else ""
        tensors += b.add(f"op{v}", inputs=reads, outputs=outputs, colocate=set_, allowed=only)
    graph = b.build()
    cluster = machine(
        int(rng.integers(1, 4)), 1, memory=max(int(graph.persistent_bytes.sum()), 1) if tight else 10**9,
        bytes_per_s=2.0 ** int(rng.integers(0, 5)),  # times are exact: ties are ties
        streams=("unlimited", 1, 1, 2)[rng.integers(4)],
        latency_s=float(rng.integers(0, 2)), concurrent=("unlimited", 1, 1, 2)[rng.integers(4)],
    )  # fmt: skip
    seconds = np.where(graph.kernel[:, None], rng.integers(0, 9, (n, 2)), 0)
    return problem_of(graph, cluster, seconds)


def check_schedule(scheduler: ListScheduler) -> None:
    """Every operation is on an allowed device, after what it reads, and streams run one operation at a time."""
    p, placement = scheduler.problem, scheduler.placement()
    graph, device = p.graph, p.expand(placement.device)
    start, finish = scheduler.start_s, scheduler.finish_s
    assert np.allclose(finish, start + p.op_s[np.arange(graph.n), device])
    latency, inverse = p.cluster.routes.latency_s, p.cluster.routes.s_per_byte
    for v in np.flatnonzero(graph.kernel):
        for t in graph.inputs(int(v)):
            u = graph.tensor_producer[t]
            sent = latency[device[u], device[v]] + graph.tensor_bytes[t] * inverse[device[u], device[v]]
            assert start[v] >= finish[u] + (sent if device[u] != device[v] else 0) - 1e-9
    for d in range(p.cluster.size):
        here = np.flatnonzero(graph.kernel & (device == d) & (finish > start))
        for v in here:
            running = (start[here] <= start[v]) & (finish[here] > start[v])
            assert running.sum() <= p.cluster.streams[d]
    assert scheduler.makespan_s >= makespan_bound(p)
    bound = scheduler.group_device >= 0
    used = np.bincount(scheduler.group_device[bound], p.group_persistent_bytes[bound], minlength=p.cluster.size)
    assert scheduler.used_bytes.tolist() == used.tolist()


def small_problem(rng: np.random.Generator) -> tuple[Problem, np.ndarray]:
    """A problem of few placements, on any of the machines, often with little memory; and all its placements [b, g]."""
    while True:
        graph = strategies.random_graph(rng, int(rng.integers(3, 7)))
        if rng.random() < 0.5:
            graph = graph.replace(allowed=Labels.of(rng.choice(["", "", "cpu", "gpu"], graph.n).tolist()))
        data = strategies.random_cluster(rng, int(rng.integers(1, 4))).model_dump(mode="json")
        if rng.random() < 0.5:
            for kind in data["kinds"].values():
                kind["memory_bytes"] = int(rng.integers(4, 60))
        try:
            cluster = Cluster.parse(data)
            groups = strategies.random_grouping(rng, graph)
            problem = Problem(graph, groups, cluster, strategies.random_costs(rng, graph, cluster))
        except PlacekitError:  # no device for a group, or too little memory for the parameters
            continue
        if problem.allowed.sum(axis=1).prod() <= 3**5:
            devices = list(itertools.product(*[np.flatnonzero(row) for row in problem.allowed]))
            return problem, np.asarray(devices, np.int16).reshape(-1, problem.g)
