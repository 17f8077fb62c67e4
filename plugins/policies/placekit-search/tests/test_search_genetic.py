"""Policy `genetic` on the simulator: devices and orders, memory, resuming."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from placekit_search.genetic import Genetic
from placekit_testing import PolicyContract
from placekit_testing.contract import Make
from search_helpers import machine, random_layers, rows, search, task_of, tight, wide

from placekit_core import GraphBuilder, Placements, Problem
from placekit_core.run.evaluator import BudgetedEvaluator

JOBS = [(7, 4), (3, 6), (5, 9), (4, 2), (8, 8), (2, 7), (6, 3), (1, 5), (9, 6), (5, 1)]


def evolve(problem: Problem, budget: int = 2000, **options: Any) -> BudgetedEvaluator:
    return search(Genetic(**options), problem, budget)


def layers() -> Problem:
    return Problem.of(random_layers(width=6, depth=6), machine(3))


def flow_shop() -> Problem:
    """Jobs of a part that only the CPU may run, and then one that only the GPU may: nothing to choose but the order."""
    b = GraphBuilder("flow_shop")
    for i, (first, second) in enumerate(JOBS):
        out = b.add(f"first{i}", outputs=[1], flops=first * 1e9, allowed="cpu")
        b.add(f"second{i}", inputs=out, flops=second * 1e9, allowed="gpu")
    return Problem.of(b.build(), machine(1, 1, bytes_per_s=1e15))


def johnson_s() -> float:
    """The optimum of the flow shop of two machines (Johnson 1954): short first parts first, short second parts last."""
    early = sorted(j for j in JOBS if j[0] <= j[1])
    late = sorted((j for j in JOBS if j[0] > j[1]), key=lambda j: -j[1])
    cpu = gpu = 0
    for first, second in early + late:
        cpu += first
        gpu = max(gpu, cpu) + second
    return gpu * 1e-3


@pytest.mark.parametrize("crossover", ["segment", "uniform"])
def test_finds_the_order_where_devices_leave_no_choice(crossover: str) -> None:
    problem = flow_shop()
    evaluate = evolve(problem, crossover=crossover, population=30)
    assert evaluate.best is not None
    assert evaluate.history[0][2] > johnson_s() * 1.01, "b-levels alone are not enough"
    assert evaluate.best.value_s == pytest.approx(johnson_s(), rel=1e-6)


@pytest.mark.parametrize("crossover", ["segment", "uniform"])
def test_improves_on_every_list_schedule(crossover: str) -> None:
    evaluate = evolve(layers(), budget=3000, crossover=crossover)
    assert evaluate.best is not None
    assert evaluate.best.value_s < 0.98 * evaluate.history[0][2]
    assert evaluate.evaluations == 3000, "the budget is used, and not exceeded"


def test_generations_keep_their_sizes() -> None:
    evaluate = evolve(layers(), budget=200, population=50, elite=0.2)
    assert [row[0] for row in evaluate.history] == [50, 90, 130, 170, 200], "the elite is not evaluated again"
    best = [row[4] for row in evaluate.history]
    assert best == sorted(best, reverse=True)


def test_population_grows_with_the_budget() -> None:
    for budget, size in ((100, 20), (2500, 50)):
        assert evolve(layers(), budget).history[0][0] == size


def test_finds_what_fits_when_its_starts_do_not() -> None:
    problem = wide()
    evaluate = evolve(problem, scheduled=0.1)
    assert evaluate.best is not None
    assert (evaluate.best.peak_bytes <= 60_000_000).all()


def test_finds_an_order_that_fits() -> None:
    problem = tight()
    task = task_of(problem, 2000)
    together = task.evaluate.session.evaluate(Placements.of(np.zeros((1, problem.g), int)))
    placement = Genetic(population=200).place(task, np.random.default_rng(0))
    assert not together.fits[0]
    assert task.evaluate.best is not None
    assert task.evaluate.best.value_s == pytest.approx(float(together.value_s[0]), rel=1e-9)
    returned = task.evaluate.session.evaluate(placement.batch())
    assert returned.fits[0]
    assert returned.value_s[0] == task.evaluate.best.value_s


def test_resumes_to_the_last_bit() -> None:
    problem, saved = layers(), []
    whole = task_of(problem, 700)
    rng = np.random.default_rng(3)

    def checkpoint(state: Any) -> None:
        saved.append(copy.deepcopy((dict(state), rng.bit_generator.state, whole.evaluate.state())))

    placement = Genetic().place(whole, rng, None, checkpoint)
    assert len(saved) > 20
    for state, random, evaluator in (saved[0], saved[7], saved[-1]):
        again, other = task_of(problem, 700), np.random.default_rng(99)
        again.evaluate.restore(evaluator)
        other.bit_generator.state = random
        assert Genetic().place(again, other, state, lambda _: None).same_as(placement)
        assert rows(again.evaluate) == rows(whole.evaluate)


class TestGenetic(PolicyContract):
    resumable = True
    finds_optimum = True

    @pytest.fixture
    def make(self) -> Make:
        return lambda: Genetic(population=12)
