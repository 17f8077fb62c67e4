"""Profiles: where the time of a placement goes, against figures worked out by hand, and runs side by side."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placekit_core import place
from placekit_core.errors import RunError
from placekit_core.graph import Graph, Labels
from placekit_core.measurement import Schedule
from placekit_core.problem import Problem
from placekit_core.profile import FILE, OTHER, TYPES, Profile, load_profile, profile, top_types, write_profile
from placekit_core.registry import discover, installed
from placekit_core.testing import fakes
from tests.conftest import chain, machine

Run = Callable[..., Any]


def schedule(problem: Problem, device: list[int] | np.ndarray) -> Schedule:
    """As the simulator runs it."""
    session = installed().get("backend", "simulator").load()().open(problem)
    found: Schedule = session.schedule(problem.placement(device))
    session.close()
    return found


@pytest.fixture
def typed(diamond: Graph) -> Problem:
    """w, x, then a (convolution, forward) -> b, c (convolution and product, backward) -> d (convolution, update); 2 devices."""
    types = Labels.of(["parameter", "input", "conv", "conv", "mm", "conv"])
    return Problem.of(diamond.replace(op_type=types, phase=np.array([0, 0, 0, 1, 1, 2], np.uint8)), machine())


def test_the_diamond_by_hand(typed: Problem) -> None:
    """All but c on the first device. ms: a 0-2, b 2-10; a is sent 2-3, c 3-11 there, sent back 11-12, d 12-14."""
    p = profile(typed, schedule(typed, [0, 0, 0, 0, 1, 0]))
    assert (p.program, p.cluster) == ("diamond", "test2")
    assert p.makespan_s == pytest.approx(0.014)
    first, second = p.devices
    assert first.model_dump() == pytest.approx(
        {"device": "gpu:0", "forward_s": 0.002, "backward_s": 0.008, "update_s": 0.002, "busy_s": 0.012, "idle_s": 0.002,
         "copy_s": 0.002}
    )  # fmt: skip
    assert second.model_dump() == pytest.approx(
        {"device": "gpu:1", "forward_s": 0, "backward_s": 0.008, "update_s": 0, "busy_s": 0.008, "idle_s": 0.006,
         "copy_s": 0.002}
    )  # fmt: skip
    assert [t.type for t in p.types] == ["conv", "mm"], "sources take no time and are not listed"
    by_type = p.by_type(["mm"])
    assert by_type[0] == pytest.approx(np.array([[0, 0], [0, 0.008], [0, 0]]))
    assert by_type[1] == pytest.approx(np.array([[0.002, 0], [0.008, 0], [0.002, 0]]))
    there, back = (t.model_dump() for t in p.transfers)
    expected = {"tensors": 1, "bytes": 1_000_000, "busy_s": 0.001}
    assert there == pytest.approx({"source": "gpu:0", "destination": "gpu:1", **expected})
    assert back == pytest.approx({"source": "gpu:1", "destination": "gpu:0", **expected})


@pytest.mark.parametrize("make", [fakes.diamond, fakes.chain, fakes.mixed, fakes.grouped, fakes.unequal])
@pytest.mark.parametrize("seed", range(3))
def test_parts_add_up(make: Callable[[], Problem], seed: int) -> None:
    problem, rng = make(), np.random.default_rng(seed)
    device = [rng.choice(np.flatnonzero(row)) for row in problem.allowed]
    s = schedule(problem, device)
    p = profile(problem, s)
    seconds = problem.op_s[np.arange(problem.graph.n), s.op_device]
    total = np.bincount(s.op_device, seconds, minlength=problem.cluster.size)
    assert [d.compute_s for d in p.devices] == pytest.approx(total)
    assert [d.busy_s for d in p.devices] == pytest.approx(total), "one stream: nothing overlaps"
    assert [d.busy_s + d.idle_s for d in p.devices] == pytest.approx([s.value_s] * len(total))
    assert p.by_type([]).sum(axis=(0, 1)) == pytest.approx(total)
    assert p.by_type([t.type for t in p.types])[-1].sum() == 0
    assert sum(t.bytes for t in p.transfers) == problem.graph.tensor_bytes[s.transfer_tensor].sum()
    assert sum(t.tensors for t in p.transfers) == len(s.transfer_tensor)


def test_what_overlaps_is_busy_once() -> None:
    """Two streams, two transfers at once, and one that begins within another."""
    problem = fakes.independent(4)
    zeros, dst = np.zeros(4, np.int16), np.ones(4, np.int16)
    start, end = np.array([0.0, 1.0, 1.5, 6.0]), np.array([4.0, 2.0, 3.0, 7.0])
    s = Schedule(zeros, np.arange(4, dtype=np.int32), start, end, np.arange(4, dtype=np.int32), zeros, dst, start + 1,
                 end + 1, 8.0)  # fmt: skip
    p = profile(problem, s)
    assert (p.makespan_s, p.devices[0].compute_s) == (8, 7.5)
    assert (p.devices[0].busy_s, p.devices[0].idle_s, p.devices[1].busy_s, p.devices[1].idle_s) == (5, 3, 0, 8)
    assert [d.copy_s for d in p.devices] == [5, 5]
    [sent] = p.transfers
    assert (sent.tensors, sent.bytes, sent.busy_s) == (4, 4000, 5)


def test_types_beyond_the_longest_are_other() -> None:
    problem = fakes.chain(TYPES + 8)
    n = problem.graph.n
    types = Labels.of([OTHER if i == n - 1 else f"type{i}" for i in range(n)])
    problem = Problem.of(problem.graph.replace(op_type=types), problem.cluster)
    p = profile(problem, schedule(problem, [0] * n))
    assert len(p.types) == TYPES + 1
    assert p.types[-1].type == OTHER
    lengths = [sum(t.forward_s) for t in p.types[:-1]]
    assert lengths == sorted(lengths, reverse=True)
    assert p.types[-1].forward_s[0] == pytest.approx(p.devices[0].compute_s - sum(lengths))
    assert top_types([p, p], 3) == [t.type for t in p.types[:3]]


def test_a_program_of_sources_takes_no_time() -> None:
    problem = fakes.sources_only()
    p = profile(problem, schedule(problem, [0, 0, 1]))
    assert (p.makespan_s, p.types, p.transfers) == (0, (), ())


def test_files_read_back(typed: Problem, tmp_path: Path) -> None:
    p = profile(typed, schedule(typed, [0, 0, 0, 0, 1, 0]), "mine")
    write_profile(tmp_path / FILE, p)
    assert load_profile(tmp_path) == p
    data = json.loads((tmp_path / FILE).read_text())
    assert (data["format"], data["version"], data["program"]) == ("placekit-profile", 1, "mine")
    (tmp_path / FILE).write_text(json.dumps(data | {"version": 2}))
    with pytest.raises(RunError, match="not a profile of version 1"):
        load_profile(tmp_path)
    for text in ("{", "[]", json.dumps(data | {"devices": 3})):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(RunError, match="is damaged"):
            load_profile(tmp_path)


@pytest.fixture
def two(typed: Problem, tmp_path: Path) -> Path:
    """A run on one device, and one on both."""
    for name, devices in (("one", 1), ("both", 2)):
        place(typed.graph, cluster=machine(devices), policy="etf", run_dir=tmp_path / "runs" / name)
    return tmp_path / "runs"


def test_a_run_writes_the_profile_of_its_placement(typed: Problem, tmp_path: Path) -> None:
    result = place(typed.graph, cluster=typed.cluster, policy="etf", run_dir=tmp_path / "r")
    assert result.schedule is not None
    assert load_profile(tmp_path / "r") == profile(typed, result.schedule)


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

    @pytest.mark.parametrize(
        "args", [[], ["--png"], ["runs", "--png"], ["runs", "--png", "--json"], ["runs", "--png=x", "--json"], ["--x"]]
    )
    def test_usage(self, placekit: Run, two: Path, args: list[str]) -> None:
        outcome = placekit("compare", "--profile", *args)
        assert outcome.code == 1
        assert "usage: placekit compare --profile DIR ..." in outcome.err

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
        assert "no run directory at or below nowhere" in placekit("compare", "--profile", "nowhere").err

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

    def test_a_figure_needs_a_plugin(self, placekit: Run, two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("placekit_core.cli.profiles.installed", lambda: discover([]))
        outcome = placekit("compare", "--profile", "runs", "--png", "x.png")
        assert outcome.code == 1
        assert "no plugin that is installed draws profiles\n  pip install placekit-report" in outcome.err


def test_runs_that_look_alike_are_named_by_where_they_are(placekit: Run, tmp_path: Path) -> None:
    folders = "out/01/02", "out/02/01", "out/01"
    for folder in folders:
        assert placekit("run", "workload=mlp", "policy=round_robin", f"run_dir={folder}").code == 0
    outcome = placekit("compare", "--profile", *folders)
    assert outcome.code == 0
    head = outcome.out.splitlines()[0]
    assert [name in head for name in ("01/02", "02/01", " 01")] == [True] * 3
    assert head.count("round_robin") == 3
