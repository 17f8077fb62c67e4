"""Annealing on the simulator, whose evaluation is compiled: finds known optima, repeats and resumes to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from placekit_search.annealing import Annealing
from placekit_search.local_search import LocalSearch, SearchContext
from placekit_search.move_kinds import ANNEALING, KINDS
from placekit_search.neighbourhood import neighbourhood
from placekit_search.walk import BEST
from search_helpers import (
    machine,
    open_simulator,
    search,
    task_of,
    tight,
)

from placekit_core import Cluster, Graph, GraphBuilder, Placements, Problem
from placekit_core.run.evaluator import BudgetedEvaluator


def planted() -> Graph:
    """Two trees of equal work that exchange nothing: the optimum keeps each on its own device, and is the work bound."""
    b = GraphBuilder("planted")
    rng = np.random.default_rng(5)
    for tree in range(2):
        left, leaves = 60, []
        for i, part in enumerate(rng.multinomial(left, np.ones(12) / 12) + 1):
            leaves += b.add(f"{tree}/leaf{i}", outputs=[40_000_000], flops=float(part) * 1e9)
        b.add(f"{tree}/root", inputs=leaves, outputs=[4], flops=1e9)
    return b.build()


def anneal(problem: Problem, budget: int = 3000, seed: int = 0, **options: Any) -> BudgetedEvaluator:
    return search(Annealing(**options), problem, budget, seed)


def test_finds_a_planted_optimum() -> None:
    problem = Problem.of(planted(), machine())
    evaluate = anneal(problem)
    assert evaluate.best is not None
    assert evaluate.best.value_s == pytest.approx(problem.group_s[:, 0].sum() / 2, rel=1e-12)


def test_keeps_the_best_that_fits_when_not_fitting_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """One device lacks one percent of the memory, and whatever leaves it must be transferred: fitting is slower.

    Not so with other priorities, which free memory sooner: they stay as they are.
    """
    problem = tight()
    together = open_simulator(problem).evaluate(Placements.of(np.zeros((1, problem.g), int)))
    assert not together.fits[0]
    monkeypatch.setattr("placekit_search.annealing.ANNEALING", {**ANNEALING, "order": 0.0})
    evaluate = anneal(problem, budget=2000)
    assert evaluate.best is not None
    assert together.value_s[0] < evaluate.best.value_s < 0.03


@pytest.mark.parametrize("temperature_s", [0.0, 1e-3])
def test_crosses_placements_that_do_not_fit(temperature_s: float) -> None:
    """Two devices are full: no move of one operation fits, and only an exchange of 3 for 2 puts the work on the fast one."""
    b = GraphBuilder("full")
    for i, megabytes in enumerate((20, 20, 20, 30, 30)):
        weight = b.source(f"weight{i}", megabytes * 10**6)
        b.add(f"op{i}", inputs=[weight], outputs=[4], flops=1e12 if megabytes == 30 else 1e9)
    slow = machine(memory_bytes=60_000_100).model_dump()
    slow["kinds"]["fast"] = {**slow["kinds"]["gpu"], "flops_per_s": {"float32": 1e13}}
    slow["devices"] = [{"kind": "fast"}, {"kind": "gpu"}]
    problem = Problem.of(b.build(), Cluster.parse(slow))
    small = np.repeat([0, 0, 0, 1, 1], 2).astype(np.int16)
    task = task_of(problem, 4000)
    [start, best] = task.evaluate(Placements.of(np.stack([small, 1 - small]))).value_s
    moves = SearchContext(task, {kind: float(kind == "single") for kind in KINDS})
    chain = LocalSearch(moves, LocalSearch.begin(small, None, start, 0.0, 20 * start, np.array([7], np.uint64)))
    while task.evaluate.remaining > 0:
        chain.advance(neighbourhood(problem), temperature_s, 1.0)
    assert best < start / 5
    assert chain.at.energy[BEST] == best
    np.testing.assert_array_equal(chain.at.best_device, 1 - small)
