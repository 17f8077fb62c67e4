"""`placekit compare --profile`: where the time of placements goes, the runs side by side."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from placekit_report.figure import draw
from placekit_report.profile import FILE, Profile, load_profile
from placekit_testing import fakes
from placekit_testing.small import chain, machine

from placekit_core import Labels, Problem, place

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def typed() -> Problem:
    """w, x, then a (convolution, forward) -> b, c (convolution and product, backward) -> d (convolution, update); 2 devices."""
    types = Labels.of(["parameter", "input", "conv", "conv", "mm", "conv"])
    return Problem.of(
        fakes.diamond_graph().replace(op_type=types, phase=np.array([0, 0, 0, 1, 1, 2], np.uint8)), machine()
    )


@pytest.fixture(scope="module")
def made(typed: Problem, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on one device, and one on both."""
    folder = tmp_path_factory.mktemp("made")
    for name, devices in (("one", 1), ("both", 2)):
        place(typed.graph, cluster=machine(devices), policy="etf", run_dir=folder / name)
    return folder


@pytest.fixture
def two(made: Path, tmp_path: Path) -> Path:
    """The two runs, in the folder of the test."""
    shutil.copytree(made, tmp_path / "runs")
    return tmp_path / "runs"


class TestCompare:
    def test_runs_side_by_side(self, placekit: Run, two: Path) -> None:
        outcome = placekit("compare", "--profile", "runs/one", "runs/both")
        assert outcome.code == 0, outcome.err
        lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
        assert lines[0] == "device diamond etf cluster=test1 etf cluster=test2"
        assert lines[1:6] == [
            "machine test1 test2",
            f"makespan 20 ms {1e3 * load_profile(two / 'both').makespan_s:.4g} ms",
            "all forward 2 ms 2 ms",
            "backward 16 ms 16 ms",
            "update 2 ms 2 ms",
        ]
        assert any(line.startswith("idle 0 us (0.0%) ") for line in lines)
        types = lines.index("operation type device etf cluster=test1 etf cluster=test2")
        assert lines[types + 1].startswith("conv gpu:0 12 ms ")
        [second] = [line for line in lines[:types] if line.startswith("gpu:1 forward")]
        assert second.startswith("gpu:1 forward - "), "the first run has no such device"
        assert lines[-1].split()[:3] == ["all", "0", "B"]

    def test_folders_of_runs_and_json(self, placekit: Run, two: Path) -> None:
        outcome = placekit("compare", "--profile", "runs", "--json")
        found = json.loads(outcome.out)
        assert [x.pop("run") for x in found] == ["runs/both", "runs/one"]
        assert [Profile.model_validate(x) for x in found] == [load_profile(two / name) for name in ("both", "one")]

    def test_programs_of_a_family_are_set_beside_each_other(self, placekit: Run, tmp_path: Path) -> None:
        for policy in ("etf", "heft"):
            place([chain(3), chain(4)], cluster=machine(), policy=policy, run_dir=tmp_path / policy)
        outcome = placekit("compare", "--profile", "etf", "heft")
        heads = [line.split() for line in outcome.out.splitlines() if line.startswith("device")]
        assert heads == [["device", "chain3", "etf", "heft"], ["device", "chain4", "etf", "heft"]]
        outcome = placekit("compare", "--profile", "etf", "--png", "x.png")
        assert outcome.code == 1
        assert "these runs have 2: chain3, chain4" in outcome.err

    @pytest.mark.parametrize("args", [[], ["--png"], ["runs", "--png"], ["runs", "--png", "--json"], ["runs", "--x"]])
    def test_usage(self, placekit: Run, two: Path, args: list[str]) -> None:
        outcome = placekit("compare", "--profile", *args)
        assert outcome.code == 1
        assert (
            "usage: placekit compare [-h] [--json | --tex | --csv | --md | --html] [--out FILE] [--profile]"
            in outcome.err
        )

    @pytest.mark.parametrize("args", [["--profile", "--png=x", "--json"], ["--png", "x"]])
    def test_a_figure_is_of_the_tables_of_profiles(self, placekit: Run, two: Path, args: list[str]) -> None:
        outcome = placekit("compare", "runs", *args)
        assert outcome.code == 1
        assert "--png draws what --profile prints\n  give --profile, and no --json" in outcome.err
        assert not Path("x").exists()

    def test_a_figure_of_the_runs_side_by_side(self, placekit: Run, two: Path) -> None:
        outcome = placekit("compare", "--profile", "runs", "--png", "x.png")
        assert outcome.code == 0, outcome.err
        assert outcome.out.splitlines()[-1] == "drawn in x.png"
        runs = {f"etf cluster=test{n}": load_profile(two / name) for n, name in ((2, "both"), (1, "one"))}
        draw(Path("expected.png"), runs)
        assert Path("x.png").read_bytes() == Path("expected.png").read_bytes()

    def test_a_figure_that_cannot_be_written(self, placekit: Run, two: Path) -> None:
        outcome = placekit("compare", "--profile", "runs", "--png", "nowhere/x.png")
        assert outcome.code == 1
        assert "cannot write nowhere/x.png: No such file or directory" in outcome.err

    def test_runs_without_a_profile(self, placekit: Run, two: Path) -> None:
        (two / "one" / FILE).unlink()
        outcome = placekit("compare", "--profile", "runs")
        assert outcome.code == 1
        assert "left out: no profile.json in " in outcome.err
        assert "test2" in outcome.out, "the other run is shown"
        outcome = placekit("compare", "--profile", "runs/one")
        assert outcome.code == 1
        assert "run it again" in outcome.err
        (two / "both" / "result.json").unlink()
        outcome = placekit("compare", "--profile", "runs/both")
        assert "the run in runs/both has not finished\n  continue it: placekit run resume=runs/both" in outcome.err
        assert "no folder nowhere" in placekit("compare", "--profile", "nowhere").err

    def test_runs_that_found_nothing_are_no_error(self, placekit: Run, two: Path) -> None:
        result = json.loads((two / "one" / "result.json").read_text())
        (two / "one" / "result.json").write_text(
            json.dumps(result | {"programs": [result["programs"][0] | {"fits": False}]})
        )
        (two / "one" / FILE).unlink()
        outcome = placekit("compare", "--profile", "runs")
        assert outcome.code == 0
        assert "left out: no profile.json in " in outcome.err
        (two / "one" / FILE).write_text("{")
        (two / "one" / "result.json").write_text(json.dumps(result))
        outcome = placekit("compare", "--profile", "runs")
        assert outcome.code == 1
        assert "profile.json is damaged" in outcome.err

    def test_columns_are_named_by_what_differs(self, placekit: Run, typed: Problem, tmp_path: Path) -> None:
        for run_dir, policy, seed in (
            ("a/1", "random", 1),
            ("b/1", "random", 2),
            ("b/2", "random", 2),
            ("c", "etf", 1),
        ):
            place(typed.graph, cluster=typed.cluster, policy=policy, seed=seed, run_dir=tmp_path / run_dir)
        heads = placekit("compare", "--profile", "a", "b", "c").out.splitlines()[0]
        assert [x.strip() for x in heads.split("  ") if x] == [
            "device", "diamond", "random seed=1", "random seed=2 1", "random seed=2 2", "etf",
        ]  # fmt: skip


@pytest.mark.slow
def test_runs_that_look_alike_are_named_by_where_they_are(placekit: Run, tmp_path: Path) -> None:
    folders = "out/01/02", "out/02/01", "out/01"
    for folder in folders:
        assert placekit("run", "workload=mlp", "policy=round_robin", f"run_dir={folder}").code == 0
    outcome = placekit("compare", "--profile", *folders)
    assert outcome.code == 0
    head = outcome.out.splitlines()[0]
    assert [name in head for name in ("01/02", "02/01", " 01")] == [True] * 3
    assert head.count("round_robin") == 3
