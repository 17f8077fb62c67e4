"""Correlations against values worked out by hand, and placements that are simulated and measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from placekit_core.cli import fidelity as command
from placekit_core.errors import RunError
from placekit_core.fidelity import RANDOM, SEARCH, SEARCHED, Fidelity, compare, program_order, searched
from placekit_core.measurement import Measurements
from placekit_core.placement import Placements
from placekit_core.problem import Problem
from placekit_core.statistics import pearson, ranks, spearman
from placekit_core.testing.fakes import FakeBackend, FakeSession, diamond, mixed, unequal


def test_ranks_share_their_place() -> None:
    assert ranks([10, 30, 20, 20]).tolist() == [1, 4, 2.5, 2.5]
    assert ranks([5, 5, 5]).tolist() == [2, 2, 2]
    assert ranks([]).tolist() == []


def test_correlations_by_hand() -> None:
    """x - mean = (-2, -1, 0, 1, 2), y - mean = (-2, 0, -1, 2, 1): covariance 8 of 10. Ranks are the values."""
    x, y = [1, 2, 3, 4, 5], [1, 3, 2, 5, 4]
    assert pearson(x, y) == pytest.approx(0.8)
    assert spearman(x, y) == pytest.approx(0.8)  # 1 - 6 * 4 / (5 * 24)
    assert spearman(x, np.exp(y)) == pytest.approx(0.8), "only the order counts"
    assert pearson(x, np.negative(x)) == spearman(x, np.negative(x)) == pytest.approx(-1)


def test_correlations_with_ties_by_hand() -> None:
    """Ranks (1, 2.5, 2.5, 4) and (1, 2, 3, 4): deviations give 4.5 / sqrt(4.5 * 5)."""
    assert spearman([1, 2, 2, 9], [1, 2, 3, 4]) == pytest.approx(math.sqrt(0.9))


@pytest.mark.parametrize("values", [[], [1.0], [2.0, 2.0, 2.0]])
def test_without_differences_there_is_no_correlation(values: list[float]) -> None:
    assert math.isnan(pearson(values, values))
    assert math.isnan(spearman(values, values))


class Slower(FakeSession):
    """Takes 1.25 times what the fake says, and a little more or less each time."""

    calls = 0

    def evaluate(self, placements: Placements) -> Measurements:
        self.calls += 1
        found = super().evaluate(placements)
        factor = 1.25 + 0.01 * np.sin(self.calls)
        return Measurements(found.value_s * factor, found.peak_bytes, found.fits, found.error)


def compared(problem: Problem, machine: FakeSession | None = None, seed: int = 0, **sizes: int) -> Fidelity:
    options = {"placements": 12, "passes": 3, **sizes}
    simulator = FakeBackend().open(problem)
    return compare(problem, simulator, machine or Slower(problem), rng=np.random.default_rng(seed), **options)


def test_a_machine_that_is_slower_everywhere() -> None:
    found = compared(unequal(12))
    assert found.made == (RANDOM,) * 6 + (SEARCH,) * 6
    assert found.evaluations[:6].tolist() == [0] * 6
    assert found.evaluations[6] < found.evaluations[11] <= SEARCHED
    assert (np.diff(found.simulated_s[6:]) < 0).all(), "better and better"
    assert_allclose(found.measured_s, 1.25 * found.simulated_s, rtol=0.011)
    everything = found.agreement()
    assert everything.placements == 12
    assert everything.pearson == pytest.approx(1, abs=1e-2)
    assert everything.mean_error == pytest.approx(0.2, abs=0.01)
    assert everything.bias == pytest.approx(-0.2, abs=0.01)
    assert found.agreement(SEARCH).placements == 6
    assert (found.spread_s > 0).all()


def test_equal_seeds_make_equal_placements() -> None:
    a, b, other = (compared(unequal(12), seed=seed).simulated_s.tolist() for seed in (1, 1, 2))
    assert a == b != other


def test_longer_searches_find_better_placements() -> None:
    problem = unequal(12)
    session = FakeBackend().open(problem)
    values = [
        session.evaluate(Placements.of(searched(problem, session, n, np.random.default_rng(0))[0])).value_s[0]
        for n in (1, 30, 600)
    ]
    assert values[0] > values[1] > values[2] == session.lower_bound()


def test_placements_are_allowed_and_prefer_what_comes_first() -> None:
    problem = mixed()
    assert compared(problem).agreement().placements == 12
    order = program_order(problem)[problem.grouping.group_of[problem.graph.kernel]]
    assert (np.diff(order) < 0).all(), "a chain"


def test_what_cannot_be_measured_is_left_out_and_named() -> None:
    problem = unequal(12)
    found = compared(problem, FakeSession(problem, failing=0.3), placements=40)
    assert 20 < found.agreement().placements < 40
    with pytest.raises(RunError, match="only 0 of 12 placements could be measured"):
        compared(problem, FakeSession(problem, failing=1.0))


def test_files_say_what_was_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = diamond()
    found = compared(problem, FakeSession(problem, failing=0.3), placements=40)
    command.write(found, tmp_path / "f", {"seed": 0})
    command.show(found)
    rows = (tmp_path / "f" / command.CSV).read_text().splitlines()
    assert rows[0] == "placement,made,evaluations,simulated_s,measured_s,spread_s"
    assert len(rows) == 41
    missing = sum(row.endswith(",,") for row in rows)
    assert f"{missing} could not be measured" in capsys.readouterr().out
    assert "NaN" not in (tmp_path / "f" / command.JSON).read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "usage: placekit fidelity OUT_DIR"),
        (["workload=mlp"], "usage: placekit fidelity OUT_DIR"),
        (["f", "placements=3"], "placements=3: it must be a whole number, 4 at least"),
        (["f", "passes=x"], "passes=x: it must be a whole number, 1 at least"),
        (["f", "workload=mlp"], "backend 'simulator' measures nothing"),
        (["here", "workload=mlp"], "here exists already"),
    ],
)
def test_mistakes_of_the_command_line(placekit: Callable[..., Any], arguments: list[str], message: str) -> None:
    Path("here").mkdir()
    code, _, err = placekit("fidelity", *arguments)
    assert code == 1
    assert message in err
    assert sorted(p.name for p in Path().iterdir()) == ["here"]
