"""Runs on a real Ray: the results of `parallel=ray` and of trainer `asynchronous`."""

from __future__ import annotations

import contextlib
import csv
import json
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

from placekit_core import BackendError, Cluster, GraphBuilder, Placements, Problem, Result, place


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
    """What trainer `asynchronous` says about a run."""
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


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("harmful", "local")
def test_parallel_equals_local_for_a_family_of_programs(tmp_path: Path) -> None:
    """Each program has its own workers; all of them fit on Ray together."""
    graphs = [fakes.chain(n).graph for n in (4, 6)]
    found = []
    for parallel in (None, {"name": "ray", "workers": 2}):
        run_dir = tmp_path / str(parallel is None)
        result = place(
            graphs, cluster=fakes.gpus(), policy="fake_learnable", backend="harmful", seed=2, baselines=[], budget=40,
            trainer={"name": "reinforce", "samples": 5}, parallel=parallel, run_dir=run_dir,
        )  # fmt: skip
        found.append([(p.value_s, p.evaluations, p.peak_bytes) for p in result.summary.programs])
    assert found[0] == found[1]
    result = place(
        graphs, cluster=fakes.gpus(), policy="fake_learnable", backend="harmful", seed=2, baselines=[], budget=40,
        trainer=asynchronous(), run_dir=tmp_path / "asynchronous",
    )  # fmt: skip
    assert sum(p.evaluations for p in result.summary.programs) == 40
    assert all(p.evaluations and p.fits for p in result.summary.programs)


@pytest.mark.slow
@pytest.mark.usefixtures("local")
def test_parallel_equals_local_on_the_simulator(tmp_path: Path) -> None:
    found = []
    for parallel in (None, {"name": "ray", "workers": 2}):
        run_dir = tmp_path / str(parallel is None)
        result = place(
            "ffnn",
            cluster="p100x4",
            policy="post",
            seed=1,
            budget=120,
            baselines=[],
            parallel=parallel,
            run_dir=run_dir,
        )
        found.append(outcome(result, run_dir))
    assert found[0] == found[1]
    config = json.loads((tmp_path / "False" / "config.json").read_text())
    assert config["backend"]["name"] == "simulator"
    assert (config["parallel"]["name"], config["parallel"]["workers"]) == ("ray", 2)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.usefixtures("harmful", "local")
def test_parallel_equals_local_when_workers_are_killed(tmp_path: Path, processes: Callable[[str], list[int]]) -> None:
    trainer = {"name": "reinforce", "samples": 20}
    _, local = placed(tmp_path / "local", budget=400, trainer=trainer)
    with killing(processes, ["Worker"], 3, 1.0) as killed:
        _, there = placed(
            tmp_path / "there", budget=400, trainer=trainer, parallel={"name": "ray", "workers": 2, "least_s": 0.03}
        )
    assert len(killed) == 3
    assert there == local


PLACEMENTS = Placements.of([[0] * PROBLEM.g, [0] * (PROBLEM.g - 1) + [1], [2] * PROBLEM.g])
"""The second one is harmful."""


def session(**options: Any) -> Any:
    more = {key: options.pop(key) for key in ("timeout_s",) if key in options}
    return RayBackend(inner={"name": "harmful", **options}, workers=2, **more).open(PROBLEM)


@pytest.fixture
def expected() -> Any:
    """The measurements of `PLACEMENTS` on a backend that does no harm."""
    return fakes.FakeBackend().open(PROBLEM).evaluate(PLACEMENTS)


@pytest.mark.slow
@pytest.mark.usefixtures("harmful", "local")
def test_a_hanging_evaluation_fails(expected: Any) -> None:
    with contextlib.closing(session(does="hang", timeout_s=1.0)) as opened:
        m = opened.evaluate(PLACEMENTS)
        assert m.error == (None, "no answer within 1 s", None)
        assert m.fits.tolist() == [True, False, True]
        assert m.value_s[[0, 2]].tolist() == expected.value_s[[0, 2]].tolist()
        again = opened.evaluate(PLACEMENTS[:1])
        assert again.value_s.tolist() == expected.value_s[:1].tolist()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("harmful", "local")
def test_an_evaluation_that_ends_its_process_fails(expected: Any) -> None:
    with contextlib.closing(session(does="die")) as opened:
        m = opened.evaluate(PLACEMENTS)
        assert m.error == (None, "3 processes that evaluated it died", None)
        assert m.value_s[[0, 2]].tolist() == expected.value_s[[0, 2]].tolist()


@pytest.mark.slow
@pytest.mark.usefixtures("harmful", "local")
def test_an_evaluation_whose_process_died_once_is_made_again(tmp_path: Path, expected: Any) -> None:
    with contextlib.closing(session(does="die", once=str(tmp_path / "done"))) as opened:
        m = opened.evaluate(PLACEMENTS)
        assert m.value_s.tolist() == expected.value_s.tolist()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("harmful", "local")
def test_what_a_plugin_raises_in_a_worker_is_reported_as_the_plugins(tmp_path: Path) -> None:
    with contextlib.closing(session(does="raise")) as opened:
        with pytest.raises(BackendError, match=r"FloatingPointError: what the plugin says \(in process \d+") as caught:
            opened.evaluate(PLACEMENTS)
        assert "placekit_harmful.py" in caught.value.hint
    backend = {"name": "harmful", "does": "raise", "to": "all", "driver": os.getpid()}
    with pytest.raises(BackendError, match="FloatingPointError: what the plugin says"):
        placed(tmp_path / "run", budget=30, trainer=asynchronous(), backend=backend)


@pytest.mark.slow
@pytest.mark.usefixtures("harmful", "local")
def test_a_training_goes_on_past_evaluations_that_hang(tmp_path: Path) -> None:
    backend = {"name": "harmful", "does": "hang", "once": str(tmp_path / "done")}
    result, _ = placed(tmp_path / "run", budget=40, trainer=asynchronous(timeout_s=1.0), backend=backend)
    assert result.summary.evaluations == 40


@pytest.mark.slow
@pytest.mark.usefixtures("harmful", "local")
def test_too_many_workers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"100 workers of 1 CPUs do not fit on a Ray cluster that has room for \d+"):
        RayBackend(inner={"name": "harmful"}, workers=100).open(PROBLEM)


@pytest.mark.slow
@pytest.mark.usefixtures("harmful", "local")
def test_nothing_is_left_running(processes: Callable[[str], list[int]]) -> None:
    end = time.monotonic() + 20
    while [*processes("Worker"), *processes("Controller"), *processes("ParameterServer")]:
        assert time.monotonic() < end, "actors outlive the runs"
        time.sleep(0.1)
