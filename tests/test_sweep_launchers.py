"""Sweeps in several processes: Hydra's launchers and Optuna, workers that die, a sweep that is killed and started again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from placekit_testing.speed import mostly_slow

from placekit_core.run.run_directory import load_summary

PLACEKIT = [sys.executable, "-m", "placekit_core"]
MLP = ["workload=chainmm_small", "budget.evaluations=200"]
JOBLIB = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
FAULTY = """
from pydantic import BaseModel
from placekit_core import PolicyComponent, hookimpl
from placekit_core import Policy

class Options(BaseModel):
    pass

class Faulty(Policy):
    name = "faulty"
    options_class = Options
    def place(self, task, rng):
        return {}["missing"]

@hookimpl
def placekit_policies():
    return [PolicyComponent("faulty", "Always fails", Options, "placekit_faulty:Faulty")]
"""


def run(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    full = {**os.environ, **env}
    command = [*PLACEKIT, "run", *args]
    return subprocess.run(command, cwd=cwd, env=full, capture_output=True, text=True, timeout=280)


def outcomes(sweep: Path) -> dict[str, Any]:
    """What the jobs found, without times, threads and their folders."""
    found = {}
    for path in sweep.glob("*/result.json"):
        result = json.loads(path.read_text())
        for part in (result, *result["programs"]):
            part.pop("seconds")
        result["facts"].pop("torch_threads", None)
        key = (result["policy"], result["seed"])
        assert result["config"].pop("run_dir").endswith(path.parent.name)
        found[str(key)] = result, (path.parent / "placement.json").read_text()
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_joblib_gives_the_same_to_the_bit_and_skips_what_is_finished(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    args = ["-m", *MLP, "policy=critical_path,annealing", "seed=1,2"]
    alone = run(*args, "run_dir=alone", cwd=tmp_path)
    together = run(*args, "run_dir=together", *JOBLIB, cwd=tmp_path)
    assert (alone.returncode, together.returncode) == (0, 0), alone.stderr + together.stderr
    assert together.stderr == ""
    assert len(outcomes(tmp_path / "alone")) == 4
    assert outcomes(tmp_path / "together") == outcomes(tmp_path / "alone")
    jobs, table = together.stdout.split("\n\n")
    assert len(jobs.splitlines()) == 4, "a line per job, and nothing of Hydra's"
    without_seconds = [re.sub(r"\s+\d+\.\d$", "", line) for line in table.splitlines()]
    assert "number of seeds 2" in " ".join(table.split())
    assert without_seconds == [re.sub(r"\s+\d+\.\d$", "", line) for line in alone.stdout.split("\n\n")[1].splitlines()]
    again = run("resume=together", cwd=tmp_path)
    assert again.stdout.count(": skipped, it has finished already") == 4
    assert (again.returncode, again.stderr) == (0, "")


@pytest.fixture
def faulty(tmp_path: Path) -> str:
    """A folder for PYTHONPATH in which a plugin is installed whose policy has a bug."""
    info = tmp_path / "site" / "placekit_faulty-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: placekit-faulty\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[placekit]\nfaulty = placekit_faulty\n")
    (tmp_path / "site" / "placekit_faulty.py").write_text(FAULTY)
    return str(tmp_path / "site")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_bug_in_a_worker_loses_no_other_job(tmp_path: Path, faulty: str) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    args = ["-m", *MLP, "policy=faulty,etf,random", "seed=1", "run_dir=sweep", *JOBLIB]
    done = run(*args, cwd=tmp_path, PYTHONPATH=faulty)
    assert done.returncode == 1
    assert len(outcomes(tmp_path / "sweep")) == 2
    name = "policy=faulty"
    reason = json.loads((tmp_path / "sweep" / name / "failed.json").read_text())
    assert (reason["type"], reason["message"]) == ("KeyError", "'missing'")
    assert "in place" in reason["traceback"]
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines() == [
        f"placekit: {name}: KeyError: 'missing'",
        f"  this is a bug in {faulty}/placekit_faulty.py, line 13; its traceback is in sweep/{name}/failed.json",
        "placekit: 1 job of the sweep failed",
        "  the finished jobs are written; `placekit run resume=sweep` runs the others again",
    ]
    assert f"failed: sweep/{name}: KeyError: 'missing'" in done.stdout


@pytest.mark.slow
def test_a_launcher_that_is_not_installed(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["hydra_plugins"] = None  # as if none were installed
from placekit_core.cli.main import main
sys.exit(main())
"""
    command = [sys.executable, "-c", code, "run", "-m", *MLP, "seed=1,2"]
    for option, package in (
        ("hydra/launcher=joblib", "hydra-joblib-launcher"),
        ("hydra/sweeper=optuna", "hydra-optuna-sweeper"),
    ):
        done = subprocess.run([*command, option], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 1
        group, _, name = option.partition("=")
        expected = f"placekit: no {group} named '{name}'\n  available: basic; is {package} installed?\n"
        assert done.stderr == expected


LONG = [
    "-m",
    "workload=chainmm_small",
    "policy=annealing",
    "budget.evaluations=120000",
    "checkpoint_s=0",
    "run_dir=sweep",
    *JOBLIB,
]


def start(*args: str, cwd: Path) -> subprocess.Popen[str]:
    """A run that leads a process group of its own."""
    command = [*PLACEKIT, "run", *args]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=cwd, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def wait_for(folder: Path, process: subprocess.Popen[str], **numbers: int) -> None:
    """Wait until the jobs in `folder` have written at least so many files of each name."""
    end = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < end:
        if all(len(list(folder.glob(f"*/{name.replace('_', '.')}"))) >= n for name, n in numbers.items()):
            return
        time.sleep(0.005)
    pytest.fail(f"the sweep ended before it had {numbers}")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_and_started_again_finishes_only_what_was_missing(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    whole = run(*LONG, "seed=1,2,3,4", "run_dir=whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    sweep = tmp_path / "sweep"
    process = start(*LONG, "seed=1,2,3,4", cwd=tmp_path)
    wait_for(sweep, process, result_json=2, checkpoint_npz=1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = {p.parent.name: p.stat().st_mtime_ns for p in sweep.glob("*/result.json")}
    interrupted = {p.parent.name for p in sweep.glob("*/checkpoint.npz")} - set(before)
    assert 2 <= len(before) < 4
    again = run("resume=sweep", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert sorted(re.findall(r"^sweep/(.*): skipped", again.stdout, re.M)) == sorted(before)
    assert sorted(re.findall(r"^sweep/(.*): continued from its checkpoint$", again.stdout, re.M)) == sorted(interrupted)
    assert len(re.findall(r" evaluations in ", again.stdout)) == 4 - len(before)
    assert all((sweep / name / "result.json").stat().st_mtime_ns == time_ for name, time_ in before.items())
    assert outcomes(sweep) == outcomes(tmp_path / "whole")
    assert "number of seeds 4" in " ".join(again.stdout.split()), "the table has all seeds"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("whom", mostly_slow(["parent", "worker"], [], ["parent", "worker"]))
def test_signals(tmp_path: Path, whom: str) -> None:
    """A scheduler ends the parent by SIGTERM, the system one worker for its memory."""
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    process = start(*LONG, "seed=1,2,3,4", cwd=tmp_path)
    wait_for(tmp_path / "sweep", process, checkpoint_npz=2)
    if whom == "parent":
        process.terminate()
    else:
        listed = subprocess.run(["pgrep", "-g", str(process.pid), "-f", "LokyProcess"], capture_output=True, text=True)
        workers = listed.stdout.split()
        os.kill(int(workers[0]), signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert "Traceback" not in err
    if whom == "worker":
        assert process.returncode == 1
        assert "placekit: the sweep stopped: TerminatedWorkerError: " in err
        [missing] = re.findall(r"(\d) jobs? of the sweep did not finish", err)
        assert out.count("missing: sweep/") == int(missing) >= 2, "the two jobs that ran are lost, to their checkpoints"
    else:
        assert process.returncode == 130
        assert "interrupted: continue with `placekit run resume=sweep`" in out
    done = run("resume=sweep", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(outcomes(tmp_path / "sweep")) == 4
    assert done.stdout.count(": skipped") + done.stdout.count(" evaluations in ") == 4
    if whom == "worker":
        assert done.stdout.count("continued from its checkpoint") >= 1


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_submitit(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    done = run("-m", *MLP, "policy=etf", "seed=1,-1", "hydra/launcher=submitit_local", "run_dir=sweep", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "failed: sweep/seed=-1: seed: input should be" in done.stdout
    assert len(outcomes(tmp_path / "sweep")) == 1
    again = run("resume=sweep", cwd=tmp_path)
    assert "seed=1: skipped" in "".join(p.read_text() for p in tmp_path.glob("sweep/.submitit/*/*_log.out"))
    assert "placekit: 1 job of the sweep failed" in again.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ray(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_ray_launcher")
    args = ["-m", *MLP, "policy=etf,heft", "seed=1", "run_dir=sweep"]
    ray = ["hydra/launcher=ray", "+hydra.launcher.ray.init.num_cpus=2"]
    done = run(*args, *ray, cwd=tmp_path, RAY_AUTH_MODE="disabled")
    assert done.returncode == 0, done.stderr
    assert len(outcomes(tmp_path / "sweep")) == 2
    assert "best: " in done.stdout


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_optuna_minimises_the_value(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    space = ["policy.starts=range(1,9)", "policy.temperature_start=interval(-0.1,0.5)"]  # below 0 the trial fails
    sweeper = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=6", "hydra.sweeper.sampler.seed=1"]
    args = ["-m", *MLP, "policy=annealing", *space, *sweeper, "run_dir=sweep"]
    first = run(*args, cwd=tmp_path)
    runs = [load_summary(p.parent) for p in (tmp_path / "sweep").glob("*/result.json")]
    failed = list((tmp_path / "sweep").glob("*/failed.json"))
    assert runs, first.stderr
    assert failed
    assert len(runs) + len(failed) == 6
    best = yaml.safe_load((tmp_path / "sweep" / "optimization_results.yaml").read_text())
    assert best["best_value"] == min(r.value_s for r in runs if r.value_s is not None)
    again = run(*args, cwd=tmp_path)
    assert again.stdout.count(": skipped, it has finished already") == len(runs)
