"""Annealing on the simulator, whose evaluation is compiled: finds known optima, repeats and resumes to the last bit."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import numpy as np
import pytest
from placekit_search.annealing import Annealing
from placekit_search.neighbourhood import neighbourhood
from placekit_search.options import AnnealingOptions
from placekit_search.starts import list_schedules

from placekit_core.cluster import Cluster
from placekit_core.errors import BudgetExhausted
from placekit_core.evaluator import Evaluator, Ledger
from placekit_core.graph import Graph, GraphBuilder
from placekit_core.interfaces import Session
from placekit_core.placement import Placements
from placekit_core.problem import Problem, Task
from placekit_core.registry import installed


def machine(devices: int = 2, memory_bytes: int = 2**30, cpus: int = 0) -> Cluster:
    kind = {
        "flops_per_s": {"float32": 1e12},
        "memory_bytes": memory_bytes,
        "memory_bytes_per_s": 1e15,
        "efficiency": {"other": {"compute": 1.0, "memory": 1.0}},
    }
    return Cluster.parse(
        {
            "kinds": {"gpu": kind, "cpu": {**kind, "type": "cpu", "flops_per_s": {"float32": 1e11}}},
            "devices": [{"kind": "gpu", "count": devices}, *([{"kind": "cpu", "count": cpus}] if cpus else [])],
            "links": [{"a": "*", "b": "hub", "bytes_per_s": 1e9}],
        }
    )


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


def random_layers(seed: int = 0, width: int = 8, depth: int = 8) -> Graph:
    rng = np.random.default_rng(seed)
    b = GraphBuilder("layers")
    before = [b.source(f"x{i}", 1_000_000, op_type="input") for i in range(width)]
    for level in range(depth):
        now = []
        for i in range(width):
            inputs = rng.choice(before, 2, replace=False).tolist()
            now += b.add(f"op{level}.{i}", inputs=inputs, outputs=[int(rng.integers(2, 9)) * 10**6],
                         flops=float(rng.integers(1, 9)) * 1e9)  # fmt: skip
        before = now
    return b.build()


def open_simulator(problem: Problem) -> Session:
    pytest.importorskip("placekit_sim")
    entry = installed().get("backend", "simulator")
    return entry.build(entry.component.config()).open(problem)


def search(problem: Problem, budget: int = 3000, seed: int = 0, **options: Any) -> Evaluator:
    evaluate = Evaluator(problem, open_simulator(problem), Ledger(budget))
    Annealing(AnnealingOptions(**options)).place(Task(problem, evaluate), np.random.default_rng(seed))
    return evaluate


def test_finds_a_planted_optimum() -> None:
    problem = Problem.of(planted(), machine())
    evaluate = search(problem)
    assert evaluate.best is not None
    assert evaluate.best.value_s == pytest.approx(problem.group_s[:, 0].sum() / 2, rel=1e-12)


def test_improves_on_every_list_schedule() -> None:
    problem = Problem.of(random_layers(), machine(4))
    evaluate = search(problem)
    starts = evaluate.history[0][2]
    assert evaluate.best is not None
    assert evaluate.best.value_s < 0.97 * starts
    assert evaluate.evaluations == 3000, "the budget is used, and not exceeded"


def test_never_worse_than_its_starts() -> None:
    problem = Problem.of(random_layers(3), machine(3))
    starts = list_schedules(problem, 16, np.random.default_rng(0))
    values = open_simulator(problem).evaluate(starts).value_s
    evaluate = search(problem, budget=200)
    assert evaluate.best is not None
    assert evaluate.best.value_s <= values.min()


def test_same_seed_same_bits_and_another_seed_another_search() -> None:
    problem = Problem.of(random_layers(), machine(4))
    a, b, c = (search(problem, seed=s) for s in (1, 1, 2))
    assert [r[2:] for r in a.history] == [r[2:] for r in b.history]
    assert a.best is not None
    assert b.best is not None
    assert a.best.placement.same_as(b.best.placement)
    assert [r[2:] for r in a.history] != [r[2:] for r in c.history]


def test_resumes_to_the_last_bit() -> None:
    problem = Problem.of(random_layers(), machine(4))
    whole = search(problem, budget=9000)

    class Stop(Exception):
        pass

    saved: dict[str, Any] = {}
    first = Evaluator(problem, open_simulator(problem), Ledger(9000))

    def checkpoint(state: Any) -> None:
        saved.update(copy.deepcopy({"policy": dict(state), "evaluator": first.state()}))
        if first.evaluations > 4000:
            raise Stop

    with pytest.raises(Stop):
        Annealing(AnnealingOptions()).place(Task(problem, first), np.random.default_rng(0), None, checkpoint)
    second = Evaluator(problem, open_simulator(problem), Ledger(9000))
    second.restore(saved["evaluator"])
    Annealing(AnnealingOptions()).place(Task(problem, second), np.random.default_rng(99), saved["policy"])
    columns = [(r[0], *r[2:]) for r in whole.history]
    assert [(r[0], *r[2:]) for r in second.history] == columns
    assert whole.best is not None
    assert second.best is not None
    assert second.best.placement.same_as(whole.best.placement)


def test_budget_in_seconds_ends() -> None:
    problem = Problem.of(random_layers(), machine(4))
    evaluate = Evaluator(problem, open_simulator(problem), Ledger(seconds=0.3))
    with contextlib.suppress(BudgetExhausted):
        Annealing(AnnealingOptions()).place(Task(problem, evaluate), np.random.default_rng(0))
    assert evaluate.best is not None
    assert evaluate.ledger.seconds < 5


def test_one_device_and_one_operation() -> None:
    one = GraphBuilder("one")
    one.add("a", flops=1e9)
    for graph, devices in ((one.build(), 3), (random_layers(), 1)):
        evaluate = search(Problem.of(graph, machine(devices)), budget=50)
        assert evaluate.best is not None


def test_respects_allowed_devices() -> None:
    b = GraphBuilder("mixed")
    x = b.source("x", 1000, op_type="input")
    for i in range(20):
        b.add(f"op{i}", inputs=[x], outputs=[1000], flops=1e9, allowed="cpu" if i % 4 == 0 else "gpu")
    problem = Problem.of(b.build(), machine(2, cpus=1))
    evaluate = search(problem, budget=500)  # the evaluator refuses a placement that is not allowed
    assert evaluate.best is not None


def test_keeps_the_best_that_fits_when_not_fitting_is_faster() -> None:
    """One device lacks one percent of the memory, and whatever leaves it must be transferred: fitting is slower.

    Not so with other priorities, which free memory sooner: they stay as they are.
    """
    b = GraphBuilder("tight")
    x = b.source("x", 50_000_000)
    for i in range(10):
        leaf = b.add(f"leaf{i}", outputs=[10_000_000], flops=1e6)
        b.add(f"late{i}", inputs=[*leaf, x], outputs=[4], flops=1e9)
    problem = Problem.of(b.build(), machine(2, memory_bytes=149_000_000))
    together = open_simulator(problem).evaluate(Placements.of(np.zeros((1, problem.g), int)))
    assert not together.fits[0]
    evaluate = search(problem, budget=2000, order_moves=0)
    assert evaluate.best is not None
    assert together.value_s[0] < evaluate.best.value_s < 0.03


def test_memory_of_the_moves_grows_with_the_graph_only() -> None:
    b = GraphBuilder("long")
    t = b.source("x", 8, op_type="input")
    for i in range(5000):
        [t] = b.add(f"op{i}", inputs=[t], outputs=[8], module="all")
    problem = Problem.of(b.build(), machine(2))
    moves = neighbourhood(problem)
    assert sum(np.asarray(part).size for part in moves) < 25 * problem.g
    last = int(moves.tree_first[problem.g - 1])
    assert moves.tree_end[problem.g - 1] - last == problem.g, "the whole chain is the last operation's cluster"


def test_finds_what_fits_when_its_starts_do_not() -> None:
    """Ten activations of 10 MB are alive together; a device holds six of them."""
    b = GraphBuilder("wide")
    leaves = [t for i in range(10) for t in b.add(f"leaf{i}", outputs=[10_000_000], flops=1e6)]
    b.add("root", inputs=leaves[:1], outputs=[4], flops=1e12)
    for i in range(1, 10):
        b.add(f"late{i}", inputs=[leaves[i]], outputs=[4], flops=1e9)
    problem = Problem.of(b.build(), machine(2, memory_bytes=60_000_000))
    evaluate = search(problem, budget=2000, temperature_start=0.05)
    assert evaluate.best is not None
    assert (evaluate.best.peak_bytes <= 60_000_000).all()
