"""Roles of modules that are called step by step, and the portfolio's search over their devices."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from placekit_search.local_search import LocalSearch
from placekit_search.portfolio import Portfolio
from placekit_search.roles import CALLS, CHUNK, role_chains, roles
from search_helpers import machine, random_layers, rows, search, stopped_and_resumed, task_of

from placekit_core import BudgetExhausted, Graph, GraphBuilder, Problem, Task

CELLS = 5


def recurrent(steps: int = 12) -> Graph:
    """A training step of a network of cells: each reads the cell below and itself one step before, and a weight of 64 MB.

    Backward, each cell makes the gradient of its input and one as large as its weight; these are added up over the steps,
    and the update reads their sum.
    """
    b = GraphBuilder("recurrent")
    weights = [b.source(f"cell{c}.weight", 64_000_000, module=f"cell{c}") for c in range(CELLS)]
    zero = b.source("zero", 1000, op_type="input")
    out: dict[tuple[int, int], int] = {}
    for t in range(steps):
        for c in range(CELLS):
            inputs = [weights[c], out.get((c - 1, t), zero), out.get((c, t - 1), zero)]
            [out[c, t]] = b.add(f"cell{c}@{t}", inputs=inputs, outputs=[200_000], flops=1e9, module=f"cell{c}", call=t)
    slope: dict[tuple[int, int], int] = {}
    total: dict[int, int] = {}
    for t in reversed(range(steps)):
        for c in reversed(range(CELLS)):
            inputs = [weights[c], slope.get((c + 1, t), out[c, t]), slope.get((c, t + 1), out[c, t])]
            of: dict[str, Any] = {"module": f"cell{c}", "call": t, "phase": "backward"}
            [slope[c, t]] = b.add(f"cell{c}@{t}/slope", inputs=inputs, outputs=[200_000], flops=1e9, **of)
            [made] = b.add(f"cell{c}@{t}/gradient", inputs=[slope[c, t]], outputs=[64_000_000], flops=1e9, **of)
            if c in total:
                [made] = b.add(f"cell{c}@{t}/sum", inputs=[made, total[c]], outputs=[64_000_000], flops=1e7, **of)
            total[c] = made
    for c in range(CELLS):
        b.add(
            f"cell{c}/update", inputs=[weights[c], total[c]], outputs=[4], flops=1e7, module=f"cell{c}", phase="update"
        )
    return b.build()


def a_problem(steps: int = 12) -> Problem:
    return Problem.of(recurrent(steps), machine(4, bytes_per_s=1e10))


def test_a_role_is_a_module_and_a_phase_in_all_calls() -> None:
    problem = a_problem()
    role = roles(problem)
    assert role is not None
    graph = problem.graph

    def of(name: str) -> int:
        return int(role[problem.grouping.group_of[graph.op_name.index(name)]])

    parts = [("cell0.weight", "cell0@0", "cell0@11"), ("cell0@0/slope", "cell0@11/slope"), ("cell0/update",)]
    parts.append(("cell0@0/gradient", "cell0@11/gradient", "cell0@3/sum"))  # gradients of weights are apart
    numbers = [{of(name) for name in part} for part in parts]
    assert all(len(n) == 1 for n in numbers)
    assert len(set.union(*numbers)) == len(parts)
    assert of("cell0@0") != of("cell1@0")
    assert role.max() + 1 == len(parts) * CELLS + 1  # and the input


def test_without_calls_that_repeat_there_are_no_roles() -> None:
    for graph in (random_layers(), recurrent(CALLS - 1)):  # without modules; with few calls
        assert roles(Problem.of(graph, machine(3))) is None


def test_roles_find_what_single_moves_do_not() -> None:
    problem = a_problem(40)
    values = np.zeros((2, 3))
    for i, share in enumerate((0.35, 0.0)):
        for seed in range(3):
            best = search(Portfolio(starts={}, role_share=share), problem, 800, seed).best
            assert best is not None
            values[i, seed] = best.value_s
    assert values[0].mean() < 0.9 * values[1].mean()


@pytest.mark.parametrize("budget", [60, 3000])
def test_roles_take_their_share_and_no_more(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[tuple[float, float]] = []

    def spy(task: Task, *rest: Any) -> list[LocalSearch]:
        before = task.evaluate.remaining
        found = role_chains(task, *rest)
        spent.append((before, before - task.evaluate.remaining))
        return found

    monkeypatch.setattr("placekit_search.portfolio.role_chains", spy)
    search(Portfolio(), a_problem(), budget)
    [(before, used)] = spent
    assert used <= 0.35 * before
    assert used > 0.3 * before or (used == 0 and 0.35 * before < CHUNK)


def test_what_only_other_devices_may_run_is_another_role() -> None:
    b = GraphBuilder("pinned")
    [before] = b.add("begin", outputs=[1000], flops=1e9)
    for t in range(6):
        [fast] = b.add(f"fast@{t}", inputs=[before], outputs=[1000], flops=1e9, module="cell", call=t, allowed="gpu")
        [before] = b.add(f"slow@{t}", inputs=[fast], outputs=[1000], flops=1e9, module="cell", call=t, allowed="cpu")
    problem = Problem.of(b.build(), machine(2, 2))
    role = roles(problem)
    assert role is not None
    assert role.max() + 1 == 3
    best = search(Portfolio(), problem, 300).best  # with starts that place whole modules, and do not apply
    assert best is not None
    assert problem.allowed[np.arange(problem.g), best.placement.device].all()


@pytest.mark.slow
def test_threads_and_a_stop_change_no_bit() -> None:
    problem = a_problem(40)
    one, two = (search(Portfolio(threads=t), problem, 6000) for t in (1, 3))
    assert rows(one) == rows(two)
    assert rows(stopped_and_resumed(Portfolio(), problem, 6000, 2500)) == rows(one)


def test_a_backend_without_a_compiled_evaluation_moves_roles_too(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = a_problem()
    role, task = roles(problem), task_of(problem, 600)
    assert role is not None
    monkeypatch.setattr(type(task.evaluate), "kernel", lambda self: None)
    seen: list[np.ndarray] = []
    monkeypatch.setattr(
        LocalSearch, "step_once", lambda self, *rest: (step_once(self, *rest), seen.append(self.at.device.copy()))[0]
    )
    with contextlib.suppress(BudgetExhausted):
        Portfolio(starts={}, threads=1).place(task, np.random.default_rng(0))
    first = np.unique(role, return_index=True)[1]
    whole = [d for d in seen if (d == d[first][role]).all()]
    assert len({d.tobytes() for d in whole}) > 10
    assert task.evaluate.evaluations == 600


step_once = LocalSearch.step_once
