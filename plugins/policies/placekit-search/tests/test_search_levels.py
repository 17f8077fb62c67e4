"""Priorities by the b-levels of a placement, as a move and as starts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from placekit_scheduling import b_level, group_priority
from placekit_scheduling.list_scheduling.placement_levels import level_graph, set_levels
from placekit_search.annealing import Annealing
from placekit_search.move_kinds import ANNEALING
from placekit_search.neighbourhood import flow
from placekit_search.options import PortfolioOptions
from placekit_search.portfolio import Portfolio, _Race
from placekit_search.starts import FACTORS, LEVELLED, Start, levelled
from placekit_testing.strategies import Case, problems, random_placements
from search_helpers import machine, random_layers, search, task_of

from placekit_core import GraphBuilder, Policy, Problem


def levels(problem: Problem, device: np.ndarray, factor: float) -> np.ndarray:
    priority = np.empty(problem.g, np.float32)
    set_levels(level_graph(problem), device, factor, np.zeros(problem.graph.n), priority)
    return priority


def longest_paths(problem: Problem, device: np.ndarray, factor: float) -> np.ndarray:
    """[n] seconds from each operation to an exit, by definition."""
    graph, routes, at = problem.graph, problem.cluster.routes, problem.expand(device)
    level = np.zeros(graph.n)
    for v in reversed(graph.topological_order):
        after = [0.0]
        for x in graph.outputs(v):
            sent = (
                routes.latency_s + graph.tensor_bytes[x] * routes.s_per_byte
                if graph.kernel[v]
                else np.zeros_like(routes.latency_s)
            )
            after += [level[w] + (factor * sent[at[v], at[w]] if at[v] != at[w] else 0.0) for w in graph.consumers(x)]
        level[v] = problem.op_s[v, at[v]] + max(after)
    return level


@settings(max_examples=60, deadline=None)
@given(case=problems(max_n=24, max_devices=4))
def test_levels_are_the_longest_paths_of_a_placement(case: Case) -> None:
    problem = case.problem
    device = random_placements(case.rng, problem, 1).device[0]
    for factor in (0.0, 1.0, 2.5):
        expected = group_priority(problem, longest_paths(problem, device, factor))
        np.testing.assert_allclose(levels(problem, device, factor), expected, rtol=1e-6)


def crossing() -> Problem:
    """Two chains that begin on one device; only one of them crosses a link, and all devices are given.

    By mean transfers the other one is more urgent: 1 + 2 + 1.5 seconds against 1 + 2 + 1. Run in that order they take 5 s, in
    the other 4 s.
    """
    b = GraphBuilder("crossing")
    sent = b.add("first", outputs=[2 * 10**9], flops=1e9, allowed="gpu")
    kept = b.add("second", outputs=[2 * 10**9], flops=1e9, allowed="gpu")
    b.add("after first", inputs=sent, flops=1e9, allowed="cpu")
    b.add("after second", inputs=kept, flops=1.5e9, allowed="gpu")
    return Problem.of(b.build(), machine(1, 1, flops_per_s=1e9))


def test_starts_get_the_priorities_of_their_devices() -> None:
    task = task_of(crossing(), 40)
    starts = _Race(task, PortfolioOptions(starts={}), {}, 1)._starts(np.random.default_rng(0), None)
    assert starts[0].value_s == pytest.approx(4.0, rel=1e-3)


def test_a_move_gives_priorities_by_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every device is given, moves of this kind alone find the better order."""
    for kind, expected_s in (("level", 4.0), ("single", 5.0)):
        weights = {other: float(other == kind) for other in ANNEALING}
        monkeypatch.setattr("placekit_search.annealing.ANNEALING", weights)
        best = search(Annealing(), crossing(), 40).best
        assert best is not None
        assert best.value_s == pytest.approx(expected_s, rel=1e-3)


def test_levelled_starts_are_the_best_few_with_other_devices() -> None:
    problem = Problem.of(crossing().graph, machine(2, 1, flops_per_s=1e9))
    rng = np.random.default_rng(0)
    rows = [random_placements(rng, problem, 1).device[0] for _ in range(40)]
    starts = [Start(float(i % 20), float(i % 20 == 0), rows[i % 20], None, i) for i in range(40)]
    distinct = {row.tobytes() for row in rows[:20]}
    for budget, most, expected in ((10_000, LEVELLED, LEVELLED), (10_000, 3, 3), (300, LEVELLED, 3), (1, LEVELLED, 0)):
        batch, level = levelled(task_of(problem, budget), flow(problem, None), starts, most)
        count = min(expected, len(distinct))
        assert len(batch) == len(level) == count * len(FACTORS)
        assert batch.priority is not None
        seen = [row.tobytes() for row in batch.device]
        assert len(set(seen)) == count
        for i in range(len(batch)):
            assert batch.priority[i].tolist() == levels(problem, batch.device[i], FACTORS[i % len(FACTORS)]).tolist()
    batch, level = levelled(task_of(problem, 10_000), flow(problem, None), starts, 1)
    assert level == [1] * len(FACTORS), "the first that fits"
    assert batch.device[0].tolist() == rows[1].tolist()


@pytest.mark.parametrize("policy", [Annealing(), Portfolio(starts={})], ids=lambda p: p.name)
def test_where_priorities_do_not_matter_they_are_left_alone(policy: Policy) -> None:
    """Where every device is given, nothing is left to try then."""
    for matter in (True, False):
        task = task_of(crossing(), 60)
        task.evaluate.session.priorities = matter
        policy.place(task, np.random.default_rng(0))
        assert (task.evaluate.evaluations == 60) == matter
    task = task_of(Problem.of(random_layers(), machine(4)), 500)
    task.evaluate.session.priorities = False
    placement = policy.place(task, np.random.default_rng(0))
    assert task.evaluate.evaluations == 500
    assert placement.priority is not None
    assert placement.priority.tolist() == group_priority(task.problem, b_level(task.problem)).tolist()
