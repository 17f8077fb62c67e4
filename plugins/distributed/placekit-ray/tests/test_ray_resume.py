"""A training whose driver is killed goes on where it was."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ray")

ARGS = [
    "workload=mlp", "cluster=rtx4090_3090", "policy=fake_learnable", "backend=harmful", "trainer=asynchronous",
    "trainer.inner=reinforce", "trainer.controllers=2", "trainer.workers=1", "trainer.least_s=0.02", "seed=3",
    "budget.evaluations=300", "checkpoint_s=0", "baselines=[]",
]  # fmt: skip


def start(environment: dict[str, str], cwd: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "placekit_core", "run", *args], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, **environment},
    )  # fmt: skip


def descendants(pid: int) -> set[int]:
    found, todo = set(), [pid]
    while todo:
        children = subprocess.run(["ps", "--ppid", str(todo.pop()), "-o", "pid="], capture_output=True, text=True)
        new = {int(p) for p in children.stdout.split()} - found
        found |= new
        todo += new
    return found


def title(pid: int) -> bytes:
    """Of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.slow
@pytest.mark.long
def test_a_killed_driver_goes_on(environment: dict[str, str], tmp_path: Path) -> None:
    process = start(environment, tmp_path, *ARGS, "run_dir=run")
    run_dir, end = tmp_path / "run", time.monotonic() + 100
    rows: list[str] = []
    while len(rows) < 4 and time.monotonic() < end and process.poll() is None:
        time.sleep(0.2)
        if (run_dir / "checkpoint.npz").is_file():
            rows = (run_dir / "history.csv").read_text().splitlines()
    children = descendants(process.pid)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert rows, "it was killed too late, or has written nothing"
    assert not (run_dir / "result.json").exists()
    while any(title(pid).startswith((b"ray::Worker", b"ray::Controller", b"ray::Param")) for pid in children):
        assert time.monotonic() < end, "actors outlive their driver"
        time.sleep(0.2)
    for pid in [p for p in children if title(p).startswith(b"ray::")]:  # Ray's own; they would end a minute later
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    out, err = (again := start(environment, tmp_path, "resume=run")).communicate(timeout=120)
    assert again.returncode == 0, out + err
    result = json.loads((run_dir / "result.json").read_text())
    assert (result["status"], result["evaluations"], result["fits"]) == ("finished", 300, True)
    with (run_dir / "history.csv").open() as f:
        history = list(csv.DictReader(f))
    counts = [int(row["evaluations"]) for row in history]
    assert counts[-1] == 300
    assert all(a < b for a, b in itertools.pairwise(counts)), "no evaluation is counted twice"
    assert result["programs"][0]["value_s"] == min(float(row["value_s"]) for row in history)
    assert (run_dir / "policy.safetensors").is_file()
    [note] = [n for n in result["programs"][0]["notes"] if n.startswith("trainer asynchronous")]
    found = re.match(r"trainer asynchronous: (\d+) updates by 2 controllers", note)
    assert found is not None
    assert 20 < int(found[1]) <= 30, "all updates count, also those before the kill"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("process", "asynchronous"), [("raylet", False), ("gcs_server", True)])
def test_a_run_writes_its_best_when_its_cluster_dies(
    environment: dict[str, str], tmp_path: Path, process: str, asynchronous: bool
) -> None:
    """Ray ends the process of the run, 10 to 60 seconds later."""
    own = [] if asynchronous else ["trainer=reinforce", "parallel=ray", "parallel.workers=1", "parallel.least_s=0.02"]
    args = [a for a in ARGS if asynchronous or not a.startswith("trainer")]
    run, run_dir, end = (
        start(environment, tmp_path, *args, *own, "run_dir=run"),
        tmp_path / "run",
        time.monotonic() + 100,
    )
    while time.monotonic() < end and not (run_dir / "checkpoint.npz").is_file():
        time.sleep(0.2)
    for pid in descendants(run.pid):
        if title(pid).split(b"\0")[0].endswith(process.encode()):
            os.kill(pid, signal.SIGKILL)
    _, err = run.communicate(timeout=100)
    assert run.returncode == 1, err
    assert re.search(rf"^placekit: the Ray cluster at \S+ died: .*{process}.* is gone\n", err, re.MULTILINE), err
    assert re.search(
        r"^  the best so far, .*, is in run; continue with `placekit run resume=run`$", err, re.MULTILINE
    ), err
    assert json.loads((run_dir / "result.json").read_text())["status"] == "failed"
    assert (run_dir / "placement.json").is_file()

    out, err = (again := start(environment, tmp_path, "resume=run")).communicate(timeout=120)
    assert again.returncode == 0, out + err
    assert json.loads((run_dir / "result.json").read_text())["evaluations"] == 300
