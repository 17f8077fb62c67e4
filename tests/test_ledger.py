"""Clocks of budgets, one generator per name, names of folders: small things that results depend on."""

from __future__ import annotations

import time

import pytest

from placekit_core import BudgetExhausted, Ledger, Placements, Problem
from placekit_core.cli.arguments import quoted
from placekit_core.cli.jobs import job_name
from placekit_core.run.evaluator import BudgetedEvaluator
from tests.test_evaluator import Table, batch


def test_the_clock_runs_from_start_to_stop_and_keeps_what_was_used() -> None:
    ledger = Ledger(seconds=100)
    assert ledger.seconds == 0
    ledger.start()
    time.sleep(0.02)
    ledger.stop()
    used = ledger.seconds
    assert used >= 0.02
    time.sleep(0.02)
    assert ledger.seconds == used, "it stands"
    ledger.start()
    ledger.start()
    assert ledger.seconds >= used, "starting again forgets nothing"
    again = Ledger(seconds=100)
    again.restore(ledger.state())
    assert again.seconds >= used


@pytest.mark.parametrize(("at_once", "expected"), [(1, [1] * 20), (6, [6, 6, 6, 2]), (30, [20])])
def test_a_session_gets_as_many_at_once_as_it_asks_for(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, at_once: int, expected: list[int]
) -> None:
    """Even where a call takes so long that a single placement would be enough."""
    now, sizes = [0.0], []
    monkeypatch.setattr("placekit_core.run.evaluator.time.perf_counter", lambda: now[0])

    class Slow(Table):
        def evaluate(self, placements: Placements):
            sizes.append(len(placements))
            now[0] += 10
            return super().evaluate(placements)

    session = Slow()
    session.at_once = at_once
    BudgetedEvaluator(problem, session, deterministic=False)(batch(problem, *([1] * 20)))
    assert sizes == expected


def test_it_gets_no_more_than_the_budget_has_left(problem: Problem) -> None:
    session = Table()
    session.at_once = 8
    evaluate = BudgetedEvaluator(problem, session, Ledger(5))
    with pytest.raises(BudgetExhausted):
        evaluate(batch(problem, *range(6), 0, 1))
    assert session.calls == 5


def test_policies_can_prove_bounds(problem: Problem) -> None:
    evaluate = BudgetedEvaluator(problem, Table())
    evaluate.prove(0.5)
    evaluate.prove(0.25)
    other = BudgetedEvaluator(problem, Table())
    other.restore(evaluate.state())
    assert other.proven_s == 0.5


def test_policies_can_leave_notes(problem: Problem) -> None:
    evaluate = BudgetedEvaluator(problem, Table())
    for text in ("moved 2 groups", "moved 1 group", "moved 2 groups"):
        evaluate.note(text)
    other = BudgetedEvaluator(problem, Table())
    other.restore(evaluate.state())
    other.note("moved 1 group")
    assert other.notes == ["moved 2 groups", "moved 1 group"], "each once, also after a checkpoint"
    other.note("moved 3 groups")
    assert len(evaluate.notes) == 2


def test_names_of_jobs_say_what_varies_and_are_short() -> None:
    assert job_name(["seed=1", "policy=heft", "budget.evaluations=9"], ["budget.evaluations"]) == "policy=heft,seed=1"
    assert job_name(["policy=heft"], ["policy"]) == "policy=heft"
    assert job_name(["cluster.path='/a/b c.yaml'", "seed=1"], []) == "cluster=b_c,seed=1"
    assert ".." not in job_name(["importer.path=../../x"], [])
    assert "/" not in job_name(["importer.path=../../x"], [])
    long = job_name([f"policy.option{i}=1" for i in range(60)], [])
    assert len(long) <= 150
    assert long != job_name([f"policy.option{i}=1" for i in range(61)], [])


def test_quoting_survives_hydra() -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    for text in ("plain.npz", "it's.npz", "back\\slash", "gräph ü,=.npz"):
        override = OverridesParser.create().parse_override(f"importer.path={quoted(text)}")
        assert override.value() == text, text
