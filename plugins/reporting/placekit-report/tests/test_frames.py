"""Tables over a result, and what a notebook shows: the numbers are those of the placement and its schedule."""

from __future__ import annotations

import sys
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
import pytest
from placekit_report import frame, html
from placekit_report.document import this_run
from placekit_report.frames import devices, operations
from placekit_testing.fakes import FakeBackend, chain_graph, diamond, gpus

from placekit_core import PlacekitError, Placement, Problem, Task, place
from placekit_core.contracts.result import Baseline

pytest.importorskip("placekit_grouping", reason="a run groups by the grouper `none`")


@pytest.fixture
def problem() -> Problem:
    return diamond()


def searching(task: Task, rng: np.random.Generator) -> Placement:
    while task.evaluate.remaining > 1:
        task.evaluate(spread(task, rng).batch())
    return spread(task, rng)


def spread(task: Task, rng: np.random.Generator) -> Placement:
    return task.problem.placement([rng.choice(np.flatnonzero(row)) for row in task.problem.allowed])


def test_frames(problem: Problem) -> None:
    result = place(problem.graph, cluster=problem.cluster, policy=searching, backend=FakeBackend(), budget=50)
    of = frame(result)
    assert of["operation"].tolist() == list(problem.graph.op_name)
    assert result.placement is not None
    names = np.asarray(problem.cluster.device_names)
    assert of["device"].tolist() == names[problem.expand(result.placement.device)].tolist()
    assert of["end_s"].max() == pytest.approx(result.value_s)
    by_device = frame(result, "devices")
    kernels = of[of["kernel"]]
    assert by_device["kernels"].tolist() == [int((kernels["device"] == d).sum()) for d in names]
    busy = (kernels["end_s"] - kernels["start_s"]).groupby(kernels["device"]).sum()
    assert by_device.set_index("device")["compute_s"][busy.index].tolist() == pytest.approx(busy.tolist())
    assert frame(result, "history")["evaluations"].iloc[-1] == 50
    assert frame(result, "programs")["value_s"].tolist() == [result.value_s]
    assert not {"baselines", "layers"} & {*frame(result, "programs")}, "cells are numbers and words"
    assert set(frame(result, "transfers")) == {"operation", "source", "destination", "bytes", "start_s", "end_s"}
    with pytest.raises(PlacekitError, match=r"no table named 'operation'\n  did you mean 'operations'"):
        frame(result, "operation")


def test_operations_count_as_often_as_they_ran(problem: Problem) -> None:
    result = place(problem.graph, cluster=problem.cluster, policy=spread, backend=FakeBackend())
    [once] = result.programs
    assert once.schedule is not None
    twice = replace(once, schedule=replace(once.schedule, op_runs=np.full(problem.graph.n, 2)))
    assert "runs" not in operations(once)
    assert operations(twice)["runs"].tolist() == [2] * problem.graph.n
    assert devices(twice)["compute_s"].tolist() == pytest.approx([2 * s for s in devices(once)["compute_s"]])


def test_frames_of_a_family_name_the_program() -> None:
    result = place([chain_graph(4, 0), chain_graph(5, 1)], cluster=gpus(), policy=spread, backend=FakeBackend())
    assert frame(result)["program"].value_counts().to_dict() == {"chain4": 5, "chain5": 6}
    assert frame(result, "programs")["program"].tolist() == ["chain4", "chain5"]
    with pytest.raises(PlacekitError, match="2 programs"):
        _ = result.placement


def test_without_pandas(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    result = place(problem.graph, cluster=problem.cluster, policy=spread, backend=FakeBackend())
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(PlacekitError, match=r"needs pandas\n  pip install 'placekit-report\[notebook\]'"):
        frame(result)


def test_notebook_display(problem: Problem) -> None:
    result = place(problem.graph, cluster=problem.cluster, policy=spread, backend=FakeBackend())
    page = html(result)
    assert "proven bound" in page
    assert page.count("<svg ") == 1
    assert all(f">{escape(name)}\n" in page for name in problem.graph.op_name if not name.startswith(("w", "x")))
    assert all(f">{name}</text>" in page for name in problem.cluster.device_names)


def test_notebook_display_has_the_baselines(problem: Problem) -> None:
    result = place(problem.graph, cluster=problem.cluster, policy=spread, backend=FakeBackend())
    [p] = result.programs
    assert p.summary.value_s is not None
    beside = [
        Baseline(policy="one <gpu>", value_s=1.5 * p.summary.value_s, fits=True, device="gpu:0"),
        Baseline(policy="faster", value_s=0.8 * p.summary.value_s, fits=True),
        Baseline(policy="large", value_s=None, fits=False, note="as large as it is"),
    ]
    p = replace(p, summary=p.summary.model_copy(update={"baselines": beside}))
    page = html(replace(result, programs=(p,)))
    assert "one &lt;gpu&gt; on gpu:0" in page
    assert "50.0% faster than it" in page
    assert "25.0% slower than it" in page
    assert "does not fit" in page
    assert "as large as it is" in page
    noisy = Baseline(policy="noisy", value_s=1.5 * p.summary.value_s, spread_s=p.summary.value_s, fits=True)
    assert this_run(p.summary, noisy) == "within the noise of it"
    beside = noisy.model_copy(update={"spread_s": None, "own_remeasured_s": 1.5 * p.summary.value_s})
    assert this_run(p.summary, beside) == "as fast as it", "of two that were measured one after the other"
    joules = p.summary.model_copy(update={"unit": "J"})
    assert this_run(joules, beside.model_copy(update={"own_remeasured_s": None})) == "33.3% less than it"


def test_a_notebook_shows_a_result(problem: Problem, capsys: pytest.CaptureFixture[str]) -> None:
    result = place(problem.graph, cluster=problem.cluster, policy="heft", backend=FakeBackend())
    assert result._repr_html_() == html(result)
    result.show()
    assert "heft, seed 0" in capsys.readouterr().out


def test_the_page_of_a_result(problem: Problem, tmp_path: Path) -> None:
    """The same as the run writes."""
    result = place(problem.graph, cluster=problem.cluster, policy="heft", run_dir=tmp_path / "run", log=["report"])
    written = result.report(tmp_path / "again.html")
    assert written.read_bytes() == (tmp_path / "run" / "report.html").read_bytes()
