"""The portfolio, on the simulator."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np
import pytest
from placekit_search.annealing import Annealing
from placekit_search.local_search import LocalSearch, SearchContext
from placekit_search.move_kinds import KINDS, PORTFOLIO, used
from placekit_search.neighbourhood import neighbourhood
from placekit_search.portfolio import Portfolio
from placekit_testing.strategies import random_problem
from search_helpers import machine, open_simulator, rows, search, stopped_and_resumed, task_of, tight

from placekit_core import (
    BudgetExhausted,
    ConfigError,
    GraphBuilder,
    Ledger,
    NotApplicable,
    Options,
    PlacekitError,
    Placement,
    PluginError,
    Policy,
    PolicyComponent,
    Problem,
    Task,
    installed,
    load_policy,
)
from placekit_core.run.entries import Entry
from placekit_core.run.evaluator import BudgetedEvaluator


def a_problem(n: int = 60) -> Problem:
    return random_problem(np.random.default_rng(11), n, 4)


def test_uses_the_whole_budget_and_no_more() -> None:
    for budget in (1, 2, 7, 50, 333, 5000):
        assert search(Portfolio(), a_problem(), budget).evaluations == budget


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
        policy = entry.build(entry.component.config(samples=1))
        first = policy.place(task_of(problem, 300), np.random.default_rng(0))
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
    Portfolio(evaluations_per_chain=2000).place(
        task_of(problem, 20_000), np.random.default_rng(0), None, lambda state: counts.append(len(state["chains"]))
    )
    assert counts[0] == 8
    assert counts[-1] == 1
    assert sorted(set(counts), reverse=True) == [8, 4, 2, 1]
    assert counts == sorted(counts, reverse=True)


def test_resumes_to_the_last_bit() -> None:
    problem, policy = a_problem(), Portfolio(evaluations_per_chain=1000)
    whole = search(policy, problem, 9000)
    again = stopped_and_resumed(policy, problem, 9000, 4000)
    assert rows(again) == rows(whole)
    assert whole.best is not None
    assert again.best is not None
    assert again.best.placement.same_as(whole.best.placement)


def test_starts_must_exist_and_take_their_options() -> None:
    with pytest.raises(PluginError, match="no policy named 'no_such_policy'"):
        Portfolio(starts={"no_such_policy": {}})
    with pytest.raises(ConfigError, match="cannot start from itself"):
        Portfolio(starts={"portfolio": {}})
    with pytest.raises(ConfigError, match=r"no option named 'policy.starts.annealing.startz'\n  did you mean 'starts'"):
        Portfolio(starts={"annealing": {"startz": 3}})


def test_a_start_that_learns_must_be_trained() -> None:
    pytest.importorskip("placekit_placeto")
    with pytest.raises(ConfigError, match=r"'placeto' learns, .*\n.*policy.starts.placeto.checkpoint"):
        Portfolio(starts={"placeto": {}})


def test_starts_from_the_placement_of_a_trained_policy() -> None:
    """It is the one that the policy makes alone, and is asked for however small the budget."""
    placeto = pytest.importorskip("placekit_placeto.placeto")
    checkpoint, problem = "pkg://placekit_placeto/pretrained/cifar10", a_problem()
    alone = placeto.Placeto(checkpoint=checkpoint)
    alone.build([problem], np.random.default_rng(0))
    load_policy(alone, checkpoint)
    wanted = alone.place(task_of(problem, 12), np.random.default_rng(5)).device.tolist()
    seen, call = list[Any](), BudgetedEvaluator.__call__

    def watched(self: Any, placements: Any) -> Any:
        seen.extend(placements.device.tolist())
        return call(self, placements)

    portfolio = Portfolio(starts={"critical_path": {}, "placeto": {"checkpoint": checkpoint}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BudgetedEvaluator, "__call__", watched)
        portfolio.place(task_of(problem, 12), np.random.default_rng(5))
    assert wanted in seen


def test_a_usual_start_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(installed()), "names", lambda self, kind: [])
    assert Portfolio().others == {}


def test_a_policy_that_refuses_is_left_out() -> None:
    starts = {n: {} for n in ("expert", "enumerative") if n in installed().names("policy")}
    evaluate = search(Portfolio(starts=starts), a_problem(), 500)
    assert evaluate.evaluations == 500
    assert evaluate.best is not None


class Broken(Policy):
    """Another policy, which cannot be built or fails at work, for reasons of its own."""

    name = "broken"
    error: PlacekitError = PlacekitError("its table is damaged")
    at_work = False

    def __init__(self, options: Any = None, **values: Any) -> None:
        super().__init__(options, **values)
        if not self.at_work:
            raise self.error

    def place(self, task: Task, rng: np.random.Generator) -> Placement:
        raise self.error


def with_broken(monkeypatch: pytest.MonkeyPatch, error: PlacekitError, at_work: bool = False) -> None:
    """Install `Broken` in place of the usual start `heft`."""
    monkeypatch.setattr(Broken, "error", error)
    monkeypatch.setattr(Broken, "at_work", at_work)
    component = PolicyComponent("heft", "fails", Options, f"{__name__}:Broken")
    entry = Entry("policy", component, "broken", "placekit-broken", "0")
    monkeypatch.setitem(installed().entries, ("policy", "heft"), [entry])


def test_only_a_policy_for_others_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a broken plugin is told, not hidden: `heft` is one of the usual starts."""
    for at_work in (False, True):
        with_broken(monkeypatch, NotApplicable("for other machines"), at_work)
        assert search(Portfolio(starts={"heft": {}}), a_problem(), 500).evaluations == 500
        with_broken(monkeypatch, PlacekitError("its table is damaged"), at_work)
        with pytest.raises(PlacekitError, match="its table is damaged"):
            search(Portfolio(starts={"heft": {}}), a_problem(), 500)


