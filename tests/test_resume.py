"""Kill a run at random moments, resume it, and compare with one that was never interrupted."""

from __future__ import annotations

import csv
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from placekit_core.contracts.errors import BusyError
from placekit_core.run.run_directory import locked

ARGS = ["workload=chainmm_small", "policy=annealing", "budget.evaluations=120000", "checkpoint_s=0", "seed=3"]
LEARN = [
    "workload=chainmm_small",
    "policy=seq2seq",
    "policy.hidden=16",
    "budget.evaluations=900",
    "checkpoint_s=0",
    "seed=3",
]
RUNS = {
    "post": ["workload=chainmm_small", "policy=post", "budget.evaluations=15000", "checkpoint_s=0", "seed=3"],
    "reinforce": [*LEARN, "trainer=reinforce"],
    "ppo": [*LEARN, "trainer=ppo"],
}


def start(*args: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "placekit_core", "run", *args]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err


def outcome(run_dir: Path) -> dict[str, Any]:
    """Everything that a run wrote, without the columns of time and the folder's own name.

    `report.html` shows both, and is made of what is compared here.
    """
    result = json.loads((run_dir / "result.json").read_text())
    for part in (result, *result["programs"]):
        part.pop("seconds")
    result["config"].pop("run_dir")
    with (run_dir / "history.csv").open() as f:
        history = [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(f)]
    apart = ("result.json", "config.json", "history.csv", "report.html")
    bits = {p.name: p.read_bytes() for p in run_dir.iterdir() if p.name not in apart}
    return {"result": result, "history": history, **bits}


def wait_for(path: Path, process: subprocess.Popen[str], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not path.is_file() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.002)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("whole")
    finish(start(*ARGS, "run_dir=whole", cwd=folder))
    return outcome(folder / "whole")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path, whole: dict[str, Any]) -> None:
    kill_and_resume(ARGS, tmp_path, 4, whole)


def kill_and_resume(arguments: list[str], tmp_path: Path, times: int, whole: dict[str, Any]) -> None:
    """Kill a run up to `times` times, at least twice, and compare what it wrote in the end with `whole`."""
    moments = random.Random(7)
    run_dir = tmp_path / "killed"
    process = start(*arguments, "run_dir=killed", cwd=tmp_path)
    kills = 0
    for _ in range(times):
        wait_for(run_dir / "checkpoint.npz", process)
        before = (run_dir / "checkpoint.npz").stat().st_mtime_ns if (run_dir / "checkpoint.npz").is_file() else 0
        time.sleep(moments.uniform(0.02, 0.25))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        assert not (run_dir / "result.json").is_file() or before, "a killed run has no result yet"
        process = start("resume=killed", cwd=tmp_path)
        # let it get beyond the checkpoint that it continues from before the next kill
        end = time.monotonic() + 60
        while (
            process.poll() is None
            and time.monotonic() < end
            and (run_dir / "checkpoint.npz").is_file()
            and (run_dir / "checkpoint.npz").stat().st_mtime_ns == before
        ):
            time.sleep(0.002)
    finish(process)
    assert kills >= 2, "the run was too short to be killed; give it a larger budget"
    found = outcome(run_dir)
    assert found.keys() == whole.keys()
    assert [name for name in whole if found[name] != whole[name]] == []
    assert not (run_dir / "checkpoint.npz").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_interrupt_keeps_the_best_so_far_and_can_be_resumed(tmp_path: Path, whole: dict[str, Any]) -> None:
    process = start(*ARGS, "run_dir=stopped", cwd=tmp_path)
    wait_for(tmp_path / "stopped" / "checkpoint.npz", process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, out + err
    assert "Traceback" not in err
    assert "continue with `placekit run resume=stopped`" in out
    result = json.loads((tmp_path / "stopped" / "result.json").read_text())
    assert result["status"] == "interrupted"
    assert result["fits"]
    assert 0 < result["evaluations"] < 120000
    assert (tmp_path / "stopped" / "placement.json").is_file()
    finish(start("resume=stopped", cwd=tmp_path))
    assert outcome(tmp_path / "stopped") == whole
    again = start("resume=stopped", cwd=tmp_path)
    out, _ = again.communicate(timeout=120)
    assert again.returncode == 0
    assert "has finished; nothing is left to do" in out


def test_what_a_killed_process_was_writing_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "programs" / "000-a"
    folder.mkdir(parents=True)
    begun = [tmp_path / ".checkpoint.npz.1.part", folder / ".placement.json.1.part"]
    with locked(tmp_path):
        for path in begun:
            path.touch()
        with pytest.raises(BusyError), locked(tmp_path):
            pass
        assert all(path.exists() for path in begun), "another process may be writing them"
    with locked(tmp_path):
        assert not any(path.exists() for path in begun)
