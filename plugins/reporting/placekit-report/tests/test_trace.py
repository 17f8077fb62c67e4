"""Traces of schedules."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from placekit_report.trace import write_trace
from placekit_testing.fakes import diamond_graph, gpus

from placekit_core import Problem, Schedule, Spans


def schedule(problem: Problem) -> Schedule:
    """w, x, a, b, c on device 0, d on device 1; both its inputs are sent."""
    return Schedule(
        op_device=np.array([0, 0, 0, 0, 0, 1], np.int16),
        op_stream=np.zeros(6, np.int32),
        op_start_s=np.array([0, 0, 0, 0.002, 0.010, 0.020]),
        op_end_s=np.array([0, 0, 0.002, 0.010, 0.018, 0.022]),
        transfer_tensor=np.array([3, 4], np.int32),
        transfer_src=np.array([0, 0], np.int16),
        transfer_dst=np.array([1, 1], np.int16),
        transfer_start_s=np.array([0.010, 0.0105]),
        transfer_end_s=np.array([0.011, 0.0115]),
        value_s=0.022,
    )


def test_trace_has_no_overlap_within_a_track(tmp_path: Path) -> None:
    problem = Problem.of(diamond_graph(), gpus())
    write_trace(tmp_path / "t.json", schedule(problem), problem)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert set(names.values()) == {"gpu:0", "gpu:1", "gpu:0 -> gpu:1", "gpu:0 -> gpu:1 (1)"}
    spans: dict[int, list[tuple[float, float]]] = {}
    for e in events:
        if e["ph"] == "X":
            spans.setdefault(e["tid"], []).append((e["ts"], e["ts"] + e["dur"]))
    assert sum(len(s) for s in spans.values()) == 6, "four kernels and two transfers; sources take no time"
    for track in spans.values():
        track.sort()
        assert all(a[1] <= b[0] + 1e-6 for a, b in itertools.pairwise(track))


def two_micro_batches(problem: Problem) -> Schedule:
    """The first micro-batch of `schedule` and another one, as tasks and messages of two stages."""
    once = schedule(problem)
    spans = Spans(
        name=("forward 0", "forward 1", "forward 0", "forward 1", "activations 0", "activations 1"),
        device=np.array([0, 0, 1, 1, 0, 0], np.int16),
        to=np.array([-1, -1, -1, -1, 1, 1], np.int16),
        bytes_=np.array([0, 0, 0, 0, 500.0, 500.0]),
        start_s=np.array([0, 0.018, 0.020, 0.038, 0.018, 0.036]),
        end_s=np.array([0.018, 0.036, 0.022, 0.040, 0.020, 0.038]),
    )
    runs = np.where(problem.graph.kernel, 2, 1)
    return replace(once, spans=spans, op_runs=runs, value_s=0.04)


def test_a_trace_of_micro_batches_has_all_of_them(tmp_path: Path) -> None:
    problem = Problem.of(diamond_graph(), gpus())
    write_trace(tmp_path / "t.json", two_micro_batches(problem), problem)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(names.values()) == ["gpu:0", "gpu:1", "gpu:0 -> gpu:1"]
    shown = [(names[e["tid"]], e["name"], e["cat"], e["ts"], e["dur"], e["args"]) for e in events if e["ph"] == "X"]
    own = [(name, track, round(start), round(length)) for track, name, _, start, length, _ in shown]
    assert own == [
        ("forward 0", "gpu:0", 0, 18_000), ("forward 1", "gpu:0", 18_000, 18_000),
        ("forward 0", "gpu:1", 20_000, 2_000), ("forward 1", "gpu:1", 38_000, 2_000),
        ("activations 0", "gpu:0 -> gpu:1", 18_000, 2_000), ("activations 1", "gpu:0 -> gpu:1", 36_000, 2_000),
    ]  # fmt: skip
    assert {category for _, _, category, *_ in shown} == {"forward", "transfer"}
    assert [arguments for *_, arguments in shown][4:] == [{"bytes": 500}, {"bytes": 500}]