def test_a_start_that_cannot_be_loaded_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    component = PolicyComponent("heft", "is not there", Options, "placekit_nowhere:Heft")
    entry = Entry("policy", component, "broken", "placekit-broken", "0")
    monkeypatch.setitem(installed().entries, ("policy", "heft"), [entry])
    with pytest.raises(PluginError, match="policy 'heft' of placekit-broken 0 is broken: ModuleNotFoundError"):
        Portfolio(starts={"heft": {}})


def test_levels_without_a_choice_of_devices_are_left_out() -> None:
    """Pairs of an operation that is pinned and one that is not: every unit of two is pinned."""
    b = GraphBuilder("pinned")
    for i in range(24):
        t = b.add(f"a{i}", outputs=[10**6], flops=1e9, allowed="gpu" if i % 2 else "cpu")
        b.add(f"b{i}", inputs=t, outputs=[4], flops=1e9)
    problem = Problem.of(b.build(), machine(1, 1, flops_per_s=1e9, bytes_per_s=1e8))
    evaluate = search(Portfolio(starts={}, evaluations_per_chain=50), problem, 3200)
    assert evaluate.evaluations == 3200


def test_nothing_can_move_and_nothing_fits() -> None:
    b = GraphBuilder("stuck")
    b.add("a", outputs=[100], flops=1e9)
    problem = Problem.of(b.build(), machine(1, memory_bytes=50))
    evaluate = search(Portfolio(), problem, 100)
    assert evaluate.best is None
    assert evaluate.evaluations > 0


def test_the_seconds_end_while_a_checkpoint_is_written() -> None:
    for policy in (Portfolio(starts={}), Annealing()):
        task = task_of(a_problem(), seconds=1e9)

        def end(state: Any, ledger: Ledger = task.evaluate.ledger) -> None:
            ledger.limit_s = 1e-9

        policy.place(task, np.random.default_rng(0), None, end)
        assert task.evaluate.best is not None
        assert task.evaluate.remaining == 0


def test_starts_use_their_share_of_the_budget_and_no_more() -> None:
    for budget in (20, 100, 400, 2000):
        used: list[int] = []
        task = task_of(a_problem(), budget)

        def note(state: Any, used: list[int] = used, evaluate: BudgetedEvaluator = task.evaluate) -> None:
            used.append(evaluate.evaluations)

        Portfolio().place(task, np.random.default_rng(0), None, note)
        assert used[0] <= max(2, 0.25 * budget)


def test_priorities_change_without_a_trace_too() -> None:
    pytest.importorskip("placekit_sim")
    problem = a_problem()
    entry = installed().get("backend", "bulk_synchronous")
    session = entry.build(entry.component.config()).open(problem)
    task = Task(problem, BudgetedEvaluator(problem, session, Ledger(1000)))
    moves = SearchContext(task, {kind: float(kind == "order") for kind in KINDS})
    order = np.arange(problem.g, dtype=np.float32)
    start = problem.allowed.argmax(axis=1).astype(np.int16)
    chain = LocalSearch(moves, LocalSearch.begin(start, order, 1e9, 0.0, 2e10, np.array([3], np.uint64)))
    chain.walk(neighbourhood(problem), 100, 1e9, 1.0)
    assert not np.array_equal(chain.at.priority, order)
    np.testing.assert_array_equal(chain.at.device, start)


def test_a_start_whose_library_is_missing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    if "metis" not in installed().names("policy"):
        pytest.skip("placekit-metis is not installed")
    monkeypatch.setitem(sys.modules, "pymetis", None)
    assert "metis" not in Portfolio().others
    with contextlib.suppress(KeyError):
        assert "heft" in Portfolio().others


def test_a_budget_in_seconds_ends() -> None:
    task = task_of(a_problem(), seconds=0.5)
    with contextlib.suppress(BudgetExhausted):
        Portfolio().place(task, np.random.default_rng(0))
    assert task.evaluate.best is not None
    assert task.evaluate.ledger.seconds < 10


def test_loops_are_as_long_as_the_seconds_allow() -> None:
    ledger = Ledger(seconds=10)  # its clock stands
    problem = a_problem()
    moves = SearchContext(Task(problem, BudgetedEvaluator(problem, open_simulator(problem), ledger)), used(PORTFOLIO))
    assert moves.chunk() == 16, "how long an evaluation takes is not known"
    moves.evaluation_s = 0.01
    assert moves.chunk() == 25
    ledger.limit_s = 0.05
    assert moves.chunk() == 5
    ledger.limit_s = 1e-9
    assert moves.chunk() == 1


def test_policies_with_one_sample_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placekit_search.portfolio.TRIES", 5)
    asked = []

    class Sampled(Options):
        samples: int = 1

    class Asked(Policy):
        name = "asked"
        options_class = Sampled

        def place(self, task: Task, *_: Any) -> Placement:
            asked.append(self.options.samples)
            return task.problem.placement(np.zeros(task.problem.g, np.int16))

    for samples, times in ((1, 1), (2, 5)):
        policy = Portfolio(starts={}, evaluations_per_chain=100)
        policy.others["asked"] = Asked(samples=samples)
        search(policy, a_problem(), 2000)
        assert asked == [samples] * times
        asked.clear()


def test_an_order_that_fits_is_found_on_one_device() -> None:
    assert search(Annealing(), tight(1), 1000).best is not None
