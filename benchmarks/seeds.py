"""The runs of sweeps as a CSV: a row per run, which is what the tables of docs/research are made from.

    python benchmarks/seeds.py FOLDER ... --csv OUT.csv

Columns: the workload, the cluster, the method (the policy, with what it differs in from others of its place), the seed, seconds
of the placement found (empty: none fits), the proven bound, the evaluations, those until a value within 1% of the result (from
the run's history, if it has one), and the seconds of the search. Values are simulated or measured, as the runs were.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path

import numpy as np
from placekit_compare.labels import labels
from scipy import stats

from placekit_core import installed
from placekit_core.run.run_directory import find_runs, load_summary

NEAR = 1.01


@dataclass(frozen=True)
class Seed:
    """One run.

    Attributes:
        value_s: seconds; infinite if nothing fits.
        bound_s: NaN without one.
        to_best: evaluations until the run was within 1% of its result; -1 if its history does not say.
        seconds: of the search.
    """

    workload: str
    cluster: str
    method: str
    seed: int
    value_s: float
    bound_s: float
    evaluations: int
    to_best: int
    seconds: float


def runs(folders: Iterable[Path]) -> list[Seed]:
    """The runs in these folders, at any depth."""
    found = list(find_runs(list(folders)))
    summaries = [load_summary(run_dir) for run_dir in found]
    rows = []
    for run_dir, r, label in zip(found, summaries, labels(summaries, installed()), strict=True):
        value_s = inf if r.value_s is None or not r.fits else r.value_s
        bound_s = float("nan") if r.bound_s is None else r.bound_s
        rows.append(
            Seed(
                r.workload,
                r.cluster,
                label,
                r.seed,
                value_s,
                bound_s,
                r.evaluations,
                _to(run_dir, NEAR * value_s),
                r.seconds,
            )
        )
    return sorted(rows, key=lambda s: (s.cluster, s.workload, s.method, s.seed))


def _to(run_dir: Path, value_s: float) -> int:
    """Evaluations until a run had found a value as small as this; -1 if its history does not say."""
    history = run_dir / "history.csv"
    if history.exists() and value_s < inf:
        with history.open(newline="") as file:
            for row in csv.DictReader(file):
                if float(row["best_s"] or "inf") <= value_s:
                    return int(row["evaluations"])
    return -1


def write(rows: Sequence[Seed], path: Path) -> None:
    """Write a CSV that `read` reads."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([f.name for f in fields(Seed)])
        for s in rows:
            value, bound = ("" if not x < inf else f"{x:.9g}" for x in (s.value_s, s.bound_s))
            to_best = "" if s.to_best < 0 else s.to_best
            writer.writerow(
                [s.workload, s.cluster, s.method, s.seed, value, bound, s.evaluations, to_best, f"{s.seconds:.3g}"]
            )


def read(paths: Iterable[Path]) -> list[Seed]:
    """The rows of CSVs."""
    rows = []
    for path in paths:
        with path.open(newline="") as file:
            for r in csv.DictReader(file):
                rows.append(
                    Seed(
                        r["workload"], r["cluster"], r["method"], int(r["seed"]), float(r["value_s"] or inf),
                        float(r["bound_s"] or "nan"), int(r["evaluations"]), int(r["to_best"] or -1), float(r["seconds"]),
                    )
                )  # fmt: skip
    return rows


def mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half its 95% interval (t distribution); 0 for one value or equal ones."""
    mean = float(np.mean(values))
    if len(values) < 2 or np.ptp(values) <= 1e-9 * abs(mean):
        return mean, 0.0
    return mean, float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))


def main() -> None:
    """Write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--csv", type=Path, required=True)
    given = parser.parse_args()
    rows = runs(given.folders)
    write(rows, given.csv)
    print(f"{len(rows)} runs in {given.csv}")


if __name__ == "__main__":
    main()
