"""The bound of what exceeds the memory of fast devices: never above the best of all placements, and exact where it must be."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from placekit_scheduling import ROUNDING, makespan_bound, offload_bound

from placekit_core import Cluster, CostTable, Graph, GraphBuilder, Grouping, Placements, Problem, installed


def machine(memory_bytes: int, gpus: int = 1, **link: Any) -> Cluster:
    """GPUs and a CPU with much memory."""
    gpu = {"flops_per_s": {"float32": 1.0}, "memory_bytes": memory_bytes, "memory_bytes_per_s": 1.0}
    return Cluster.parse(
        {
            "kinds": {"gpu": gpu, "cpu": {**gpu, "type": "cpu", "memory_bytes": 10**6}},
            "devices": [{"kind": "gpu", "count": gpus}, {"kind": "cpu"}],
            "links": [{"bytes_per_s": 1.0, **({} if "mesh" in link else {"a": "*", "b": "hub"}), **link}],
        }
    )


def problem_of(graph: Graph, cluster: Cluster, gpu_s: Any, cpu_s: Any, grouping: Grouping | None = None) -> Problem:
    """Seconds of the operations, [n] or one for all."""
    rows = [np.where(graph.kernel, s, 0.0) for s in (gpu_s, cpu_s)]
    op_s = np.stack(rows, axis=1).astype(np.float64)
    return Problem.of(graph, cluster, grouping, CostTable(("gpu", "cpu"), op_s, np.zeros(op_s.shape, np.bool_)))


def chain(weights: list[int], allowed: str = "") -> Graph:
    b = GraphBuilder("chain")
    x: list[int] = []
    for i, size in enumerate(weights):
        x = b.add(f"op{i}", inputs=[*x, b.source(f"w{i}", size)], outputs=[0], allowed=allowed)
    return b.build()


def test_what_exceeds_the_memory_is_copied() -> None:
    """60 bytes on a device of 40: 20 are copied, at 1 byte per second, unless the CPU computes."""
    graph = chain([10] * 6, allowed="gpu")
    assert offload_bound(problem_of(graph, machine(40), 0.001, 1.0)) == pytest.approx(20, rel=0.01)
    assert offload_bound(problem_of(graph, machine(40, bytes_per_s=4.0), 0.001, 1.0)) == pytest.approx(5, rel=0.01)
    assert offload_bound(problem_of(graph, machine(40, concurrent=2), 0.001, 1.0)) == pytest.approx(10, rel=0.01)
    assert offload_bound(problem_of(graph, machine(60), 0.001, 1.0)) == 0.0


def test_the_cpu_computes_what_it_can_in_that_time() -> None:
    """Two weights are left: copying one takes 10 s, computing one on the CPU 30 s; both at once, in parts: 15 s."""
    graph = chain([10] * 6)
    assert offload_bound(problem_of(graph, machine(40), 0.001, 30.0)) == pytest.approx(15, rel=0.01)
    assert offload_bound(problem_of(graph, machine(40, concurrent="unlimited"), 0.001, 30.0)) < 1e-3


def test_a_mesh_has_a_channel_for_each_gpu() -> None:
    graph = chain([10] * 6, allowed="gpu")
    assert offload_bound(problem_of(graph, machine(20, 2, mesh="*"), 0.001, 1.0)) == pytest.approx(10, rel=0.01)
    assert offload_bound(problem_of(graph, machine(20, 2), 0.001, 1.0)) == pytest.approx(20, rel=0.01)


def test_what_is_in_one_group_is_not_copied() -> None:
    graph = chain([10] * 6)
    together = Grouping(np.repeat(np.arange(6), 2).astype(np.int32))
    apart, glued = (problem_of(graph, machine(40), 0.001, 30.0, g) for g in (None, together))
    assert offload_bound(glued) == pytest.approx(60, rel=0.01)
    assert offload_bound(apart) == pytest.approx(15, rel=0.01)


def test_machines_of_one_kind_and_graphs_without_sources() -> None:
    gpu = {"flops_per_s": {"float32": 1.0}, "memory_bytes": 40, "memory_bytes_per_s": 1.0}
    links = [{"mesh": "*", "bytes_per_s": 1.0}]
    one = Cluster.parse({"kinds": {"gpu": gpu}, "devices": [{"kind": "gpu", "count": 2}], "links": links})
    assert offload_bound(Problem.of(chain([10] * 6), one)) == 0.0
    b = GraphBuilder("plain")
    b.add("a", flops=1.0)
    assert offload_bound(Problem.of(b.build(), machine(40))) == 0.0


def random_problem(rng: np.random.Generator) -> Problem:
    """A few large weights, read by one or more operations; a small GPU or two, a slow link, a slow CPU."""
    gpus = int(rng.integers(1, 3))
    n = int(rng.integers(3, 6 if gpus == 1 else 4))
    b = GraphBuilder("random")
    w = [b.source(f"w{i}", int(rng.integers(8, 14))) for i in range(n)]
    x: list[int] = []
    for i in range(n):
        reads = {w[i], *(t for t in w if rng.random() < 0.2)}
        before = x if rng.random() < 0.7 else []
        x = b.add(f"op{i}", inputs=[*before, *reads], outputs=[int(rng.integers(0, 2))])
    link = {"bytes_per_s": float(rng.choice([0.5, 1.0, 2.0])), "concurrent": int(rng.integers(1, 3))}
    if rng.random() < 0.3:
        link["mesh"] = "*"
    graph, cluster = b.build(), machine(int(rng.integers(25, 45)), gpus, **link)
    return problem_of(graph, cluster, rng.random(graph.n), rng.integers(50, 200, graph.n))


def test_no_placement_that_fits_is_faster() -> None:
    """All placements of small problems, streamed and not."""
    pytest.importorskip("placekit_sim")
    entry = installed().get("backend", "simulator")
    backends = [entry.build(entry.component.config(threads=1, prefetch=p)) for p in (None, 0)]
    reached, higher = [], 0
    for seed in range(50):
        problem = random_problem(np.random.default_rng(seed))
        bound = offload_bound(problem)
        if not bound:
            continue
        devices = np.asarray(list(itertools.product(range(problem.cluster.size), repeat=problem.g)), np.int16)
        best = np.inf
        for backend in backends:
            measured = backend.open(problem).evaluate(Placements.of(devices))
            best = min(best, measured.value_s[measured.fits].min(initial=np.inf))
        assert bound * (1 - ROUNDING) <= best, seed
        if best < np.inf:
            reached.append(bound / best)
            higher += bound > makespan_bound(problem) * 1.01
    assert len(reached) > 10
    assert max(reached) > 0.3
    assert higher >= 1


def test_streaming_simulators_prove_it() -> None:
    pytest.importorskip("placekit_sim")
    entry = installed().get("backend", "simulator")
    problem = problem_of(chain([10] * 6, allowed="gpu"), machine(40), 0.001, 1.0)
    streamed, plain = (
        entry.build(entry.component.config(threads=1, prefetch=p)).open(problem).lower_bound() for p in (1, None)
    )
    assert streamed == pytest.approx(20, rel=0.01)
    assert plain == makespan_bound(problem)
