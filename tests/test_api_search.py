"""placekit from Python: a search of one's own (`search`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from placekit_testing.fakes import FakeBackend

from placekit_core import (
    BoundError,
    ConfigError,
    PlacekitError,
    PlacementError,
    Problem,
    Result,
    search,
)
from placekit_core.run.run_directory import load_summary


def test_a_search_of_ones_own(problem: Problem) -> None:
    with search(problem.graph, cluster=problem.cluster, budget=100, seed=4, name="mine") as s:
        assert s.result is None
        assert s.remaining == 100
        while s.remaining > 0:
            m = s.evaluate(s.rng.integers(0, 2, (10, s.problem.g)))
            assert s.scores(m).shape == (10,)
        assert s.best is not None
        assert s.schedule(s.best.placement.device).value_s == s.best.value_s
    result = s.result
    assert isinstance(result, Result)
    assert result.summary.policy == "mine"
    assert result.summary.evaluations == 100
    assert result.value_s == s.best.value_s
    with search(problem.graph, cluster=problem.cluster, budget=100, seed=4) as again:
        while again.remaining > 0:
            again.evaluate(again.rng.integers(0, 2, (10, s.problem.g)))
    assert again.result is not None
    assert again.result.value_s == result.value_s


def test_a_search_ends_quietly_where_its_budget_ends(problem: Problem, tmp_path: Path) -> None:
    with search(problem.graph, cluster=problem.cluster, budget=25, run_dir=tmp_path / "s") as s:
        while True:
            s.evaluate(s.rng.integers(0, 2, (10, s.problem.g)))
    assert s.result is not None
    assert s.result.summary.evaluations == 25
    assert load_summary(tmp_path / "s").status == "finished"
    assert len((tmp_path / "s" / "history.csv").read_text().splitlines()) == 4


def test_a_search_that_fails_keeps_what_it_found(problem: Problem, tmp_path: Path) -> None:
    run_dir = tmp_path / "s"
    with pytest.raises(ZeroDivisionError), search(problem.graph, cluster=problem.cluster, run_dir=run_dir) as s:  # noqa: PT012
        s.evaluate(np.zeros(s.problem.g, int))
        _ = 1 / 0
    assert s.result is not None
    assert s.result.summary.status == "failed"
    assert load_summary(run_dir).value_s == s.result.value_s


class Boastful(FakeBackend):
    """A backend whose bound is above every value."""

    name = "boastful"

    def open(self, problem: Problem, executable: Any = None) -> Any:
        session = super().open(problem)
        session.lower_bound = lambda: 1e6  # type: ignore[method-assign]
        return session


def test_a_value_below_the_bound_is_an_error_of_a_search(problem: Problem, tmp_path: Path) -> None:
    asked = {"cluster": problem.cluster, "backend": Boastful()}
    with pytest.raises(BoundError, match="below its proven bound") as e, search(
        problem.graph, **asked, run_dir=tmp_path / "s"
    ) as s:  # fmt: skip
        s.evaluate([0] * problem.g)
    assert s.result is e.value.result
    assert s.result is not None
    assert (s.result.summary.status, load_summary(tmp_path / "s").status) == ("failed", "failed")
    with pytest.raises(BoundError) as quiet, search(problem.graph, **asked, budget=1) as s:
        s.evaluate([[0] * problem.g] * 2)  # more than the budget
    assert quiet.value.result.run_dir is None
    with pytest.raises(ZeroDivisionError), search(problem.graph, **asked) as s:  # noqa: PT012
        s.evaluate([0] * problem.g)
        _ = 1 / 0
    assert s.result is not None
    assert s.result.summary.status == "failed"


def test_a_search_evaluates_in_its_block_only(problem: Problem) -> None:
    s = search(problem.graph, cluster=problem.cluster, budget=10)
    with pytest.raises(PlacekitError, match="only be used inside its `with` block"):
        s.evaluate([0] * problem.g)
    with s:
        s.evaluate([0] * problem.g)
    for use in (lambda: s.evaluate([0] * problem.g), lambda: s.remaining):
        with pytest.raises(PlacekitError, match="only be used inside its `with` block"):
            use()
    assert s.problem.g == problem.g
    assert s.best is not None


def test_a_search_has_no_policy_to_choose(problem: Problem) -> None:
    with pytest.raises(ConfigError, match=r"no argument 'policy'\n  only `place` takes it"):
        search(problem.graph, cluster=problem.cluster, policy="etf")


def test_a_placement_of_another_problem_is_refused(problem: Problem) -> None:
    with search(problem.graph, cluster=problem.cluster) as s:
        with pytest.raises(PlacekitError, match="has 6 groups, not 3"):
            s.evaluate([0, 0, 0])
        with pytest.raises(PlacekitError, match="device 7"):
            s.evaluate([7] * 6)
        with pytest.raises(PlacementError, match=r"there is no device 70000$"):
            s.evaluate([70000] * 6)
        with pytest.raises(PlacementError, match="devices and priorities are arrays of numbers: "):
            s.evaluate([[0], [0, 1]])
        with pytest.raises(PlacementError, match="devices and priorities are arrays of numbers: "):
            s.evaluate([0] * 6, ["high"] * 6)
        with pytest.raises(PlacementError, match="nothing to evaluate in an empty batch"):
            s.evaluate(np.zeros((0, 6), int))
        s.evaluate([0] * 6)
