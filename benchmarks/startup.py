"""How long the commands that only list things take, as whole processes: `python benchmarks/startup.py [--write]`.

Beside each, the ratio to a Python process that imports nothing, in the same run. With `--against PYTHON NAME`, the interpreter of
another checkout's environment, its commands run in turn with these.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 15
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "placekit --version": ["-m", "placekit_core", "--version"],
    "placekit plugins": ["-m", "placekit_core", "plugins"],
    "placekit --help": ["-m", "placekit_core", "--help"],
    "placekit cluster show p100x4": ["-m", "placekit_core", "cluster", "show", "p100x4"],
    "placekit run --help": ["-m", "placekit_core", "run", "--help"],
    "placekit run --cfg job": ["-m", "placekit_core", "run", "--cfg", "job"],
}


def seconds(python: str, arguments: list[str]) -> float:
    """Wall-clock seconds of one process."""
    start = time.perf_counter()
    subprocess.run(
        [python, *arguments], check=True, capture_output=True, cwd="/"
    )  # not a checkout's folder: -m would find it
    return time.perf_counter() - start


def main() -> None:
    """Print the table; with --write, save it as benchmarks/results/startup.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--against", nargs=2, metavar=("PYTHON", "NAME"), help="another checkout's Python, and its name"
    )
    parser.add_argument("--write", action="store_true", help="save the table in benchmarks/results")
    args = parser.parse_args()
    pythons = [sys.executable, *(args.against or [])[:1]]
    times: dict[str, list[list[float]]] = {name: [[] for _ in pythons] for name in COMMANDS}
    for _ in range(RUNS + 1):  # in turn, so that all see the same noise; the first round warms up
        for name, arguments in COMMANDS.items():
            for values, python in zip(times[name], pythons, strict=True):
                values.append(seconds(python, arguments))
    base = statistics.median(times["python -c pass"][0][1:])
    lines = ["| command | median s | least s | most s | ratio to python |", "|---|---:|---:|---:|---:|"]
    if args.against:
        lines = [lines[0] + f" {args.against[1]}: median s | and ratio to ours |", lines[1] + "---:|---:|"]
    for name, (own, *others) in times.items():
        middle = statistics.median(own[1:])
        row = f"| `{name}` | {middle:.3f} | {min(own[1:]):.3f} | {max(own[1:]):.3f} | {middle / base:.1f} |"
        for other in others:
            row += f" {statistics.median(other[1:]):.3f} | {statistics.median(other[1:]) / middle:.2f} |"
        lines.append(row)
    machine = f"machine: {os.cpu_count()} cores, Python {platform.python_version()}; {RUNS} runs of each, in turn"
    text = "\n".join([*lines, "", machine])
    print(text)
    if args.write:
        command = "startup.py" + (f' --against PYTHON "{args.against[1]}"' if args.against else "") + " --write"
        head = (
            f"# Startup\n\n`python benchmarks/{command}`, with every plugin of this repository\ninstalled, and the joblib,"
            " submitit and Optuna plugins of Hydra, which imports them at each start\n\n"
        )
        (Path(__file__).parent / "results" / "startup.md").write_text(head + text + "\n")


if __name__ == "__main__":
    main()
