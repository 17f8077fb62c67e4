"""Where the modules of a network are placed, in the best run of each policy.

    python benchmarks/module_devices.py MODULE,... FOLDER ...

A row per workload, machine and policy. Each MODULE is a regular expression that begins a module path; what matches none is
`other`. Behind each stand the three devices with most of its computation, and their shares. Folders are sweeps over
`policy`, whose jobs are named by it. Reads the traces that logger `report` writes.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from pathlib import Path

from placekit_core.run.run_directory import find_runs, load_summary

Key = tuple[str, str, str]  # workload, machine, policy


def best_runs(folders: list[Path]) -> dict[Key, tuple[float, Path]]:
    """Value in seconds and folder of the best run of each workload, machine and policy."""
    best: dict[Key, tuple[float, Path]] = {}
    for run_dir in find_runs(folders):
        run = load_summary(run_dir)
        key = run.workload, run.cluster, run_dir.name.split("policy=")[1].split(",")[0]
        if run.value_s is not None and (key not in best or run.value_s < best[key][0]):
            best[key] = run.value_s, run_dir
    return best


def spent(run_dir: Path, modules: list[str]) -> dict[str, Counter[str]]:
    """Microseconds of computation by module and device."""
    events = json.loads((run_dir / "schedule.trace.json").read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 0}
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for e in events:
        if e["ph"] == "X" and "module" in e["args"]:
            module = next((m for m in modules if re.match(m, e["args"]["module"])), "other")
            found[module][names[e["tid"]]] += e["dur"]
    return found


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", metavar="MODULE,...")
    parser.add_argument("folders", nargs="+", type=Path)
    arguments = parser.parse_args()
    modules = arguments.modules.split(",")
    for (workload, machine, policy), (value_s, run_dir) in sorted(best_runs(arguments.folders).items()):
        found = spent(run_dir, modules)
        cells = []
        for module in [*modules, "other"]:
            total = sum(found[module].values())
            if total:
                shares = ", ".join(f"{d} {100 * us / total:.0f}%" for d, us in found[module].most_common(3))
                cells.append(f"{module} ({shares})")
        print(f"{workload} on {machine}, {policy}, {value_s:.3f} s: " + "; ".join(cells))


if __name__ == "__main__":
    main()
