"""labels.py: values by hand, and what holds of every single operation of every schedule."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from placekit_scheduling import all_bounds
from placekit_scheduling.bounds import labels, makespan
from placekit_scheduling.bounds.relaxation import Relaxation
from placekit_testing import strategies
from schedule_problems import machine, problem_of

from placekit_core import Cluster, Graph, GraphBuilder, Labels, PlacekitError, Placements, Problem, installed

ROUNDING = 1e-9


def module(branches: int, length: int, wide: int, narrow: int) -> Graph:
    """Kernel `fork`, which writes `wide` bytes; chains of kernels that write `narrow` bytes; kernel `join`."""
    b = GraphBuilder("module")
    [x] = b.add("fork", outputs=[wide])
    ends = [x] * branches
    for i, j in itertools.product(range(branches), range(length)):
        [ends[i]] = b.add(f"op{i}.{j}", inputs=[ends[i]], outputs=[narrow])
    b.add("join", inputs=ends)
    return b.build()


def hub(devices: int) -> Cluster:
    """One link of each device, with a channel in and a channel out."""
    kind = {"flops_per_s": {"float32": 1.0}, "memory_bytes": 10**9, "memory_bytes_per_s": 1.0}
    return Cluster.parse({
        "name": "hub", "kinds": {"g": kind}, "devices": [{"kind": "g", "count": devices}],
        "links": [{"a": "g:*", "b": "hub", "bytes_per_s": 1.0}],
    })  # fmt: skip


def accumulation(steps: int, weight: int) -> Graph:
    """A chain of kernels; each has a gradient of `weight` bytes, and the gradients are added up one after another."""
    b = GraphBuilder("accumulation")
    [x] = b.add("first", outputs=[0])
    total = None
    for i in range(steps):
        [x] = b.add(f"step{i}", inputs=[x], outputs=[0])
        [g] = b.add(f"gradient{i}", inputs=[x], outputs=[weight])
        if total is not None:
            [g] = b.add(f"add{i}", inputs=[total, g], outputs=[weight])
        total = g
    return b.build()


def best_found(problem: Problem) -> float:
    """Least makespan of the simulator, over all placements, with some orders."""
    entry, rng = installed().get("backend", "simulator"), np.random.default_rng(0)
    session = entry.build(entry.component.config(threads=1)).open(problem)
    devices = np.asarray(list(itertools.product(range(problem.cluster.size), repeat=problem.g)), np.int16)
    return min(
        float(session.evaluate(Placements.of(devices, rng.standard_normal(devices.shape))).value_s.min())
        for _ in range(8)
    )


def bounds(problem: Problem) -> tuple[float, float, float]:
    relaxation = Relaxation.of(problem)
    return (
        makespan.communication_bound(relaxation), makespan.detour_bound(relaxation), makespan.tree_bound(relaxation),
    )  # fmt: skip


def trees_alone(relaxation: Relaxation) -> float:
    """The longest path by heads of trees, without pairs."""
    assert relaxation.surroundings is not None
    no_detours = labels.Detours.none(len(relaxation.devices))
    head, _ = labels.raise_levels(relaxation, relaxation.levels, relaxation.surroundings, no_detours, trees=True)
    return float((head + relaxation.seconds).min(axis=1).max())


@pytest.mark.parametrize(
    ("length", "devices", "wide", "seconds", "communication_s", "least_s"),
    [
        (1, 3, 2, [3, 5], 5, 7),  # 3 s elsewhere: to there and back takes 2 + 2 s
        (2, 3, 8, [1, 1, 5, 5], 10, 11),
        (3, 2, 3, [1, 4, 2, 2, 2, 4], 9, 10),
    ],
)
def test_a_detour_begins_on_the_device_that_it_leaves(
    length: int, devices: int, wide: int, seconds: list[int], communication_s: float, least_s: float
) -> None:
    """Two chains between a fork and a join: what is elsewhere gets there and comes back; what is at home is run there."""
    pytest.importorskip("placekit_sim")
    p = problem_of(module(2, length, wide, narrow=2), machine(devices), [0, *seconds, 0])
    communication, detour, tree = bounds(p)
    assert communication == communication_s
    assert detour == tree == least_s == best_found(p)


def test_gradients_are_sent_or_made_one_after_another() -> None:
    """Nine gradients of 1 s, which take 12 s to be sent, and eight additions of 1 s: a device with one link does most of it."""
    graph = accumulation(9, 12)
    seconds = [0.0 if name.startswith(("first", "step")) else 1.0 for name in graph.op_name]
    relaxation = Relaxation.of(problem_of(graph, hub(4), seconds))
    assert makespan.communication_bound(relaxation) == 10
    assert trees_alone(relaxation) == pytest.approx(0.9 * 17 + 0.1)  # the last addition does not wait for itself
    assert makespan.tree_bound(relaxation) >= trees_alone(relaxation)
    three_links = Relaxation.of(problem_of(graph, machine(4), seconds))
    assert 10 < trees_alone(three_links) < trees_alone(relaxation)


def test_large_tables_and_wide_machines_leave_heads_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem_of(accumulation(9, 4), machine(4), [1.0] * 27)
    raised = all_bounds(p)["tree"]
    monkeypatch.setattr("placekit_scheduling.bounds.relaxation.LARGEST_TABLES", 1)
    communication, detour, tree = bounds(p)
    assert communication == detour == tree < raised


def dense_graph(rng: np.random.Generator) -> Graph:
    """Sources and kernels that read from some of the last four: forks and joins all over."""
    b = GraphBuilder("dense")
    tensors: list[int] = []
    for v in range(int(rng.integers(6, 20))):
        if rng.random() < 0.1:
            tensors.append(b.source(f"s{v}", int(rng.integers(0, 5))))
            continue
        reads = {t for t in tensors[-4:] if rng.random() < 0.5}
        tensors += b.add(
            f"k{v}", inputs=sorted(reads), outputs=rng.integers(0, 6, int(rng.integers(1, 3))).tolist(),
            flops=float(rng.integers(0, 5)),
        )  # fmt: skip
    return b.build()


def random_problem(rng: np.random.Generator) -> Problem:
    """Up to 20 operations with forks and joins, on any machine, or on one whose links carry little."""
    while True:
        graph = dense_graph(rng) if rng.random() < 0.7 else strategies.random_graph(rng, int(rng.integers(5, 15)))
        if rng.random() < 0.2:
            graph = graph.replace(allowed=Labels.of(rng.choice(["", "", "cpu", "gpu"], graph.n).tolist()))
        try:
            cluster = hub(int(rng.integers(2, 4))) if rng.random() < 0.5 else strategies.random_cluster(rng, 3)
            groups = strategies.random_grouping(rng, graph) if rng.random() < 0.2 else None
            costs = None if cluster.name == "hub" else strategies.random_costs(rng, graph, cluster)
            return Problem.of(graph, cluster, groups, costs)
        except PlacekitError:
            continue


def check_schedules(problem: Problem, rng: np.random.Generator, prefetch: int | None, some: int) -> int:
    """Every operation of some schedules against heads, tails and pairs. Returns how many heads and tails are raised."""
    entry = installed().get("backend", "simulator")
    session = entry.build(entry.component.config(threads=1, prefetch=prefetch)).open(problem)
    relaxation = Relaxation.of(problem)
    (head, tail), pairs = relaxation.raised, relaxation.detours
    kinds = problem.cluster.kind_of if len(relaxation.devices) > 1 else np.zeros(problem.cluster.size, np.int64)
    kernel = problem.graph.kernel
    for _ in range(some):
        few = rng.random(problem.cluster.size) < rng.random()  # devices: with few, there is less to wait for
        rows = [np.flatnonzero(row & few) if (row & few).any() else np.flatnonzero(row) for row in problem.allowed]
        device = np.asarray([rng.choice(row) for row in rows], np.int16)
        priority = rng.standard_normal(problem.g).astype(np.float32)
        if not session.evaluate(Placements.of(device[None], priority[None])).fits[0]:
            continue
        schedule = session.schedule(problem.placement(device, priority))
        start, end = np.asarray(schedule.op_start_s), np.asarray(schedule.op_end_s)
        kind = kinds[np.asarray(schedule.op_device)]
        each, least = np.arange(problem.graph.n), 1 - ROUNDING
        assert (head[each, kind] * least <= start)[kernel].all()
        assert (tail[each, kind] * least <= schedule.value_s - end + ROUNDING * schedule.value_s)[kernel].all()
        between = start[pairs.second] - end[pairs.first]
        after = pairs.after[np.arange(len(between)), kind[pairs.first], kind[pairs.second]]
        assert (after * least <= between + ROUNDING * schedule.value_s).all()
    session.close()
    plain = relaxation.levels
    return int((head > plain[0] * (1 + 1e-6)).sum() + (tail > plain[1] * (1 + 1e-6)).sum())


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 160), marks=[pytest.mark.slow, pytest.mark.long])])
def test_heads_tails_and_pairs_hold_in_schedules(seeds: range) -> None:
    """With each bound of an operation, not only with that of the makespan: random placements, on all machines."""
    pytest.importorskip("placekit_sim")
    raised = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        problem = random_problem(rng)
        prefetch = None if problem.cluster.multicast or seed % 3 else int(rng.integers(0, 2))
        raised += check_schedules(problem, rng, prefetch, 20) > 0
    assert raised > len(seeds) / 8
