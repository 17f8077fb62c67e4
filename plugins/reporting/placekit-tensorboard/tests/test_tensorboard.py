"""The event files hold what history.csv holds; discovery stays light."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from placekit_tensorboard import EventLog
from placekit_tensorboard.events import FOLDER
from placekit_testing.fakes import FakeBackend, chain
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from placekit_core import Result, search
from placekit_core.run.registry import discover

pytest.importorskip("placekit_grouping", reason="a search groups by the grouper `none`")


def logged(run_dir: Path, *log: str) -> Result:
    """A random search in batches of eight."""
    p = chain()
    with search(p.graph, cluster=p.cluster, backend=FakeBackend(), budget=80, run_dir=run_dir, log=log) as s:
        while s.remaining:
            s.evaluate(s.rng.integers(0, s.problem.cluster.size, (8, s.problem.g)))
    assert s.result is not None
    return s.result


def events(run_dir: Path) -> EventAccumulator:
    return EventAccumulator(str(run_dir / FOLDER)).Reload()


def test_scalars_equal_the_history(tmp_path: Path) -> None:
    logged(tmp_path, "csv", "tensorboard")
    found = events(tmp_path)
    rows = list(csv.DictReader((tmp_path / "history.csv").read_text().splitlines()))
    assert len(rows) == 10
    for column in ("best_s", "value_s", "mean_s", "seconds"):
        scalars = found.Scalars(column)
        assert [x.step for x in scalars] == [int(r["evaluations"]) for r in rows]
        assert [x.value for x in scalars] == pytest.approx([float(r[column]) for r in rows], rel=1e-6, abs=1e-6)


def test_totals_and_configuration(tmp_path: Path) -> None:
    result = logged(tmp_path, "tensorboard")
    found = events(tmp_path)
    [value] = found.Scalars("result/value_s")
    assert value.step == 80
    assert value.value == pytest.approx(result.value_s, rel=1e-6)
    peaks = {t for t in found.Tags()["scalars"] if t.startswith("peak_bytes/")}
    assert peaks == {f"peak_bytes/{d}" for d in result.problem.cluster.device_names}
    [text] = found.Tensors("config")
    assert json.loads(text.tensor_proto.string_val[0])["seed"] == 0
    assert not (tmp_path / "history.csv").exists(), "the csv logger was not asked for"


def test_a_second_start_makes_tensorboard_forget_the_steps_after_it(tmp_path: Path) -> None:
    """As a run that was killed after step 80 and goes on from a checkpoint at step 40."""
    row = {"best_s": 1.0, "value_s": 1.0, "mean_s": 1.0, "seconds": 0.0}
    for start, value in ((0, 1.0), (40, 2.0)):
        log = EventLog()  # of a new process
        for step in range(start + 8, 81, 8):
            log.placekit_evaluated(tmp_path, {**row, "best_s": value, "evaluations": step})
        log.placekit_checkpoint(tmp_path)
    steps = {x.step: x.value for x in events(tmp_path).Scalars("best_s")}
    assert steps == {s: (1.0 if s <= 40 else 2.0) for s in range(8, 81, 8)}
    assert len(events(tmp_path).Scalars("best_s")) == 10


def test_registries_share_no_open_files() -> None:
    [point] = entry_points(group="placekit", name="tensorboard")
    logs = [discover([point]).manager.get_plugin("tensorboard") for _ in range(2)]
    assert all(isinstance(log, EventLog) for log in logs)
    assert logs[0] is not logs[1]


def test_logging_changes_no_result(tmp_path: Path) -> None:
    a, b = logged(tmp_path / "a", "csv"), logged(tmp_path / "b", "csv", "tensorboard")
    assert a.placement is not None
    assert b.placement is not None
    assert a.placement.same_as(b.placement)


def test_importing_the_plugin_imports_no_tensorboard() -> None:
    code = "import sys, placekit_tensorboard; sys.exit(any(m.startswith('tensorboard') or m == 'torch' for m in sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True)
