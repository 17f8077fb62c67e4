"""The portfolio, on the simulator."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np
import pytest
from placekit_search.annealing import Annealing
from placekit_search.local_search import SearchContext
from placekit_search.move_kinds import PORTFOLIO, applicable
from placekit_search.portfolio import Portfolio
from placekit_testing.strategies import random_problem
from search_helpers import open_simulator, rows, search, stopped_and_resumed, task_of

from placekit_core import (
    ConfigError,
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
    with pytest.raises(
        ConfigError,
        match=r"no option named 'policy.starts.annealing.startz'\n  did you mean 'policy.starts.annealing.starts'",
    ):
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


def test_the_seconds_end_while_a_checkpoint_is_written() -> None:
    for policy in (Portfolio(starts={}), Annealing()):
        task = task_of(a_problem(), seconds=1e9)

        def end(state: Any, ledger: Ledger = task.evaluate.ledger) -> None:
            ledger.limit_s = 1e-9

        policy.place(task, np.random.default_rng(0), None, end)
        assert task.evaluate.best is not None
        assert task.evaluate.remaining == 0


def test_a_start_whose_library_is_missing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    if "metis" not in installed().names("policy"):
        pytest.skip("placekit-metis is not installed")
    monkeypatch.setitem(sys.modules, "pymetis", None)
    assert "metis" not in Portfolio().others
    with contextlib.suppress(KeyError):
        assert "heft" in Portfolio().others


def test_loops_are_as_long_as_the_seconds_allow() -> None:
    ledger = Ledger(seconds=10)  # its clock stands
    problem = a_problem()
    moves = SearchContext(
        Task(problem, BudgetedEvaluator(problem, open_simulator(problem), ledger)), applicable(PORTFOLIO)
    )
    assert moves.chunk() == 16, "how long an evaluation takes is not known"
    moves.evaluation_s = 0.01
    assert moves.chunk() == 25
    ledger.limit_s = 0.05
    assert moves.chunk() == 5
    ledger.limit_s = 1e-9
    assert moves.chunk() == 1
