"""Starts of large problems, and the search from them, on the simulator."""

from __future__ import annotations

import time

import numpy as np
import pytest
from placekit_scheduling import RULES, ListScheduler
from placekit_search import portfolio
from placekit_search.coarsening import coarsen
from placekit_search.multilevel import Multilevel, Timeline
from placekit_search.portfolio import Portfolio
from placekit_search.streaming import live_bytes
from search_helpers import machine, random_layers, rows, search, stopped_and_resumed, task_of

from placekit_core import Cluster, GraphBuilder, Grouping, Problem, load_programs


def planted(layers: int, **options: int) -> tuple[Problem, float]:
    """A planted problem, every operation its own group, and its optimal makespan."""
    [program] = load_programs("planted", layers=layers, **options)
    assert program.cluster is not None
    graph = program.graph
    problem = Problem.of(graph, program.cluster, Grouping(np.arange(graph.n, dtype=np.int32)))
    return problem, float(graph.attributes["optimal_makespan_s"])


def spread(problem: Problem, memory: float = 1.0) -> np.ndarray:
    room = problem.cluster.memory_bytes * memory
    return Multilevel(problem).spread(np.uint64(1), 0.3, room)


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that tests of small problems take the way of large ones."""
    for module in ("portfolio", "neighbourhood"):
        monkeypatch.setattr(f"placekit_search.{module}.LARGE", 100)


def test_a_shared_timeline_is_as_long_as_all_work_or_the_longest_path() -> None:
    problem, optimum_s = planted(50)
    line = Timeline.of(problem)
    assert line.end.max() == pytest.approx(optimum_s, rel=0.01)
    assert (line.end - line.begin >= line.seconds * (1 - 1e-9)).all()
    chain = GraphBuilder("chain")
    out = [chain.source("x", 1000)]
    for i in range(20):
        out = chain.add(f"op{i}", inputs=out, outputs=[1000], flops=1e9)
    alone = Problem.of(chain.build(), machine(4))
    assert Timeline.of(alone).end.max() == pytest.approx(alone.op_s[:, 0].sum() - alone.op_s[0, 0])


def test_units_keep_strands_apart() -> None:
    """With bytes as weights, coarse units join what runs in parallel."""
    problem, _ = planted(1000)
    planted_device = np.asarray(problem.graph.columns["planted_device"])

    def purity(of: np.ndarray) -> float:
        return float(
            np.bincount(of * 4 + planted_device, minlength=4 * int(of.max() + 1)).reshape(-1, 4).max(axis=1).sum()
            / problem.g
        )

    def level(levels: list[np.ndarray]) -> np.ndarray:
        return next(of for of in levels if of.max() < 200)

    assert purity(level(Multilevel(problem).levels)) > 0.99
    assert purity(level(coarsen(problem))) < 0.9


def test_a_spread_is_near_the_optimum_where_list_schedules_are_not() -> None:
    problem, optimum_s = planted(420)
    device = spread(problem)
    evaluate = task_of(problem).evaluate
    priority = np.asarray(problem.graph.columns["planted_priority"])
    value = [float(evaluate.session.evaluate(problem.placement(device, priority).batch()).value_s[0])]
    for rule in RULES[:3]:
        found = ListScheduler(problem).run(rule).placement()
        value.append(float(evaluate.session.evaluate(found.batch()).value_s[0]))
    assert value[0] < 1.05 * optimum_s
    assert min(value[1:]) > 1.9 * optimum_s


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"layers": 1050}, {"layers": 320, "devices": 8, "width": 5}])
def test_a_large_planted_graph_comes_close_to_its_optimum(options: dict[str, int]) -> None:
    problem, optimum_s = planted(**options)
    best = search(Portfolio(), problem, 60).best
    assert best is not None
    assert best.value_s < 1.05 * optimum_s


@pytest.mark.usefixtures("small_is_large")
def test_threads_do_not_change_a_bit() -> None:
    problem, _ = planted(20)
    one, two = (search(Portfolio(threads=t, evaluations_per_chain=200), problem, 1500) for t in (1, 2))
    assert rows(one) == rows(two)
    assert one.best is not None
    assert two.best is not None
    assert one.best.placement.same_as(two.best.placement)


@pytest.mark.usefixtures("small_is_large")
@pytest.mark.parametrize("budget", [1, 2, 5])
def test_a_few_evaluations_are_enough(budget: int) -> None:
    problem, _ = planted(20)
    task = task_of(problem, budget)
    Portfolio().place(task, np.random.default_rng(0))
    assert task.evaluate.evaluations <= budget
    assert task.evaluate.best is not None


@pytest.mark.slow
@pytest.mark.usefixtures("small_is_large")
def test_resumes_to_the_last_bit() -> None:
    problem, _ = planted(20)
    policy = Portfolio(evaluations_per_chain=500)
    whole, again = search(policy, problem, 3000), stopped_and_resumed(policy, problem, 3000, 1000)
    assert rows(again) == rows(whole)


def test_no_device_gets_more_memory_than_there_is_room() -> None:
    b = GraphBuilder("heavy")
    for i in range(400):
        weight = b.source(f"w{i}", 1_000_000)
        b.add(f"op{i}", inputs=[weight], outputs=[4], flops=1e9)
    problem = Problem.of(b.build(), machine(4, memory_bytes=120_000_000))
    device = spread(problem)
    used = np.bincount(device, problem.group_persistent_bytes, 4)
    assert used.max() <= 120_000_000
    assert live_bytes(problem.graph) < 10_000


@pytest.mark.usefixtures("small_is_large")
def test_groups_that_cannot_be_joined_are_spread() -> None:
    """All operations read one source, whose unit is soon full."""
    b = GraphBuilder("star")
    x = b.source("x", 1000)
    for i in range(300):
        b.add(f"op{i}", inputs=[x], outputs=[4], flops=1e9)
    problem = Problem.of(b.build(), machine(4))
    assert not Multilevel(problem).levels
    found = search(Portfolio(starts={}), problem, 40).best
    assert found is not None
    assert np.bincount(found.placement.device[problem.graph.kernel], minlength=4).max() <= 80


@pytest.mark.usefixtures("small_is_large")
def test_a_search_fits_where_one_device_is_too_small() -> None:
    graph = random_layers(width=16, depth=20)
    fits = Problem.of(graph, machine(4, memory_bytes=2**40))
    most = float(search(Portfolio(), fits, 200).best.peak_bytes.max())  # type: ignore[union-attr]
    tight = Problem.of(graph, machine(4, memory_bytes=int(0.7 * most)))
    assert search(Portfolio(), tight, 1000).best is not None


@pytest.mark.usefixtures("small_is_large")
def test_keeps_devices_and_colocation() -> None:
    b = GraphBuilder("mixed")
    before = [b.source(f"x{i}", 1000, op_type="input") for i in range(8)]
    for level in range(40):
        before = [
            b.add(
                f"op{level}.{i}",
                inputs=[before[i], before[(i + 1) % 8]] if level else [before[i]],
                outputs=[1000],
                flops=1e9,
                allowed="cpu" if i == 0 else "",
                colocate=level if i in (1, 2) else -1,
            )[0]
            for i in range(8)
        ]
    cluster: Cluster = machine(3, cpus=1)
    problem = Problem.of(b.build(), cluster)
    found = search(Portfolio(), problem, 300).best
    assert found is not None
    problem.check(found.placement.batch())


@pytest.mark.slow
def test_too_few_seconds_for_levels_begin_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the seconds are too few for the levels, one list schedule must do."""
    problem, _ = planted(1050)
    made: list[int] = []
    monkeypatch.setattr(portfolio, "MULTILEVEL", 10**6)
    monkeypatch.setattr("placekit_search.multilevel.Multilevel.__init__", lambda *_: made.append(1))
    task = task_of(problem, seconds=20.0)
    began = time.perf_counter()
    Portfolio().place(task, np.random.default_rng(0))
    assert not made
    assert task.evaluate.evaluations >= 2
    assert time.perf_counter() - began < 30
