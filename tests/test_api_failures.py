"""What fails in a run from Python: the result that was found is kept, and the message says what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from placekit_report import frame, html
from placekit_testing.fakes import FakeBackend, chain_graph, gpus

import placekit_core
from placekit_core import (
    BoundError,
    NothingFits,
    Placement,
    Problem,
    RunError,
    Schedule,
    Session,
    Task,
    installed,
    load_placement,
    place,
)
from placekit_core.run.run_directory import load_summary


class Unscheduled(FakeBackend):
    """Executes a program no second time."""

    def open(self, problem: Problem, executable: Any = None) -> Session:
        session = super().open(problem, executable)

        def schedule(placement: Placement) -> Schedule:
            raise RuntimeError("the device\nis gone")

        session.schedule = schedule
        return session


def test_a_schedule_that_fails_costs_no_result(problem: Problem, tmp_path: Path) -> None:
    result = place(
        problem.graph,
        cluster=problem.cluster,
        policy="random",
        budget=20,
        backend=Unscheduled(),
        run_dir=tmp_path / "r",
    )
    assert result.value_s is not None
    assert result.schedule is None
    assert result.summary.notes == [f"there is no schedule of {problem.graph.name!r}: RuntimeError: the device is gone"]
    assert result.summary == load_summary(tmp_path / "r")
    assert load_placement(tmp_path / "r" / "placement.json", problem).same_as(result.placement)
    assert "is gone" in html(result), "the loggers and tables take a result without a schedule"
    assert {"device", "memory_bytes"} <= set(frame(result, "devices"))


class Unbounded(FakeBackend):
    """Fails to prove a bound."""

    def open(self, problem: Problem, executable: Any = None) -> Session:
        session = super().open(problem, executable)

        def lower_bound() -> float:
            raise RuntimeError("no memory for the bound")

        session.lower_bound = lower_bound
        return session


def test_a_bound_that_fails_costs_no_result(problem: Problem, tmp_path: Path) -> None:
    run_dir = tmp_path / "r"
    result = place(
        problem.graph, cluster=problem.cluster, policy="random", budget=20, backend=Unbounded(), run_dir=run_dir
    )
    assert result.value_s is not None
    assert result.summary.bound_s is None
    failed = f"the backend failed to prove a bound of {problem.graph.name!r}: RuntimeError: no memory for the bound"
    assert result.summary.notes == [failed]
    assert result.summary == load_summary(run_dir)
    with placekit_core.search(problem.graph, cluster=problem.cluster, budget=20, backend=Unbounded()) as s:
        s.evaluate(np.zeros(problem.g, np.int16))
    assert s.result is not None
    assert s.result.summary.notes == [failed]


def test_a_value_below_the_bound_is_an_error(problem: Problem, tmp_path: Path) -> None:
    def liar(task: Task, rng: np.random.Generator) -> Placement:
        task.evaluate.prove(1.0)
        return task.problem.placement([0] * task.problem.g)

    with pytest.raises(
        BoundError,
        match=r"below its proven bound of 1 s\n  this is a bug in backend .* or in the bound from policy 'liar'",
    ) as e:
        place(problem.graph, cluster=problem.cluster, policy=liar, run_dir=tmp_path / "r")
    written = load_summary(tmp_path / "r")
    assert written.status == "failed", "no sweep skips it, and no table ranks it"
    assert written.value_s is not None, "what was found is written all the same"
    assert e.value.result.placement is not None
    assert isinstance(e.value, RunError)


def test_measurements_that_all_failed_are_said_to_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the files of the run, in the table of runs, and where its placement is asked for."""
    from placekit_report.compare_rows import rows
    from placekit_report.compare_text import show
    from placekit_runtimes import apply

    with pytest.raises(NothingFits, match=r"has a value after \d+ evaluation") as e:
        place(
            chain_graph(6), cluster=gpus(), policy="random", backend=FakeBackend(failing=1.0), budget=20,
            run_dir=tmp_path / "run",
        )  # fmt: skip
    found = load_summary(tmp_path / "run")
    assert found == e.value.result.summary
    assert found.error == found.programs[0].error == "the fake failed"
    show(rows([found], installed()))
    assert "failed" in capsys.readouterr().out
    with pytest.raises(RunError, match=r"could not measure a placement of .*: the fake failed"):
        apply.main([str(tmp_path / "run")], installed())
