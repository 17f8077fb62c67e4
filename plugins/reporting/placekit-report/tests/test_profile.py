"""Profiles: where the time of a placement goes, against figures worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from placekit_report.profile import FILE, OTHER, TYPES, load_profile, profile, top_types, write_profile
from placekit_testing import fakes
from placekit_testing.small import machine

from placekit_core import Labels, Problem, RunError, Schedule, installed, place

Run = Callable[..., Any]


def schedule(problem: Problem, device: list[int] | np.ndarray) -> Schedule:
    """As the simulator runs it."""
    session = installed().get("backend", "simulator").load()().open(problem)
    found: Schedule = session.schedule(problem.placement(device))
    session.close()
    return found


@pytest.fixture
def typed() -> Problem:
    """w, x, then a (convolution, forward) -> b, c (convolution and product, backward) -> d (convolution, update); 2 devices."""
    types = Labels.of(["parameter", "input", "conv", "conv", "mm", "conv"])
    return Problem.of(
        fakes.diamond_graph().replace(op_type=types, phase=np.array([0, 0, 0, 1, 1, 2], np.uint8)), machine()
    )


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
    with pytest.raises(RunError, match=r"is damaged: version: input should be 1 \(got 2\)"):
        load_profile(tmp_path)
    for text in ("{", "[]", json.dumps(data | {"devices": 3})):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(RunError, match="is damaged"):
            load_profile(tmp_path)


def test_a_run_writes_the_profile_of_its_placement(typed: Problem, tmp_path: Path) -> None:
    result = place(typed.graph, cluster=typed.cluster, policy="etf", run_dir=tmp_path / "r")
    assert result.schedule is not None
    assert load_profile(tmp_path / "r") == profile(typed, result.schedule)
