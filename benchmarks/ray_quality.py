"""Seconds and evaluations to a given quality, of a sweep over controllers and workers: experiment=mirhoseini_async.

    placekit run experiment=mirhoseini_async run_dir=FOLDER
    python benchmarks/ray_quality.py FOLDER ... [--within 0.05] [--average] [--write]

The quality is a value at most so much above the best of all runs of the same workload and machine: that of the best placement so
far, or with `--average` the mean of five batches, against the lowest such mean of all runs. Seconds begin when the first batch
was there, because workers start one after the other on a computer with few cores; *start* are those until then.
Medians over the seeds that reached it. `--write` keeps the report in benchmarks/results/ray_quality.md.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placekit_core.contracts.units import seconds
from placekit_core.run.run_directory import find_runs, load_summary

RESULT = Path(__file__).parent / "results" / "ray_quality.md"
BATCHES = 5
Key = tuple[str, str, int, int]
"""Workload, cluster, controllers, workers of each."""


def history(run_dir: Path, average: bool) -> NDArray[np.float64]:
    """[batches, 3] evaluations, seconds, and the value whose quality is asked for."""
    with (run_dir / "history.csv").open(newline="") as file:
        rows = np.array([
            [float(r[k] or "nan") for k in ("evaluations", "seconds", "best_s", "mean_s")] for r in csv.DictReader(file)
        ])  # fmt: skip
    value = rows[:, 2]
    if average:
        value = np.full(len(rows), np.nan)
        for i in range(BATCHES - 1, len(rows)):
            value[i] = rows[i - BATCHES + 1 : i + 1, 3].mean()
    return np.column_stack([rows[:, :2], value])


def main() -> None:
    """Print a row per number of controllers and workers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--within", type=float, default=0.05)
    parser.add_argument("--average", action="store_true", help="of batches, not of the best placement")
    parser.add_argument("--write", action="store_true", help=f"into {RESULT.name}")
    given = parser.parse_args()
    groups: dict[Key, list[NDArray[np.float64]]] = defaultdict(list)
    for run_dir in find_runs(given.folders):
        r = load_summary(run_dir)
        trainer = r.config["trainer"]
        key = r.workload, r.cluster, int(trainer["controllers"]), int(trainer["workers"])
        groups[key].append(history(run_dir, given.average))
    what = f"mean of {BATCHES} batches" if given.average else "best placement"
    lines = [
        f"# Ray: seconds and evaluations to a quality\n\n`python benchmarks/ray_quality.py FOLDER --within {given.within:g}"
        f"{' --average' if given.average else ''} --write`: until the {what} is at most"
        f" {given.within:.0%} above that of all runs.\n",
        "| workload | cluster | controllers | workers | runs | reached | evaluations | s | to the fewest workers | start s"
        " | all s | evaluations /s | value |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    first: dict[tuple[str, str], float] = {}
    for (workload, cluster, controllers, workers), runs in sorted(groups.items()):
        same = [h for key, more in groups.items() if key[:2] == (workload, cluster) for h in more]
        least = min(float(np.nanmin(h[:, 2])) for h in same)
        made, took, start = np.array([reached(h, least * (1 + given.within)) for h in runs]).T
        whole, ends = np.array([h[-1] for h in runs]), np.isfinite(made)
        s = float(np.median(took[ends])) if ends.any() else np.nan
        base = first.setdefault((workload, cluster), s)
        rate = np.median(whole[:, 0] / np.maximum(whole[:, 1] - start, 1e-9))
        cells = [
            workload, cluster, controllers, workers, len(runs), int(ends.sum()),
            *((f"{np.median(made[ends]):.0f}", f"{s:.1f}", f"{s / base:.2f}") if ends.any() else ("-", "-", "-")),
            f"{np.median(start):.1f}", f"{np.median(whole[:, 1]):.1f}", f"{rate:.1f}",
            seconds(float(np.median([np.nanmin(h[:, 2]) for h in runs]))),
        ]  # fmt: skip
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    print("\n".join(lines))
    if given.write:
        RESULT.write_text("\n".join(lines) + "\n")


def reached(h: NDArray[np.float64], value: float) -> tuple[float, float, float]:
    """Evaluations and seconds since the first batch until a history has a value, NaN if it never has; and the start."""
    found = np.flatnonzero(h[:, 2] <= value)
    start = float(h[0, 1])
    if not found.size:
        return np.nan, np.nan, start
    return float(h[found[0], 0]), float(h[found[0], 1]) - start, start


if __name__ == "__main__":
    main()
