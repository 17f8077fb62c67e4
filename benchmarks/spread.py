"""Sweeps as a table: mean and standard deviation over seeds, a row per workload and machine, a column per method.

    python benchmarks/spread.py FOLDER ... [--csv OUT.csv]

Folders are of one experiment: runs of one workload and machine are taken to be of one problem. Values are milliseconds, or
seconds if all are above one; in the CSV always seconds. `-` is a method whose runs found nothing that fits; a number in brackets
says how many of its runs did, where some did not. The last column is the proven lower bound.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
from placekit_report.compare_labels import labels

from placekit_core import installed
from placekit_core.run.run_directory import find_runs, load_summary

LONG = 30  # characters: longer heads of columns stand below


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    runs = [load_summary(run_dir) for run_dir in find_runs(given.folders)]
    in_s = all(r.value_s is None or r.value_s >= 1 for r in runs)
    unit = 1.0 if in_s else 1e3
    found: dict[tuple[str, str], dict[str, list[float | None]]] = defaultdict(lambda: defaultdict(list))
    bounds: dict[tuple[str, str], float] = {}
    for r, label in zip(runs, labels(runs, installed()), strict=True):
        found[r.workload, r.cluster][label].append(r.value_s)
        if r.bound_s is not None:
            bounds[r.workload, r.cluster] = max(bounds.get((r.workload, r.cluster), 0.0), r.bound_s)
    methods = sorted({label for row in found.values() for label in row}, key=lambda m: _mean(found, m))
    long = max(map(len, methods)) > LONG
    heads = [f"({i})" for i in range(1, len(methods) + 1)] if long else methods
    width = [max(len(head) + 2, 17) for head in heads]
    first, second = (max(len(key[i]) for key in found) + 2 for i in range(2))
    print(
        f"{'workload':{first}}{'cluster':{second}}"
        + "".join(f"{m:>{w}}" for m, w in zip(heads, width, strict=True))
        + f"{'bound':>9}  {'s' if in_s else 'ms'}"
    )
    rows = []
    for (workload, cluster), row in sorted(found.items()):
        cells = []
        for method, w in zip(methods, width, strict=True):
            values = [unit * v for v in row.get(method, []) if v is not None]
            runs_made = len(row.get(method, []))
            cells.append(f"{_cell(values, runs_made):>{w}}")
            if runs_made:
                rows.append([workload, cluster, method, runs_made, *(f"{v / unit:.6g}" for v in values)])
        bound = bounds.get((workload, cluster))
        print(
            f"{workload:{first}}{cluster:{second}}"
            + "".join(cells)
            + (f"{unit * bound:>9.2f}" if bound else f"{'-':>9}")
        )
    if long:
        print("\n".join(f"{head} {method}" for head, method in zip(heads, methods, strict=True)))
    if given.csv:
        with given.csv.open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["workload", "cluster", "policy", "runs", "values_s"])
            out.writerows(rows)


def _cell(values: list[float], made: int) -> str:
    """Mean and standard deviation."""
    if not values:
        return "-"
    text = f"{np.mean(values):.4g}"
    if len(values) > 1:
        text += f" ± {np.std(values, ddof=1) if np.ptp(values) > 1e-9 * max(values) else 0:.2g}"
    return text + (f" ({len(values)})" if len(values) < made else "")


def _mean(found: dict[tuple[str, str], dict[str, list[float | None]]], method: str) -> float:
    """Mean over workloads of a method's mean over the best method's there: what columns are sorted by."""
    ratios = []
    for row in found.values():
        means = {m: np.mean([v for v in values if v is not None] or [np.inf]) for m, values in row.items()}
        if method in means and np.isfinite(min(means.values())):
            ratios.append(means[method] / min(means.values()))
    return float(np.mean(ratios)) if ratios else np.inf


if __name__ == "__main__":
    main()
