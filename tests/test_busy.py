"""The note of a run that measures on a computer that others use, too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from placekit_testing.fakes import FakeBackend

from placekit_core import Problem, place, usable_cores
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
    monkeypatch.setattr(busy, "busy_cores", lambda: float(usable_cores()))
    [note] = notes(problem, measuring)
    assert f" {usable_cores():.1f} of {usable_cores()} cores: " in note
    monkeypatch.setattr(busy, "busy_cores", lambda: 0.4 * usable_cores())
    assert notes(problem, measuring) == []
    monkeypatch.setattr(FakeBackend, "others", lambda self: "12.00 GiB of cuda:0")
    assert notes(problem, measuring) == [
        "measured while other programs used 12.00 GiB of cuda:0: the values may be too high"
    ]


def test_a_simulation_does_not_care(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy, "busy_cores", lambda: 1e6)
    assert notes(problem, FakeBackend()) == []


@pytest.mark.parametrize(
    ("load", "used_s", "running", "cores"),
    [
        (8.0, 0.0, 6.0, 6.0),  # some of what the average remembers has ended
        (8.0, 120.0, 7.0, 6.0),  # this process was at work itself
        (1.0, 600.0, 3.0, 0.0),
        (3.0, 0.0, float("inf"), 3.0),
    ],
)
def test_cores_of_others(
    load: float, used_s: float, running: float, cores: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "times", lambda: os.times_result((used_s, 0.0, 0.0, 0.0, 0.0)))
    monkeypatch.setattr(busy, "_running", lambda: running)
    assert busy.busy_cores() == cores


def test_what_the_system_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loadavg").write_text("0.52 0.58 0.59 4/1013 12345\n")
    assert busy._running(tmp_path / "loadavg") == 3
    assert busy._running(tmp_path / "none") == float("inf")
    (tmp_path / "loadavg").write_text("0.52\n")
    assert busy._running(tmp_path / "loadavg") == float("inf")

    def fail() -> tuple[float, float, float]:
        raise OSError

    monkeypatch.setattr(os, "getloadavg", fail)
    assert busy.busy_cores() == 0.0
