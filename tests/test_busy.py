"""The note of a run that measures on a computer that others use, too."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from placekit_testing.fakes import FakeBackend

from placekit_core import Problem, place
from placekit_core.run import busy


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    monkeypatch.setattr(FakeBackend, "simulated", False)
    return FakeBackend()


def notes(problem: Problem, backend: FakeBackend) -> list[str]:
    result = place(problem.graph, cluster=problem.cluster, policy="heft", backend=backend, budget=3)
    return [note for note in result.summary.notes if note.startswith("measured while other programs used ")]


def test_a_busy_computer_is_said_once(
    problem: Problem, measuring: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busy, "busy_cores", lambda: 3.0)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    [note] = notes(problem, measuring)
    assert " 3.0 of 4 cores: " in note
    monkeypatch.setattr(busy, "busy_cores", lambda: 1.9)
    assert notes(problem, measuring) == []
    monkeypatch.setattr(FakeBackend, "others", lambda self: "12.00 GiB of cuda:0")
    assert notes(problem, measuring) == [
        "measured while other programs used 12.00 GiB of cuda:0: the values may be too high"
    ]


@pytest.mark.parametrize(("own_s", "cores"), [(0.0, 3.0), (1.0, 2.0), (9.0, 0.0)])
def test_cores_of_others(own_s: float, cores: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within one second, the cores were busy for three; how long this process has lived does not matter."""
    stat, ticks = tmp_path / "stat", os.sysconf("SC_CLK_TCK")
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(os, "times", lambda: os.times_result((600 + own_s * (now[0] - 100), 60.0, 0.0, 0.0, 0.0)))

    def pass_a_second(_: float) -> None:
        now[0] += 1
        stat.write_text(f"cpu  {5000 + 2 * ticks} 0 {70 + ticks} 999999 4444 0 0 0 0 0\ncpu0 1 2 3\n")

    stat.write_text("cpu  5000 0 70 888888 333 0 0 0 0 0\ncpu0 1 2 3\n")
    monkeypatch.setattr(time, "sleep", pass_a_second)
    assert busy.busy_cores(stat) == cores
