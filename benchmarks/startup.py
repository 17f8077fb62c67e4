"""How long the commands that only list things take, as whole processes: `python benchmarks/startup.py [--write]`.

Beside each, the ratio to a Python process that imports nothing, in the same run.
"""

from __future__ import annotations

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


def seconds(arguments: list[str]) -> float:
    """Wall-clock seconds of one process."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Print the table; with --write, save it as benchmarks/results/startup.md."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(RUNS + 1):  # in turn, so that all see the same noise; the first round warms up
        for name, arguments in COMMANDS.items():
            times[name].append(seconds(arguments))
    base = statistics.median(times["python -c pass"][1:])
    lines = ["| command | median s | least s | most s | ratio to python |", "|---|---:|---:|---:|---:|"]
    for name, values in times.items():
        kept = values[1:]
        middle = statistics.median(kept)
        lines.append(f"| `{name}` | {middle:.3f} | {min(kept):.3f} | {max(kept):.3f} | {middle / base:.1f} |")
    machine = f"machine: {os.cpu_count()} cores, Python {platform.python_version()}; {RUNS} runs of each, in turn"
    text = "\n".join([*lines, "", machine])
    print(text)
    if "--write" in sys.argv:
        head = (
            "# Startup\n\n`python benchmarks/startup.py --write`, with every plugin of this repository installed, and the"
            " joblib, submitit and Optuna\nplugins of Hydra, which imports them at each start\n\n"
        )
        (Path(__file__).parent / "results" / "startup.md").write_text(head + text + "\n")


if __name__ == "__main__":
    main()
