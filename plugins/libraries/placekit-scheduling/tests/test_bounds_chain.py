"""The bound of chains whose parameters do not fit on the fastest devices: never above the best placement, and close to it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from placekit_scheduling import ROUNDING, all_bounds
from placekit_scheduling.bounds.makespan import chain_bound
from placekit_scheduling.bounds.relaxation import Relaxation

from placekit_core import Cluster, CostTable, Graph, GraphBuilder, Grouping, PlacekitError, Placements, Problem, installed


def machine(memory: tuple[int, ...], counts: tuple[int, ...] = (1, 1, 1), **link: Any) -> Cluster:
    """Kinds a, b, ... with `memory` bytes on each of their `counts` devices, all linked to one hub at 1 byte per second."""
    names = "abc"[: len(memory)]
    rates = {"flops_per_s": {"float32": 1.0}, "memory_bytes_per_s": 1.0}
    return Cluster.parse({
        "kinds": {k: {**rates, "memory_bytes": m} for k, m in zip(names, memory, strict=True)},
        "devices": [{"kind": k, "count": count} for k, count in zip(names, counts, strict=False)],
        "links": [{"bytes_per_s": 1.0, **({} if "mesh" in link else {"a": "*", "b": "hub"}), **link}],
    })  # fmt: skip


def problem_of(graph: Graph, cluster: Cluster, seconds: Any, grouping: Grouping | None = None) -> Problem:
    """Seconds of kernels on each kind, [K] or [n, K]."""
    table = np.where(graph.kernel[:, None], np.asarray(seconds, float), 0.0)
    return Problem.of(graph, cluster, grouping, CostTable(cluster.kind_names, table, np.zeros(table.shape, np.bool_)))


def random_problem(rng: np.random.Generator) -> Problem:
    """A chain of kernels and of pairs of kernels, with weights of their own, caches or none; two or three kinds of devices."""
    while True:
        kinds = int(rng.integers(2, 4))
        counts = tuple(int(rng.choice([1, 1, 2])) for _ in range(kinds)) if kinds == 2 else (1, 1, 1)
        b, x, layer = GraphBuilder("random"), list[int](), list[int]()
        shared = b.source("shared", int(rng.integers(1, 9))) if rng.random() < 0.3 else None
        for i in range(int(rng.integers(2, 5))):
            made: list[int] = []
            for j in range(int(rng.choice([1, 1, 2]))):
                reads = [*x, *([shared] if shared is not None and rng.random() < 0.5 else [])]
                own = int(rng.integers(0, 9)) if rng.random() < 0.3 else 0
                if rng.random() < 0.7:
                    reads.append(b.source(f"w{i}.{j}", int(rng.integers(2, 14))))
                made += b.add(f"op{i}.{j}", inputs=reads, outputs=[int(rng.integers(0, 3))], persistent_bytes=own)
            x = made if rng.random() < 0.9 else [*x, *made]
            layer += [i] * (len(b.operations) - len(layer))
        graph = b.build()
        whole = int(graph.persistent_bytes.sum())
        memory = tuple(int(rng.integers(1, max(whole, 2))) for _ in range(kinds - 1)) + (whole + 9,)
        link = {"bytes_per_s": float(rng.choice([0.2, 1.0, 5.0])), "concurrent": ("unlimited", 1, 1, 2)[rng.integers(4)],
                "latency_s": float(rng.integers(0, 2))}  # fmt: skip
        if rng.random() < 0.3:
            link["mesh"] = "*"
        grouping = Grouping(np.asarray(layer, np.int32)) if rng.random() < 0.5 else None
        seconds = rng.integers(0, 9, (graph.n, kinds)) * np.asarray([1, 3, 9])[:kinds]
        try:
            problem = problem_of(graph, machine(memory, counts, **link), seconds, grouping)
        except PlacekitError:
            continue
        if problem.cluster.size**problem.g <= 3**7:
            return problem


def fastest(problem: Problem, backends: list[Any]) -> float:
    """Seconds of the fastest placement that fits, in any of the backends; inf if none fits."""
    devices = np.asarray(list(itertools.product(range(problem.cluster.size), repeat=problem.g)), np.int16)
    best = np.inf
    for backend in backends:
        measured = backend.open(problem).evaluate(Placements.of(devices))
        best = min(best, measured.value_s[measured.fits].min(initial=np.inf))
    return best
