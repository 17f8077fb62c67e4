"""Runs on a real Ray: the results of `parallel=ray` and of trainer `asynchronous`."""

from __future__ import annotations

import contextlib
import csv
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from placekit_testing import BackendContract, fakes
from placekit_testing.contract import Make

pytest.importorskip("ray")

from placekit_ray.backend import RayBackend

from placekit_core import Cluster, GraphBuilder, Placements, Problem, Result, place


def three_speeds() -> Problem:
    """Eight operations of different lengths on three devices of different speeds: no two placements have one value."""
    b = GraphBuilder("eight")
    for i in range(8):
        b.add(f"op{i}", outputs=[1000], flops=1e9 * 1.37**i)
    speeds, full = {"fast": 1e12, "middle": 7e11, "slow": 3e11}, {"compute": 1.0, "memory": 1.0}
    kinds = {
        name: {
            "flops_per_s": {"float32": speed}, "memory_bytes": 2**30, "memory_bytes_per_s": 1e15,
            "efficiency": {"other": full},
        }
        for name, speed in speeds.items()
    }  # fmt: skip
    links = [{"a": "*", "b": "hub", "bytes_per_s": 1e9}]
    devices = [{"kind": name} for name in kinds]
    return Problem.of(b.build(), Cluster.parse({"name": "three", "kinds": kinds, "devices": devices, "links": links}))


PROBLEM = three_speeds()


def outcome(result: Result, run_dir: Path) -> dict[str, Any]:
    """What a run found, and its history without the column of time."""
    with (run_dir / "history.csv").open() as f:
        history = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(f)]
    assert history
    peaks = result.summary.peak_bytes
    return {"value_s": result.value_s, "device": result.placement.device.tolist(), "peaks": peaks, "history": history}


def asynchronous(**options: Any) -> dict[str, Any]:
    """A small training in some processes."""
    inner = {"name": "reinforce", "samples": 6}
    return {"name": "asynchronous", "inner": inner, "controllers": 2, "workers": 1, **options}


def placed(run_dir: Path, **options: Any) -> tuple[Result, dict[str, Any]]:
    """A run of policy `fake_learnable` on backend `harmful`."""
    settings = {"policy": "fake_learnable", "backend": "harmful", "seed": 3, "baselines": [], **options}
    result = place(PROBLEM.graph, cluster=PROBLEM.cluster, run_dir=run_dir, **settings)
    return result, outcome(result, run_dir)


def note_of(result: Result) -> str:
    """The note of trainer `asynchronous` about a run."""
    [note] = [n for n in result.summary.programs[0].notes if n.startswith("trainer asynchronous")]
    return note


@pytest.mark.slow
@pytest.mark.usefixtures("harmful", "local")
def test_one_run_of_each_kind(tmp_path: Path) -> None:
    """In one test, because it is the start of Ray that takes long."""
    trainer = {"name": "reinforce", "samples": 6}
    _, local = placed(tmp_path / "local", budget=20, trainer=trainer)
    _, there = placed(tmp_path / "there", budget=20, trainer=trainer, parallel={"name": "ray", "workers": 2})
    assert there == local

    result, found = placed(tmp_path / "asynchronous", budget=50, trainer=asynchronous())
    assert result.summary.evaluations == 50
    assert len({row["value_s"] for row in found["history"]}) > 1
    assert int(found["history"][-1]["evaluations"]) == 50
    assert re.match(
        r"trainer asynchronous: \d+ updates by 2 controllers; gradients were \d\.\d updates late", note_of(result)
    )


@pytest.mark.slow
@pytest.mark.long
class TestRayBackend(BackendContract):
    seeds = range(1)

    @pytest.fixture(autouse=True)
    def _on_one_ray(self, local: None, monkeypatch: pytest.MonkeyPatch) -> None:
        """Other processes use the same Ray."""
        import ray

        monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")

    @pytest.fixture
    def make(self) -> Make:
        return partial(RayBackend, workers=1)


@contextlib.contextmanager
def killing(
    processes: Callable[[str], list[int]], kinds: list[str], count: int, every_s: float
) -> Iterator[list[tuple[str, int]]]:
    """Kill `count` processes at random moments inside the block, as `kill -9` does; yields what was killed so far."""
    rng, done, stop = random.Random(5), list[tuple[str, int]](), threading.Event()

    def kill() -> None:
        while len(done) < count and not stop.wait(rng.uniform(0.5, 1.5) * every_s):
            kind = kinds[len(done) % len(kinds)]
            if pids := processes(kind):
                pid = rng.choice(pids)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    done.append((kind, pid))

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.usefixtures("harmful", "local")
def test_every_evaluation_is_counted_when_workers_and_controllers_are_killed(
    tmp_path: Path, processes: Callable[[str], list[int]]
) -> None:
    with killing(processes, ["Worker", "Controller"], 2, 2.0) as killed:
        result, found = placed(tmp_path / "run", budget=600, trainer=asynchronous(least_s=0.02))
    assert [kind for kind, _ in killed] == ["Worker", "Controller"]
    assert result.summary.evaluations == 600
    history = found["history"]
    assert int(history[-1]["evaluations"]) == 600
    best = min(float(row["value_s"]) for row in history)
    assert result.value_s == best, "the best placement is never lost"


PLACEMENTS = Placements.of([[0] * PROBLEM.g, [0] * (PROBLEM.g - 1) + [1], [2] * PROBLEM.g])
"""The second one hangs on backend `harmful` with `hangs`."""


@pytest.mark.slow
@pytest.mark.usefixtures("harmful", "local")
def test_a_hanging_evaluation_fails() -> None:
    expected = fakes.FakeBackend().open(PROBLEM).evaluate(PLACEMENTS)
    backend = RayBackend(inner={"name": "harmful", "hangs": True}, workers=2, timeout_s=1.0)
    with contextlib.closing(backend.open(PROBLEM)) as opened:
        m = opened.evaluate(PLACEMENTS)
        assert m.error == (None, "no answer within 1 s", None)
        assert m.fits.tolist() == [True, False, True]
        assert m.value_s[[0, 2]].tolist() == expected.value_s[[0, 2]].tolist()
        again = opened.evaluate(PLACEMENTS[:1])
        assert again.value_s.tolist() == expected.value_s[:1].tolist()


@pytest.mark.slow
@pytest.mark.usefixtures("harmful", "local")
def test_nothing_is_left_running(processes: Callable[[str], list[int]]) -> None:
    end = time.monotonic() + 20
    while [*processes("Worker"), *processes("Controller"), *processes("ParameterServer")]:
        assert time.monotonic() < end, "actors outlive the runs"
        time.sleep(0.1)
