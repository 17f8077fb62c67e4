"""How long commands take to start, as whole processes: wall-clock and CPU seconds.

    python benchmarks/startup.py [--beside CHECKOUT] [--write]

Commands that only list things; a small run, warm: its compiled functions and bytecode are on disk; and its first run, for which
numba's cache is empty. CPU seconds are those of all threads. They vary less than wall-clock seconds if other programs use the
computer, and least as a multiple of those of `import numba`. With `--beside`, an older checkout (a git worktree of some commit,
after `make setup` in it) in turns with this one. A checkout that has no `.venv` runs in the environment of this program.
`--write` saves the table in benchmarks/results/startup.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from checkouts import placekit_of, python_of

RUNS = 5
HERE = Path(__file__).resolve().parent.parent
RUN = ["run", "workload=chainmm", "budget.evaluations=100"]
NUMBA = "python -c 'import numba'"
COMMANDS: dict[str, list[str]] = {
    NUMBA: ["-c", "import numba"],
    "python -c pass": ["-c", "pass"],
    "placekit --version": ["--version"],
    "placekit plugins": ["plugins"],
    "placekit --help": ["--help"],
    "placekit cluster show p100x4": ["cluster", "show", "p100x4"],
    "placekit run --help": ["run", "--help"],
    "placekit run --cfg job": ["run", "--cfg", "job"],
    f"placekit {' '.join(RUN)}": RUN,
}


class Took(NamedTuple):
    """Seconds of a process: on the wall's clock, and of the processor."""

    wall_s: float
    cpu_s: float


class Checkout:
    """A checkout, with a folder of its own for bytecode, compiled functions and what runs write."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        (self.python, environment), (self.placekit, _) = python_of(root), placekit_of(root)
        left_out = ("PYTHONDONTWRITEBYTECODE", "PLACEKIT_SAMPLES")
        self.environment = {name: value for name, value in environment.items() if name not in left_out}
        self.environment |= {
            "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
            "NUMBA_CACHE_DIR": str(folder / "compiled"),
        }

    def took(self, arguments: list[str]) -> Took:
        """The seconds of one command. Ends this program if it fails."""
        run_dir = self.folder / "run"
        shutil.rmtree(run_dir, ignore_errors=True)
        command = [self.python, *arguments] if arguments[0] == "-c" else [*self.placekit, *arguments]
        command = [*command, f"run_dir={run_dir}"] if arguments == RUN else command
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(command, env=self.environment, cwd=self.folder, capture_output=True, text=True)
        wall_s, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise SystemExit(f"{self.root}: {' '.join(arguments)}: {done.stderr}")
        return Took(wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    def commit(self) -> str:
        """The commit, in a few letters."""
        command = ["git", "-C", str(self.root), "rev-parse", "--short=7", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def rows(checkouts: list[Checkout]) -> list[str]:
    """The rows of the table."""
    first = [checkout.took(RUN) for checkout in checkouts]  # before all others: it fills the caches
    lines, numba_s = [], [0.0 for _ in checkouts]
    for name, arguments in COMMANDS.items():
        times: list[list[Took]] = [[] for _ in checkouts]
        for _ in range(RUNS + 1):  # in turns, so that all see the same noise; the first one warms up
            for checkout, values in zip(checkouts, times, strict=True):
                values.append(checkout.took(arguments))
        times = [values[1:] for values in times]
        numba_s = [cpu_s(values) for values in times] if name == NUMBA else numba_s
        lines.append(row(name, times, numba_s))
    return [*lines, row(f"{' '.join(['placekit', *RUN])}, the first time", [[t] for t in first], numba_s)]


def cpu_s(values: list[Took]) -> float:
    """The median of the CPU seconds."""
    return statistics.median(t.cpu_s for t in values)


def row(name: str, times: list[list[Took]], numba_s: list[float]) -> str:
    """A row: of each checkout, the medians and the least wall-clock seconds, and the CPU seconds as a multiple of `numba_s`.

    Of an older checkout, also the ratio of the CPU seconds to ours.
    """
    cells = [f"`{name}`"]
    for i, values in enumerate(times):
        cells += [f"{statistics.median(t.wall_s for t in values):.2f}", f"{min(t.wall_s for t in values):.2f}"]
        cells += [f"{cpu_s(values):.2f}", f"{cpu_s(values) / numba_s[i]:.2f}"]
        cells += [f"{cpu_s(values) / cpu_s(times[0]):.2f}"] if i else []
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table; with --write, save it as benchmarks/results/startup.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--beside", type=Path, metavar="CHECKOUT", help="an older checkout, to run in turns with this one"
    )
    parser.add_argument("--write", action="store_true", help="save the table in benchmarks/results")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkouts = []
        for i, root in enumerate(filter(None, (HERE, args.beside and args.beside.resolve()))):
            own = Path(folder) / str(i)
            own.mkdir()
            checkouts.append(Checkout(root, own))
        names = ["", *(f"{c.commit()}: " for c in checkouts[1:])]
        lines = rows(checkouts)
    columns = [
        f"{n}wall s | {n}least wall s | {n}CPU s | {n}CPU / numba" + f" | {n}CPU, ratio" * bool(n) for n in names
    ]
    lines = [f"| command | {' | '.join(columns)} |", "|---|" + "---:|" * (lines[0].count("|") - 2), *lines]
    lines += [
        "",
        f"Machine: {os.cpu_count()} cores, Python {platform.python_version()}. Medians of {RUNS} runs, in turns;",
    ]
    lines[-1] += " the first run is one run."
    text = "\n".join(lines)
    print(text)
    if args.write:
        command = "python benchmarks/startup.py" + (" --beside CHECKOUT" if args.beside else "") + " --write"
        beside = f", beside `git worktree add CHECKOUT {checkouts[1].commit()}`" if args.beside else ""
        head = (
            f"# Startup\n\n`{command}` at commit {checkouts[0].commit()}{beside}, with every\nplugin of this repository"
            " installed. Hydra's plugins of launchers and sweepers, which it imports at each start, are part of it.\n"
            "`CPU / numba`: over the CPU seconds of `import numba`. `CPU, ratio`: the older time over this one.\n"
            "`placekit --help` lists the commands of installed plugins.\n\n"
        )
        (HERE / "benchmarks" / "results" / "startup.md").write_text(head + text + "\n")


if __name__ == "__main__":
    main()
