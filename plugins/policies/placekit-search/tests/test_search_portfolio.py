"""The portfolio and the local search with restarts, on the simulator."""

from __future__ import annotations

import contextlib
import copy
import sys
import time
from typing import Any

import numpy as np
import pytest
from placekit_search.chain import Chain, Moves
from placekit_search.kinds import KINDS
from placekit_search.local_search import LocalSearch
from placekit_search.neighbourhood import neighbourhood
from placekit_search.portfolio import Portfolio

from placekit_core.cluster import Cluster
from placekit_core.errors import BudgetExhausted, ConfigError, PluginError
from placekit_core.evaluator import Evaluator, Ledger
from placekit_core.graph import GraphBuilder
from placekit_core.interfaces import Policy, Session
from placekit_core.problem import Problem, Task
from placekit_core.registry import installed
from placekit_core.testing.strategies import random_problem


def a_problem(n: int = 60) -> Problem:
    return random_problem(np.random.default_rng(11), n, 4)


def open_simulator(problem: Problem) -> Session:
    pytest.importorskip("placekit_sim")
    entry = installed().get("backend", "simulator")
    return entry.build(entry.component.config()).open(problem)


def search(policy: Policy, problem: Problem, budget: int = 3000, seed: int = 0) -> Evaluator:
    evaluate = Evaluator(problem, open_simulator(problem), Ledger(budget))
    with contextlib.suppress(BudgetExhausted):
        policy.place(Task(problem, evaluate), np.random.default_rng(seed))
    return evaluate


def rows(evaluate: Evaluator) -> list[tuple[float, ...]]:
    return [(r[0], *r[2:]) for r in evaluate.history]


@pytest.mark.parametrize("budget", [1, 2, 7, 50, 333, 5000])
def test_uses_the_whole_budget_and_no_more(budget: int) -> None:
    for policy in (Portfolio(), LocalSearch()):
        evaluate = search(policy, a_problem(), budget)
        assert evaluate.evaluations == budget


def test_never_worse_than_the_policies_that_it_starts_from() -> None:
    problem = a_problem()
    value = search(Portfolio(), problem, 300).best
    assert value is not None
    for name, samples in (("critical_path", 16), ("etf", 8), ("heft", 8)):
        if name not in installed().names("policy"):
            continue
        entry = installed().get("policy", name)
        other = search(entry.build(entry.component.config(samples=samples)), problem, 300).best
        assert other is not None
        first = entry.build(entry.component.config(samples=1)).place(
            Task(problem, Evaluator(problem, open_simulator(problem), Ledger(300))), np.random.default_rng(0)
        )
        assert value.value_s <= open_simulator(problem).evaluate(first.batch()).value_s[0]


def test_threads_do_not_change_a_bit() -> None:
    problem = a_problem()
    one, two = (search(Portfolio(threads=t, evaluations_per_chain=500), problem, 6000) for t in (1, 3))
    assert rows(one) == rows(two)
    assert one.best is not None
    assert two.best is not None
    assert one.best.placement.same_as(two.best.placement)


def test_the_worse_half_of_the_chains_ends_at_a_time() -> None:
    counts: list[int] = []
    problem = a_problem()
    evaluate = Evaluator(problem, open_simulator(problem), Ledger(20_000))
    Portfolio(evaluations_per_chain=2000).place(
        Task(problem, evaluate), np.random.default_rng(0), None, lambda state: counts.append(len(state["chains"]))
    )
    assert counts[0] == 8
    assert counts[-1] == 1
    assert sorted(set(counts), reverse=True) == [8, 4, 2, 1]
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("policy", [Portfolio(evaluations_per_chain=1000), LocalSearch(patience=50)])
@pytest.mark.parametrize("stop", [500, 4000])
def test_resumes_to_the_last_bit(policy: Policy, stop: int) -> None:
    problem = a_problem()
    whole = search(policy, problem, 9000)

    class Stop(Exception):
        pass

    saved: dict[str, Any] = {}
    first = Evaluator(problem, open_simulator(problem), Ledger(9000))

    def checkpoint(state: Any) -> None:
        saved.update(copy.deepcopy({"policy": dict(state), "evaluator": first.state()}))
        if first.evaluations > stop:
            raise Stop

    with pytest.raises(Stop):
        policy.place(Task(problem, first), np.random.default_rng(0), None, checkpoint)
    second = Evaluator(problem, open_simulator(problem), Ledger(9000))
    second.restore(saved["evaluator"])
    policy.place(Task(problem, second), np.random.default_rng(99), saved["policy"])
    assert rows(second) == rows(whole)
    assert whole.best is not None
    assert second.best is not None
    assert second.best.placement.same_as(whole.best.placement)


def test_starts_must_exist_and_take_their_options() -> None:
    with pytest.raises(PluginError, match="no policy named 'no_such_policy'"):
        Portfolio(starts={"no_such_policy": {}})
    with pytest.raises(ConfigError, match="cannot start from itself"):
        Portfolio(starts={"portfolio": {}})
    with pytest.raises(ConfigError, match=r"no option named 'policy.starts.annealing.startz'\n  did you mean 'starts'"):
        Portfolio(starts={"annealing": {"startz": 3}})


def test_a_usual_start_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(installed()), "names", lambda self, kind: [])
    assert Portfolio().others == {}


def test_a_policy_that_refuses_is_left_out() -> None:
    starts = {n: {} for n in ("expert", "enumerative") if n in installed().names("policy")}
    evaluate = search(Portfolio(starts=starts), a_problem(), 500)
    assert evaluate.evaluations == 500
    assert evaluate.best is not None


