"""What the page says about where its numbers come from, and about runs that did not end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from placekit_report.document import Part, Run, document
from placekit_testing.fakes import gpus
from report_data import network

from placekit_core import ErrorBand, Placement, Result, Task, place

for plugin in ("placekit_grouping", "placekit_sim"):
    pytest.importorskip(plugin, reason="a run needs a grouper and a simulator")


def on_first(task: Task, rng: np.random.Generator) -> Placement:
    return task.problem.placement(np.zeros(task.problem.g, np.int64))


def placed(**options: Any) -> Result:
    return place(network(1), cluster=gpus(), policy=on_first, grouper="none", budget=5, **options)


def run_of(result: Result, part: Part, **changes: Any) -> dict[str, Any]:
    """The data of the run."""
    summary = result.summary.model_copy(update=changes)
    data: dict[str, Any] = document(Run("r", summary, [part]))["run"]
    return data


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "with costs that were not measured."),
        (1.0, "with measured costs."),
        (0.9, "with measured costs for 90.0% of the kernels, and estimates for the others."),
    ],
)
def test_where_costs_come_from(share: float, text: str) -> None:
    result = placed()
    [p] = result.programs
    own = p.summary.model_copy(update={"measured_costs": share})
    assert (
        run_of(result, Part(replace(p, summary=own)), programs=[own])["truth_text"]
        .partition(" Accuracy")[0]
        .endswith(text)
    )


@pytest.mark.parametrize(
    ("band", "text"),
    [
        (None, "not measured. Accuracy: not estimated for such a run."),
        (ErrorBand(kind="any", rows=0), "not measured. Accuracy: no published measurement is like this run."),
        (ErrorBand(kind="any", rows=9, error=0.2), "like this are within 20% of published measurements (any; 9 rows)."),
    ],
)
def test_how_wrong_a_simulated_value_is(band: ErrorBand | None, text: str) -> None:
    result = placed()
    [p] = result.programs
    own = p.summary.model_copy(update={"error_band": band})
    assert run_of(result, Part(replace(p, summary=own)), programs=[own])["truth_text"].endswith(text)


@pytest.mark.parametrize(
    ("status", "text"),
    [("interrupted", "the run was interrupted: it shows what was found"), ("failed", "the run failed")],
)
def test_runs_that_did_not_end_say_so(status: str, text: str) -> None:
    result = placed()
    [p] = result.programs
    config = {**result.summary.config, "python_objects": []}
    notes = run_of(result, Part(p), status=status, config=config)["notes"]
    assert notes[0].startswith(text)
    assert notes[0].endswith("continue it: placekit run resume=r")
    notes = run_of(result, Part(p), status=status)["notes"]
    assert "resume" not in notes[0], "a program of a script has no command"


def test_timelines_that_are_not_the_value_say_what_they_are() -> None:
    for options, text in (
        ({}, ""),
        ({"backend": "max_load"}, "; the value is the max load, which is not its length"),
        ({"backend": {"name": "simulator", "noise": 0.1, "noise_repeats": 3}}, "; the value is the mean of several"),
    ):
        result = placed(**options)
        [p] = result.programs
        notes = [n for n in run_of(result, Part(p))["notes"] if n.startswith("the timeline")]
        assert notes == [] if not text else notes[0].endswith(text)
