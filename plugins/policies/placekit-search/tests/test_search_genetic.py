"""Policy `genetic` on the simulator: devices and orders, memory, resuming."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from placekit_search.genetic import Genetic

from placekit_core.cluster import Cluster
from placekit_core.evaluator import Evaluator, Ledger
from placekit_core.graph import GraphBuilder
from placekit_core.placement import Placements
from placekit_core.problem import Problem, Task
from placekit_core.registry import installed
from placekit_core.testing import PolicyContract
from placekit_core.testing.contract import Make

KIND = {
    "flops_per_s": {"float32": 1e12},
    "memory_bytes": 2**30,
    "memory_bytes_per_s": 1e15,
    "efficiency": {"other": {"compute": 1.0, "memory": 1.0}},
}
JOBS = [(7, 4), (3, 6), (5, 9), (4, 2), (8, 8), (2, 7), (6, 3), (1, 5), (9, 6), (5, 1)]


def cluster(gpus: int, cpus: int = 0, memory_bytes: int = 2**30, bytes_per_s: float = 1e9) -> Cluster:
    kind = {**KIND, "memory_bytes": memory_bytes}
    return Cluster.parse(
        {
            "kinds": {"gpu": kind, "cpu": {**kind, "type": "cpu"}},
            "devices": [{"kind": "gpu", "count": gpus}, *([{"kind": "cpu", "count": cpus}] if cpus else [])],
            "links": [{"a": "*", "b": "hub", "bytes_per_s": bytes_per_s}],
        }
    )


def task_of(problem: Problem, budget: int) -> Task:
    pytest.importorskip("placekit_sim")
    entry = installed().get("backend", "simulator")
    return Task(problem, Evaluator(problem, entry.build(entry.component.config()).open(problem), Ledger(budget)))


def search(problem: Problem, budget: int = 2000, seed: int = 0, **options: Any) -> Evaluator:
    task = task_of(problem, budget)
    Genetic(**options).place(task, np.random.default_rng(seed))
    return task.evaluate


def layers(width: int = 6, depth: int = 6) -> Problem:
    rng, b = np.random.default_rng(0), GraphBuilder("layers")
    before = [b.source(f"x{i}", 1_000_000, op_type="input") for i in range(width)]
    for level in range(depth):
        now = []
        for i in range(width):
            inputs = rng.choice(before, 2, replace=False).tolist()
            now += b.add(f"op{level}.{i}", inputs=inputs, outputs=[int(rng.integers(2, 9)) * 10**6],
                         flops=float(rng.integers(1, 9)) * 1e9)  # fmt: skip
        before = now
    return Problem.of(b.build(), cluster(3))


def flow_shop() -> Problem:
    """Jobs of a part that only the CPU may run, and then one that only the GPU may: nothing to choose but the order."""
    b = GraphBuilder("flow_shop")
    for i, (first, second) in enumerate(JOBS):
        out = b.add(f"first{i}", outputs=[1], flops=first * 1e9, allowed="cpu")
        b.add(f"second{i}", inputs=out, flops=second * 1e9, allowed="gpu")
    return Problem.of(b.build(), cluster(1, cpus=1, bytes_per_s=1e15))


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
    evaluate = search(problem, crossover=crossover, population=30)
    assert evaluate.best is not None
    assert evaluate.history[0][2] > johnson_s() * 1.01, "b-levels alone are not enough"
    assert evaluate.best.value_s == pytest.approx(johnson_s(), rel=1e-6)


@pytest.mark.parametrize("crossover", ["segment", "uniform"])
def test_improves_on_every_list_schedule(crossover: str) -> None:
    evaluate = search(layers(), budget=3000, crossover=crossover)
    assert evaluate.best is not None
    assert evaluate.best.value_s < 0.98 * evaluate.history[0][2]
    assert evaluate.evaluations == 3000, "the budget is used, and not exceeded"


def test_generations_keep_their_sizes() -> None:
    evaluate = search(layers(), budget=200, population=50, elite=0.2)
    assert [row[0] for row in evaluate.history] == [50, 90, 130, 170, 200], "the elite is not evaluated again"
    best = [row[4] for row in evaluate.history]
    assert best == sorted(best, reverse=True)


def test_population_grows_with_the_budget() -> None:
    for budget, size in ((100, 20), (2500, 50)):
        assert search(layers(), budget).history[0][0] == size


def test_finds_what_fits_when_its_starts_do_not() -> None:
    """Ten activations of 10 MB are alive together; a device holds six of them."""
    b = GraphBuilder("wide")
    leaves = [t for i in range(10) for t in b.add(f"leaf{i}", outputs=[10_000_000], flops=1e6)]
    b.add("root", inputs=leaves[:1], outputs=[4], flops=1e12)
    for i in range(1, 10):
        b.add(f"late{i}", inputs=[leaves[i]], outputs=[4], flops=1e9)
    problem = Problem.of(b.build(), cluster(2, memory_bytes=60_000_000))
    evaluate = search(problem, scheduled=0.1)
    assert evaluate.best is not None
    assert (evaluate.best.peak_bytes <= 60_000_000).all()


def test_finds_an_order_that_fits() -> None:
    """One device is fastest, and holds it all only if each leaf is used up before all the others are made."""
    b = GraphBuilder("tight")
    x = b.source("x", 50_000_000)
    for i in range(10):
        leaf = b.add(f"leaf{i}", outputs=[10_000_000], flops=1e6)
        b.add(f"late{i}", inputs=[*leaf, x], outputs=[4], flops=1e9)
    problem = Problem.of(b.build(), cluster(2, memory_bytes=149_000_000))
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
        assert [(r[0], *r[2:]) for r in again.evaluate.history] == [(r[0], *r[2:]) for r in whole.evaluate.history]


class TestGenetic(PolicyContract):
    finds_optimum = True

    @pytest.fixture
    def make(self) -> Make:
        return lambda: Genetic(population=12)