def test_levels_without_a_choice_of_devices_are_left_out() -> None:
    """Pairs of an operation that is pinned and one that is not: every unit of two is pinned."""
    b = GraphBuilder("pinned")
    for i in range(24):
        t = b.add(f"a{i}", outputs=[10**6], flops=1e9, allowed="gpu" if i % 2 else "cpu")
        b.add(f"b{i}", inputs=t, outputs=[4], flops=1e9)
    kind = {"flops_per_s": {"float32": 1e9}, "memory_bytes": 2**40, "memory_bytes_per_s": 1e15}
    machine = {"kinds": {"gpu": kind, "cpu": {**kind, "type": "cpu"}}, "devices": [{"kind": "gpu"}, {"kind": "cpu"}],
               "links": [{"a": "*", "b": "hub", "bytes_per_s": 1e8}]}  # fmt: skip
    problem = Problem.of(b.build(), Cluster.parse(machine))
    evaluate = search(Portfolio(starts={}, evaluations_per_chain=50), problem, 3200)
    assert evaluate.evaluations == 3200


def test_nothing_can_move_and_nothing_fits() -> None:
    b = GraphBuilder("stuck")
    b.add("a", outputs=[100], flops=1e9)
    kind = {"flops_per_s": {"float32": 1e9}, "memory_bytes": 50, "memory_bytes_per_s": 1e15}
    problem = Problem.of(b.build(), Cluster.parse({"kinds": {"gpu": kind}, "devices": [{"kind": "gpu"}]}))
    evaluate = search(Portfolio(), problem, 100)
    assert evaluate.best is None
    assert evaluate.evaluations > 0


def test_the_seconds_end_while_a_checkpoint_is_written() -> None:
    for policy in (Portfolio(starts={}), LocalSearch()):
        evaluate = Evaluator(a_problem(), open_simulator(a_problem()), Ledger(seconds=0.4))
        task = Task(evaluate.problem, evaluate)
        policy.place(task, np.random.default_rng(0), None, lambda state: time.sleep(0.5))
        assert evaluate.best is not None


def test_starts_use_their_share_of_the_budget_and_no_more() -> None:
    for budget in (20, 100, 400, 2000):
        used: list[int] = []
        problem = a_problem()
        evaluate = Evaluator(problem, open_simulator(problem), Ledger(budget))

        def note(state: Any, used: list[int] = used, evaluate: Evaluator = evaluate) -> None:
            used.append(evaluate.evaluations)

        Portfolio().place(Task(problem, evaluate), np.random.default_rng(0), None, note)
        assert used[0] <= max(2, 0.25 * budget)


def test_priorities_change_without_a_trace_too() -> None:
    pytest.importorskip("placekit_sim")
    problem = a_problem()
    entry = installed().get("backend", "bulk_synchronous")
    session = entry.build(entry.component.config()).open(problem)
    task = Task(problem, Evaluator(problem, session, Ledger(1000)))
    moves = Moves(task, {kind: float(kind == "order") for kind in KINDS}, 0.0)
    order = np.arange(problem.g, dtype=np.float32)
    start = problem.allowed.argmax(axis=1).astype(np.int16)
    chain = Chain(moves, Chain.begin(start, order, 1e9, True, np.array([3], np.uint64)))
    chain.walk(neighbourhood(problem), 100, 1e9, 1.0)
    assert not np.array_equal(chain.priority, order)
    np.testing.assert_array_equal(chain.device, start)


def test_a_start_whose_library_is_missing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    if "metis" not in installed().names("policy"):
        pytest.skip("placekit-metis is not installed")
    monkeypatch.setitem(sys.modules, "pymetis", None)
    assert "metis" not in Portfolio().others
    with contextlib.suppress(KeyError):
        assert "heft" in Portfolio().others


def test_a_budget_in_seconds_ends() -> None:
    problem = a_problem()
    evaluate = Evaluator(problem, open_simulator(problem), Ledger(seconds=0.5))
    with contextlib.suppress(BudgetExhausted):
        Portfolio().place(Task(problem, evaluate), np.random.default_rng(0))
    assert evaluate.best is not None
    assert evaluate.ledger.seconds < 5


def test_restarts_leave_a_local_optimum() -> None:
    """Four pairs that exchange much: a pair must move as a whole, and single moves only make it worse."""
    b = GraphBuilder("pairs")
    for i in range(4):
        t = b.add(f"a{i}", outputs=[10**9], flops=1e9)
        b.add(f"b{i}", inputs=t, flops=1e9)
    kind = {"flops_per_s": {"float32": 1e9}, "memory_bytes": 2**40, "memory_bytes_per_s": 1e15,
            "efficiency": {"other": {"compute": 1.0, "memory": 1.0}}}  # fmt: skip
    machine = {"kinds": {"gpu": kind}, "devices": [{"kind": "gpu", "count": 2}],
               "links": [{"a": "*", "b": "hub", "bytes_per_s": 1e8}]}  # fmt: skip
    problem = Problem.of(b.build(), Cluster.parse(machine))
    moves = Moves(Task(problem, Evaluator(problem, open_simulator(problem), Ledger(1000))),
                  {kind: float(kind == "single") for kind in KINDS}, 0.0)  # fmt: skip
    hood = neighbourhood(problem)
    ends = []
    for patience in (0, 20):
        chain = Chain(moves, Chain.begin(np.zeros(8, np.int16), None, 8.0, True, np.array([3], np.uint64)))
        chain.restart[:2] = patience, 2
        chain.walk(hood, 1000, 0.0, 1.0)
        ends.append(chain.energy[1])
    assert ends == [8.0, 4.0]
