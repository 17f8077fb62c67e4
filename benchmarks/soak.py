"""Whether anything grows: thousands of runs in one process, hundreds of jobs in one sweep, hours of one run.

    python benchmarks/soak.py [--runs 2000] [--jobs 500] [--minutes 0]

- `runs`: `place` in this process, with six policies in turn, half of them with a run directory.
- `jobs`: `placekit run -m` over seeds, in one process.
- `minutes`: one run by the clock, which writes a checkpoint every second.

A row after each tenth of the work: resident memory and open files of the process, its threads, and the files that are left in
the folder for temporary files and, of jobs, in their run directories besides results. Needs Linux.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from placekit_testing.small import chain, machine

from placekit_core import place

POLICIES = ("single_device", "etf", "heft", "annealing", "portfolio")
HEAD = f"{'work':>8} {'done':>7} {'MiB':>8} {'open files':>11} {'threads':>8} {'left behind':>12} {'seconds':>8}"


def show(what: str, done: int, process: int, left: Path, began: float) -> None:
    """A row about a process; `left` is the folder of temporary files."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
        mib = int(status.partition("VmRSS:")[2].split()[0]) / 1024
        threads, files = int(status.partition("Threads:")[2].split()[0]), len(os.listdir(f"/proc/{process}/fd"))
    except (OSError, IndexError):  # it has just ended
        return
    parts = [p for p in left.rglob("*") if p.is_file()]
    took = time.perf_counter() - began
    print(f"{what:>8} {done:7} {mib:8.1f} {files:11} {threads:8} {len(parts):12} {took:8.1f}", flush=True)


def runs(count: int, temporary: Path) -> None:
    """Runs in this process."""
    graph, cluster, began = chain(40), machine(4), time.perf_counter()
    for i in range(count + 1):
        if i % max(count // 10, 1) == 0:
            show("runs", i, os.getpid(), temporary, began)
        with tempfile.TemporaryDirectory() as folder:
            place(
                graph, cluster=cluster, policy=POLICIES[i % len(POLICIES)], budget=60, seed=i,
                run_dir=Path(folder) / "run" if i % 2 else None,
            )  # fmt: skip


def watched(what: str, count: int, command: list[str], done: Path, temporary: Path) -> None:
    """A command, and how many results it has written below `done`."""
    began, shown = time.perf_counter(), -1
    said = done / "stderr"
    with said.open("w") as stderr, subprocess.Popen(command, cwd=done, stdout=stderr, stderr=stderr) as process:
        while process.poll() is None:
            finished = len(list(done.glob("*/*/result.json")))
            tenth = finished * 10 // count if what == "jobs" else int(10 * (time.perf_counter() - began) / count)
            if tenth > shown:
                shown = tenth
                show(what, finished, process.pid, temporary, began)
            time.sleep(0.2)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}: {said.read_text()[-2000:]}")
    strange = [p for p in done.rglob(".*") if p.is_file()]
    finished = len(list(done.rglob("result.json")))
    print(f"{what:>8} {finished:7} finished, {len(strange)} temporary files beside them")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=0.0)
    given = parser.parse_args()
    placekit = [sys.executable, "-m", "placekit_core", "run", "workload=chainmm_small"]
    print(HEAD)
    with tempfile.TemporaryDirectory() as name:
        temporary, work = Path(name) / "tmp", Path(name) / "work"
        temporary.mkdir()
        work.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
        if given.runs:
            runs(given.runs, temporary)
        if given.jobs:
            sweep = [
                *placekit,
                "-m",
                "policy=annealing",
                f"seed=range({given.jobs})",
                "budget.evaluations=200",
                "run_dir=sweep",
            ]
            watched("jobs", given.jobs, sweep, work, temporary)
        if given.minutes:
            seconds = int(60 * given.minutes)
            alone = [
                *placekit,
                "policy=annealing",
                f"budget.seconds={seconds}",
                "budget.evaluations=null",
                "checkpoint_s=1",
            ]
            watched("minutes", seconds, [*alone, "run_dir=long/run"], work, temporary)


if __name__ == "__main__":
    main()
