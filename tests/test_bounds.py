"""bounds.py: values by hand, and never above the best schedule found by trying every placement."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placekit_core.bounds import (
    THRESHOLDS,
    critical_path_bound,
    group_bound,
    makespan_bound,
    window_bound,
    work_bound,
)
from placekit_core.cluster import Cluster
from placekit_core.costs import CostTable
from placekit_core.graph import Graph, GraphBuilder
from placekit_core.grouping import Grouping
from placekit_core.list_scheduling import RULES, ListScheduler
from placekit_core.problem import Problem


def machine(gpus: int, cpus: int = 0, streams: Any = 1) -> Cluster:
    """Devices with channels so fast that communication takes almost nothing."""
    rates = {"flops_per_s": {"float32": 1.0}, "memory_bytes": 10**9, "memory_bytes_per_s": 1.0, "streams": streams}
    return Cluster.parse({
        "kinds": {"g": rates, "c": {**rates, "type": "cpu"}},
        "devices": [{"kind": "g", "count": gpus}] * (gpus > 0) + [{"kind": "c", "count": cpus}] * (cpus > 0),
        "links": [{"mesh": "*", "bytes_per_s": 1e15, "concurrent": "unlimited"}] if gpus + cpus > 1 else [],
    })  # fmt: skip


def problem_of(graph: Graph, cluster: Cluster, seconds: Any, groups: Any = None) -> Problem:
    kinds = cluster.kind_names
    table = np.broadcast_to(np.asarray(seconds, float).reshape(graph.n, -1), (graph.n, len(kinds))).copy()
    grouping = None if groups is None else Grouping(np.asarray(groups, np.int32))
    return Problem.of(graph, cluster, grouping, CostTable(kinds, table, np.zeros(table.shape, bool)))


def chain(n: int, **properties: Any) -> Graph:
    b = GraphBuilder("chain")
    tensor = [b.source("x", 1)]
    for i in range(n):
        tensor = [b.add(f"op{i}", inputs=[tensor[-1]], outputs=[1], **properties)[0]]
    return b.build()


def independent(n: int, allowed: tuple[str, ...] = ("",)) -> Graph:
    b = GraphBuilder("independent")
    for i in range(n):
        b.add(f"op{i}", outputs=[1], allowed=allowed[i % len(allowed)])
    return b.build()


def random_problem(rng: np.random.Generator) -> Problem:
    n = int(rng.integers(1, 8))
    b = GraphBuilder("random")
    tensors: list[int] = []
    for v in range(n):
        if rng.random() < 0.15:
            tensors.append(b.source(f"s{v}", 1))
            continue
        reads = [t for t in tensors if rng.random() < 2 / (len(tensors) + 1)]
        tensors += b.add(f"op{v}", inputs=reads, outputs=[1], allowed=("", "", "cpu", "gpu")[rng.integers(4)])
    graph = b.build()
    cluster = machine(int(rng.integers(1, 3)), 1, streams=int(rng.integers(1, 3)))
    return problem_of(graph, cluster, np.where(graph.kernel[:, None], rng.integers(0, 9, (n, 2)), 0))


def best_found(problem: Problem) -> float:
    """Least makespan over all placements and the list scheduling rules."""
    best = np.inf
    choices = [np.flatnonzero(row).tolist() for row in problem.allowed]
    for device in itertools.product(*choices):
        for rule in RULES:
            scheduler = ListScheduler(problem)
            for group, d in enumerate(device):
                scheduler.bind(group, d)
            best = min(best, scheduler.run(rule).makespan_s)
    return best


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_never_above_the_best_schedule(seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed))
    best = best_found(problem)
    for bound in (critical_path_bound, work_bound, group_bound, window_bound):
        assert bound(problem) <= best * (1 + 1e-9)
    assert makespan_bound(problem) <= best


def test_chain() -> None:
    """One after another, each on the device that is faster for it; the source takes no time."""
    p = problem_of(chain(3), machine(2, 1), [[0, 0], [5, 1], [2, 3], [4, 4]])
    assert critical_path_bound(p) == 1 + 2 + 4
    assert makespan_bound(p) == pytest.approx(7)
    only_gpu = problem_of(chain(3, allowed="gpu"), machine(2, 1), [[0, 0], [5, 1], [2, 3], [4, 4]])
    assert critical_path_bound(only_gpu) == 11


def test_work() -> None:
    for gpus, streams in ((1, 1), (2, 1), (2, 2)):
        p = problem_of(independent(8), machine(gpus, streams=streams), [1] * 8)
        assert work_bound(p) == pytest.approx(8 / (gpus * streams))
        assert makespan_bound(p) == pytest.approx(8 / (gpus * streams))
    unlimited = problem_of(independent(8), machine(2, streams="unlimited"), [1] * 8)
    assert makespan_bound(unlimited) == pytest.approx(1)


def test_work_on_unequal_devices() -> None:
    """100 operations of 1 s on the GPU, 9 s on the CPU: 90 and 10 of them take 90 s. Least times over two streams say 50."""
    p = problem_of(independent(100), machine(1, 1), [[1, 9]] * 100)
    assert work_bound(p) == pytest.approx(90, rel=1e-3)
    assert work_bound(p) <= 90
    # where half may run on the CPU only, that half is the bottleneck
    tied = problem_of(independent(100, ("", "cpu")), machine(1, 1), [[1, 9]] * 100)
    assert work_bound(tied) == pytest.approx(450, rel=1e-3)


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_weights_come_close_to_the_best_ones(seed: int) -> None:
    """Two kinds: the best weights by trying many."""
    rng = np.random.default_rng(seed)
    n, gpus, cpus = int(rng.integers(1, 60)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    seconds = rng.exponential(1.0, (n, 2)) * [1, rng.uniform(0.3, 20)]
    p = problem_of(independent(n, ("", "", "gpu", "cpu")), machine(gpus, cpus), seconds)
    share = np.linspace(0, 1, 4001)[1:-1, None, None] * [1, -1] + [0, 1]
    per_group = np.where(p.allowed[:, [0, gpus]], seconds, np.inf)
    best = (share / [gpus, cpus] * per_group).min(axis=2).sum(axis=1).max()
    assert work_bound(p) <= best * 1.001
    assert work_bound(p) >= best * 0.95
    equal = per_group.min(axis=1).sum() / (gpus + cpus)
    assert work_bound(p) >= equal * (1 - 1e-12)


def test_group() -> None:
    """Three independent operations in one group run one after another."""
    p = problem_of(independent(4), machine(4), [1] * 4, [0, 0, 0, 1])
    assert group_bound(p) == 3
    assert makespan_bound(p) == pytest.approx(3)
    two = problem_of(independent(4), machine(4, streams=2), [1] * 4, [0, 0, 0, 1])
    assert group_bound(two) == 1.5


def test_window() -> None:
    """2 s before and 3 s after eight operations of 1 s on two devices: 2 + 4 + 3, more than path (6) or work (6.5)."""
    b = GraphBuilder("window")
    (x,) = b.add("first", outputs=[1])
    middle = [b.add(f"op{i}", inputs=[x], outputs=[1])[0] for i in range(8)]
    b.add("last", inputs=middle)
    p = problem_of(b.build(), machine(2), [2, *[1] * 8, 3])
    assert critical_path_bound(p) == 6
    assert work_bound(p) == pytest.approx(6.5)
    assert window_bound(p) == pytest.approx(9)
    assert window_bound(p, 10) == 10
    assert makespan_bound(p) == pytest.approx(9)
    assert ListScheduler(p).run("etf").makespan_s == pytest.approx(9)


def test_no_kernels() -> None:
    b = GraphBuilder("sources")
    b.source("w", 1)
    assert makespan_bound(problem_of(b.build(), machine(2), [0])) == 0
    empty = Problem.of(GraphBuilder("empty").build(), machine(2))
    assert makespan_bound(empty) == 0
    for rule in RULES:
        assert ListScheduler(empty).run(rule).placement().device.tolist() == []


def test_long_chains_have_more_values_than_thresholds() -> None:
    n = 3 * THRESHOLDS
    p = problem_of(chain(n), machine(2), [0, *[1] * n])
    assert window_bound(p) <= n * (1 + 1e-9)
    assert makespan_bound(p) == pytest.approx(n)


def test_fifty_thousand_operations() -> None:
    rng = np.random.default_rng(0)
    b = GraphBuilder("large")
    tensors: list[int] = []
    for i in range(50_000):
        reads = {tensors[-1 - int(k)] for k in rng.integers(0, min(len(tensors), 40), 3)} if tensors else ()
        tensors += b.add(f"op{i}", inputs=reads, outputs=[1])
    p = problem_of(b.build(), machine(4, 1), rng.exponential(1.0, (50_000, 2)) * [1, 9])
    bound = makespan_bound(p)
    assert bound >= max(critical_path_bound(p), work_bound(p)) * (1 - 1e-6) > 0
    assert bound <= p.group_s[:, 0].sum()  # everything on one device, one after another
