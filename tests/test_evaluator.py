"""The BudgetedEvaluator: budgets, counting, caching, the best, the history, states."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placekit_core import (
    BudgetExhausted,
    Ledger,
    Measurements,
    Placement,
    PlacementError,
    Placements,
    Problem,
    Schedule,
    Session,
    Task,
)
from placekit_core.run.csv_log import CsvLog
from placekit_core.run.evaluator import TURNS, BudgetedEvaluator


class Table(Session):
    """The value of a placement is 1 + the number of groups on device 1; more than `room` of them do not fit."""

    def __init__(self, room: int = 100) -> None:
        self.room, self.calls = room, 0

    def evaluate(self, placements: Placements) -> Measurements:
        self.calls += len(placements)
        on = placements.device.sum(axis=1).astype(float)
        peak = np.stack([np.zeros(len(on)), on * 2.0**30], axis=1)
        return Measurements(1.0 + on, peak, on <= self.room, (None,) * len(on))

    def schedule(self, placement: Placement) -> Schedule:
        raise AssertionError("not asked for")


def batch(problem: Problem, *on_one: int) -> Placements:
    """One placement per number: that many groups on device 1."""
    return Placements.of([[1] * k + [0] * (problem.g - k) for k in on_one])


def test_counts_keeps_the_best_and_writes_the_history(problem: Problem) -> None:
    evaluate = BudgetedEvaluator(problem, Table(), Ledger(10))
    m = evaluate(batch(problem, 3, 1, 2))
    assert m.value_s.tolist() == [4.0, 2.0, 3.0]
    evaluate(batch(problem, 4))
    assert evaluate.evaluations == 4
    assert evaluate.remaining == 6
    assert evaluate.best is not None
    assert evaluate.best.value_s == 2.0
    assert evaluate.best.placement.device.sum() == 1
    assert [row[0] for row in evaluate.history] == [3, 4]
    assert [row[2] for row in evaluate.history] == [2.0, 5.0]
    assert [row[4] for row in evaluate.history] == [2.0, 2.0], "the best so far never worsens"


def test_what_a_trainer_logs_is_a_column_of_the_next_row(problem: Problem, tmp_path: Path) -> None:
    log, told = CsvLog(), list[Mapping[str, float]]()

    def on_row(row: Mapping[str, float]) -> None:
        told.append(row)
        log.placekit_evaluated(tmp_path, row)

    evaluate = BudgetedEvaluator(problem, Table(), Ledger(10), on_row=on_row)
    evaluate(batch(problem, 3))
    Task(problem, evaluate).log(loss=0.5, entropy=1.0)
    evaluate(batch(problem, 2))
    evaluate.log(loss=0.25)
    resumed = BudgetedEvaluator(problem, Table(), Ledger(10), on_row=on_row)
    resumed.restore(evaluate.state())  # with what was logged and is in no row yet
    resumed(batch(problem, 1))
    assert np.array_equal(resumed.logged["loss"], [math.nan, 0.5, 0.25], equal_nan=True)
    assert np.array_equal(resumed.logged["entropy"], [math.nan, 1.0, math.nan], equal_nan=True)
    assert [row.get("loss") for row in told] == [None, 0.5, 0.25]
    log._open[tmp_path / "history.csv"][0].close()
    rows = list(csv.DictReader((tmp_path / "history.csv").read_text().splitlines()))
    assert [(row["evaluations"], row["loss"], row["entropy"]) for row in rows] == [
        ("1", "", ""),
        ("2", "0.5", "1.0"),
        ("3", "0.25", ""),
    ]


def test_budget_ends_within_a_batch_and_records_what_was_seen(problem: Problem) -> None:
    session = Table()
    evaluate = BudgetedEvaluator(problem, session, Ledger(2))
    with pytest.raises(BudgetExhausted):
        evaluate(batch(problem, 3, 2, 0))
    assert session.calls == 2, "never more evaluations than the budget"
    assert evaluate.best is not None
    assert evaluate.best.value_s == 3.0
    with pytest.raises(BudgetExhausted):
        evaluate(batch(problem, 0))
    assert evaluate.evaluations == 2


def test_budget_in_seconds_ends(problem: Problem) -> None:
    """One placement is evaluated in any number of seconds, unless evaluations are used up, too."""
    evaluate = BudgetedEvaluator(problem, Table(), Ledger(seconds=1e-9))
    assert evaluate.remaining == 1
    with pytest.raises(BudgetExhausted):
        evaluate(batch(problem, 2, 1))
    assert evaluate.best is not None
    assert evaluate.best.value_s == 3.0  # the first of the batch
    assert (evaluate.evaluations, evaluate.remaining, evaluate.progress) == (1, 0, 1.0)
    other = BudgetedEvaluator(problem, Table(), evaluate.ledger)
    assert other.remaining == 1, "another program of its family has a placement, too"
    second = BudgetedEvaluator(problem, Table(), Ledger(1, seconds=1e-9))
    second.ledger.evaluations = 1  # by another program of its family
    assert second.remaining == 0


class Lucky(Table):
    """Values are multiplied by the next of `luck`, while there is some."""

    def __init__(self, *luck: float) -> None:
        super().__init__()
        self.luck = list(luck)

    def evaluate(self, placements: Placements) -> Measurements:
        m = super().evaluate(placements)
        value_s = m.value_s * (self.luck.pop(0) if self.luck else 1.0)
        return replace(m, value_s=value_s, error=tuple("it failed" if np.isnan(v) else None for v in value_s))


def test_where_values_vary_the_best_wins_every_turn(problem: Problem) -> None:
    """0, 1, 2 groups on device 1 are worth 1, 2, 3 s."""
    evaluate = BudgetedEvaluator(problem, session := Lucky(0.9), deterministic=False)
    evaluate(batch(problem, 2))
    assert evaluate.best is not None
    assert (evaluate.best.value_s, session.calls) == (2.7, 1), "nothing to compare with"
    evaluate(batch(problem, 2))
    evaluate(batch(problem, 3))
    assert session.calls == 3, "they do not look better"
    session.luck = [0.5] + TURNS * [1.0, 2.0, 1.0, 0.5]
    m = evaluate(batch(problem, 0))
    assert m.value_s.tolist() == [0.5], "the measurement itself is not changed"
    assert evaluate.best.placement.device.sum() == 0
    assert evaluate.best.value_s == 1.25, "the median of its turns: 2 and 0.5"
    assert (session.calls, evaluate.evaluations) == (4 + 2 * TURNS, 4), "turns are not counted"


def test_a_lucky_placement_does_not_become_the_best(problem: Problem) -> None:
    evaluate = BudgetedEvaluator(problem, session := Lucky(), deterministic=False)
    evaluate(batch(problem, 1))
    session.luck = [0.1, 1.0, 0.1, 3.0, 3.0]  # its first value, then two turns
    evaluate(batch(problem, 2))
    assert evaluate.best is not None
    assert evaluate.best.placement.device.sum() == 1
    assert (evaluate.best.compared_s, evaluate.best.value_s) == ((2.0, 6.0), 4.0), (
        "the median of all that is known of the best"
    )
    assert session.calls == 6, "it lost the second turn"
    later = BudgetedEvaluator(problem, Lucky(0.1), deterministic=False)
    later.restore(evaluate.state())
    later(batch(problem, 2))
    assert later.best is not None
    assert (later.best.compared_s, later.best.value_s) == ((2.0, 6.0, 2.0), 2.0)
    steady = BudgetedEvaluator(problem, Lucky(0.1))
    steady(batch(problem, 1))
    steady(batch(problem, 0))
    assert steady.best is not None
    assert steady.best.value_s == 0.2, "a backend that repeats itself is not asked again"


def test_what_does_not_fit_gets_the_failing_signal_and_is_never_the_best(problem: Problem) -> None:
    evaluate = BudgetedEvaluator(problem, Table(room=1), failing_signal_s=99.0)
    m = evaluate(batch(problem, 2))
    assert evaluate.scores(m).tolist() == [99.0]
    assert m.value_s.tolist() == [3.0], "the measurement itself is not changed"
    assert evaluate.best is None
    assert evaluate.least_over_bytes == 2.0**30
    evaluate(batch(problem, 1))
    assert evaluate.best is not None


def test_charge_counts_and_verifies(problem: Problem) -> None:
    session = Table()
    evaluate = BudgetedEvaluator(problem, session, Ledger(100))
    evaluate.charge(60, batch(problem, 1))
    assert evaluate.evaluations == 60
    assert session.calls == 1, "the backend itself says what the best is worth"
    assert evaluate.best is not None
    assert evaluate.best.value_s == 2.0
    with pytest.raises(ValueError, match="41 evaluations charged with 40 left"):
        evaluate.charge(41, batch(problem, 1))


def test_evaluations_of_another_process_count(problem: Problem) -> None:
    session = Table(room=3)
    evaluate = BudgetedEvaluator(problem, session, Ledger(5))
    found = batch(problem, 3, 1, 4)
    measured = Table(room=3).evaluate(found)
    evaluate.record(found, measured)
    assert session.calls == 0, "they were made elsewhere"
    assert (evaluate.evaluations, evaluate.remaining) == (3, 2)
    assert evaluate.best is not None
    assert (evaluate.best.value_s, evaluate.best.evaluation) == (2.0, 3)
    assert evaluate.best.placement.device.sum() == 1
    assert evaluate.history[0][2:] == (2.0, (4.0 + 2.0 + evaluate.failing_signal_s) / 3, 2.0)
    assert evaluate.least_over_bytes == 0
    evaluate(batch(problem, 1, 0))
    assert session.calls == 2, "what another process measured is not taken for an answer here"
    assert evaluate.best.value_s == 1.0
    assert [row[0] for row in evaluate.history] == [3, 5]


def test_state_round_trip(problem: Problem) -> None:
    evaluate = BudgetedEvaluator(problem, Table(), Ledger(10))
    evaluate(batch(problem, 3, 1))
    other = BudgetedEvaluator(problem, Table(), Ledger(10))
    other.restore(evaluate.state())
    assert other.evaluations == 2
    assert other.remaining == 8
    assert other.best is not None
    assert other.best.value_s == 2.0
    assert other.history == evaluate.history
    assert other.ledger.seconds >= evaluate.history[-1][1]


def test_evaluators_can_share_a_ledger(problem: Problem) -> None:
    ledger = Ledger(3)
    a, b = (BudgetedEvaluator(problem, Table(), ledger) for _ in range(2))
    a(batch(problem, 1, 2))
    b(batch(problem, 1))
    assert (a.evaluations, b.evaluations, ledger.remaining) == (2, 1, 0)
    with pytest.raises(BudgetExhausted):
        a(batch(problem, 0))


def test_evaluations_can_be_kept_for_later() -> None:
    ledger = Ledger(10)
    with ledger.reserved(3):
        assert ledger.remaining == 7
        with ledger.reserved(20):
            assert ledger.remaining == 0
    assert ledger.remaining == 10
    unlimited = Ledger(seconds=5)
    with unlimited.reserved(1):
        assert unlimited.remaining == math.inf


def test_one_placement_is_no_batch(problem: Problem) -> None:
    evaluate = BudgetedEvaluator(problem, Table())
    wrong: list[Any] = [problem.placement(np.zeros(problem.g, np.int16)), [[0] * problem.g]]
    for given in wrong:
        with pytest.raises(PlacementError, match=r"evaluate takes a batch, Placements, and was given a \w+") as caught:
            evaluate(given)
        assert "placement.batch()" in caught.value.hint
