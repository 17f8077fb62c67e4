"""Correlations against values worked out by hand, and placements that are simulated and measured."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from placekit_inspect import fidelity as command
from placekit_inspect.agreement import RANDOM, SEARCH, SEARCHED, Fidelity, compare, program_order, search, simulated
from placekit_inspect.statistics import bootstrap_interval, pearson, ranks, spearman
from placekit_testing.fakes import FakeBackend, FakeSession, diamond, mixed, unequal

from placekit_core import Measurements, Placements, Problem, RunError


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


def test_bootstrap_intervals() -> None:
    """Of correlated normal pairs the interval is about that of Fisher's transformation; of a line it is one point."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    y = 0.8 * x + 0.6 * rng.normal(size=400)
    low, high = bootstrap_interval(pearson, x, y)
    z, half = np.arctanh(pearson(x, y)), 1.96 / np.sqrt(397)
    assert [low, high] == pytest.approx([np.tanh(z - half), np.tanh(z + half)], abs=0.02)
    assert bootstrap_interval(pearson, x, 2 * x) == pytest.approx((1, 1))
    assert bootstrap_interval(spearman, x, y) == bootstrap_interval(spearman, x, y)
    assert np.isnan(bootstrap_interval(pearson, [1, 1, 1], [1, 2, 3])).all()
    assert np.isnan(bootstrap_interval(pearson, [1], [1])).all()


class Slower(FakeSession):
    """Takes 1.25 times what the fake says, a little more or less each time, and twice as long from call 13 to 24."""

    calls = 0

    def evaluate(self, placements: Placements) -> Measurements:
        self.calls += 1
        found = super().evaluate(placements)
        factor = 1.25 + 0.01 * np.sin(self.calls)
        factor *= 2 if 12 < self.calls <= 24 else 1
        return Measurements(found.value_s * factor, found.peak_bytes, found.fits, found.error)


def compared(problem: Problem, machine: FakeSession | None = None, seed: int = 0, **sizes: int) -> Fidelity:
    options = {"placements": 12, "passes": 3, **sizes}
    simulator = FakeBackend().open(problem)
    return compare(problem, simulator, machine or Slower(problem), rng=np.random.default_rng(seed), **options)


def test_a_machine_that_is_slower_everywhere() -> None:
    found = compared(unequal(12))
    assert found.made == (RANDOM,) * 6 + (SEARCH,) * 6
    assert found.evaluations[:6].tolist() == [0] * 6
    assert (found.evaluations[6:] > 1).all()
    assert found.evaluations[11] == SEARCHED
    assert (np.diff(found.simulated_s[6:]) < 0).all(), "better and better"
    assert found.simulated_s[6] <= found.simulated_s[:6].min(), "none is worse than the best random one"
    assert_allclose(found.measured_s, 1.25 * found.simulated_s, rtol=0.02)
    (
        assert_allclose(found.scale / found.scale[0], [1, 0.5, 1], rtol=0.02),
        "of the second pass, which took twice as long",
    )
    assert found.samples_s[1].mean() > 1.9 * found.samples_s[0].mean(), "samples are as they were"
    everything = found.agreement()
    assert everything.placements == 12
    assert everything.pearson == pytest.approx(1, abs=1e-2)
    assert everything.mean_error == pytest.approx(0.2, abs=0.01)
    assert everything.bias == pytest.approx(-0.2, abs=0.01)
    assert found.agreement(SEARCH).placements == 6
    assert (found.spread_s > 0).all()
    assert (found.spread_s < 0.02 * found.measured_s).all(), "of scaled passes"
    low, high = everything.spearman_interval
    assert 0.9 < low <= everything.spearman <= high <= 1


def test_searches_stop_at_their_goals() -> None:
    problem = unequal(12)
    session = FakeBackend().open(problem)
    goals = np.array([np.inf, 1.3, 1.1]) * session.lower_bound()
    device, used = search(problem, session, goals, np.random.default_rng(0))
    assert (simulated(problem, session, device).value_s <= goals).all()
    assert used[0] == 1 < used[1] < used[2] < SEARCHED


def test_placements_are_allowed_and_prefer_what_comes_first() -> None:
    problem = mixed()
    assert compared(problem).agreement().placements == 12
    order = program_order(problem)[problem.grouping.group_of[problem.graph.kernel]]
    assert (np.diff(order) < 0).all(), "a chain"


@pytest.mark.slow
def test_what_cannot_be_measured_is_left_out_and_named() -> None:
    problem = unequal(12)
    machine = Counted(problem, failing=0.3)
    found = compared(problem, machine, placements=40)
    ok = found.agreement().placements
    assert 20 < ok < 40
    assert machine.calls == 3 * ok + (40 - ok), "what failed once is not tried again"
    assert [e is None for e in found.error] == np.isfinite(found.measured_s).tolist()
    with pytest.raises(RunError, match="only 0 of 12 placements could be measured"):
        compared(problem, FakeSession(problem, failing=1.0))


class Counted(FakeSession):
    """Counts what it evaluates."""

    calls = 0

    def evaluate(self, placements: Placements) -> Measurements:
        self.calls += 1
        return super().evaluate(placements)


@pytest.mark.slow
def test_files_say_what_was_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = diamond()
    found = compared(problem, FakeSession(problem, failing=0.3), placements=40)
    command.write(found, tmp_path, {"seed": 0})
    command.show(found)
    rows = (tmp_path / command.CSV).read_text().splitlines()
    assert rows[0] == "placement,made,evaluations,simulated_s,measured_s,spread_s,error"
    assert len(rows) == 41
    printed = capsys.readouterr().out
    reasons = {e for e in found.error if e}
    assert reasons == {"the fake failed", "does not fit"}
    for reason in reasons:
        missing = sum(row.endswith(f",,,{reason}") for row in rows)
        assert f"{missing} could not be measured and are left out: {reason}" in printed
    text = (tmp_path / command.JSON).read_text()
    assert "NaN" not in text
    assert np.shape(json.loads(text)["samples_s"]) == (3, 40)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            "arguments are required: OUT_DIR\n  usage: placekit fidelity [-h] [--placements N] [--passes N]",
        ),
        (["workload=mlp"], "workload=mlp is an option, not a folder\n  give OUT_DIR as the first argument"),
        (["--x", "out"], "unrecognized arguments: --x\n  usage: placekit fidelity"),
        (["f", "--placements=3"], "--placements: '3' is not a whole number of at least 4"),
        (["f", "workload=mlp", "backend=cpu", "backend@proxy=cpu"], "the proxy 'cpu' does not simulate"),
        (["f", "--passes=x"], "--passes: 'x' is not a whole number of at least 1"),
        (["f", "workload=mlp"], "backend 'simulator' does not measure"),
        (["here", "workload=mlp"], "here exists already"),
    ],
)
def test_mistakes_of_the_command_line(placekit: Callable[..., Any], arguments: list[str], message: str) -> None:
    Path("here").mkdir()
    code, _, err = placekit("fidelity", *arguments)
    assert code == 1
    assert message in err
    assert sorted(p.name for p in Path().iterdir()) == ["here"], "nothing is left behind"
