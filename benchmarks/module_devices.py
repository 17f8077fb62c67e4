"""Where the modules of a network are placed.

    python benchmarks/module_devices.py MODULE,... FOLDER ... [--csv OUT.csv]

A row for the best run of each workload, machine and policy. Each MODULE is a regular expression that begins a module path, and
each text that it matches is a part; the rest is `other`. Behind each part stand the three devices with most of its computation,
and their shares. `--csv` keeps the seconds of every run, of all seeds. Folders are sweeps; a job that is named by its policy is
a row of that name, such as a preset. Reads the traces that logger `report` writes.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from placekit_core.run.run_directory import find_runs, load_summary

OTHER = "other"


class Run(NamedTuple):
    """A run: its value in seconds, and the microseconds of computation by part and device."""

    workload: str
    cluster: str
    method: str
    seed: int
    value_s: float
    spent: dict[str, Counter[str]]


def runs(folders: list[Path], modules: list[str]) -> Iterator[Run]:
    """The runs of sweeps in which something fits."""
    for run_dir in find_runs(folders):
        run = load_summary(run_dir)
        if run.value_s is not None:
            named = re.search(r"policy=([^,]+)", run_dir.name)
            method = named[1] if named else run.config["policy"]["name"]
            yield Run(run.workload, run.cluster, method, run.seed, run.value_s, spent(run_dir, modules))


def spent(run_dir: Path, modules: list[str]) -> dict[str, Counter[str]]:
    """Microseconds of computation by part and device."""
    events = json.loads((run_dir / "schedule.trace.json").read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 0}
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for e in events:
        if e["ph"] == "X" and "module" in e["args"]:
            match = next((m for pattern in modules if (m := re.match(pattern, e["args"]["module"]))), None)
            found[match.group() if match else OTHER][names[e["tid"]]] += e["dur"]
    return found


def write(found: list[Run], path: Path) -> None:
    """A row per run, part and device that computes some of it."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["workload", "cluster", "method", "seed", "part", "device", "seconds"])
        for run in sorted(found, key=lambda r: r[:4]):
            for part, devices in sorted(run.spent.items()):
                for device, us in sorted(devices.items()):
                    writer.writerow([*run[:4], part, device, f"{us / 1e6:.5g}"])


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", metavar="MODULE,...")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    found = list(runs(arguments.folders, arguments.modules.split(",")))
    best: dict[tuple[str, str, str], Run] = {}
    for run in sorted(found, key=lambda r: r.value_s):
        best.setdefault(run[:3], run)
    for (workload, machine, policy), run in sorted(best.items()):
        cells = []
        for part, devices in sorted(run.spent.items(), key=lambda item: item[0] == OTHER):
            total = sum(devices.values())
            shares = ", ".join(f"{d} {100 * us / total:.0f}%" for d, us in devices.most_common(3))
            cells.append(f"{part} ({shares})")
        print(f"{workload} on {machine}, {policy}, {run.value_s:.3f} s: " + "; ".join(cells))
    if arguments.csv:
        write(found, arguments.csv)


if __name__ == "__main__":
    main()
