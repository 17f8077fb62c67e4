"""Table 1 of Addanki et al. 2019: the evaluations until a method has found what it finds, or what the RNN does.

    placekit run experiment=placeto_learned_2gpus run_dir=learned_2gpus        (and so on, see docs/research/placeto.md)
    python benchmarks/placeto_table1.py FOLDER ... --csv OUT.csv
    python benchmarks/placeto_table1.py --table IN.csv

The first writes a row per run: its best value, the evaluations until it was within 1% of that, and the evaluations until it was
as good as the worst of the six runs of `seq2seq`. The second prints both numbers of evaluations, medians over the seeds.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
from placeto_rows import Row, main

from placekit_core import Summary

OTHER = "seq2seq"  # the paper's RNN-based approach
NEAR = 1.01
METHODS = [OTHER, "placeto"]  # order of the columns


def reached(run_dir: Path, value_s: float) -> str:
    """Evaluations until the run had found a value as small as this; empty if it never did."""
    with (run_dir / "history.csv").open(newline="") as file:
        for r in csv.DictReader(file):
            if float(r["best_s"] or "inf") <= value_s:
                return r["evaluations"]
    return ""


def rows_of(runs: list[tuple[Path, Summary]]) -> list[Row]:
    """A row for each run."""
    goal: dict[tuple[str, str], float] = defaultdict(float)
    for _, r in runs:
        if r.policy == OTHER and r.value_s is not None:
            goal[_place(r)] = max(goal[_place(r)], r.value_s)
    rows = []
    for run_dir, r in runs:
        value = r.value_s
        rows.append(
            {
                "network": r.workload, "cluster": r.cluster, "method": r.policy, "seed": str(r.seed),
                "value_s": "" if value is None else f"{value:.9g}", "bound_s": "" if r.bound_s is None else f"{r.bound_s:.9g}",
                "evaluations": str(r.evaluations), "to_own_best": "" if value is None else reached(run_dir, NEAR * value),
                "to_seq2seq": reached(run_dir, goal[_place(r)]), "seconds": f"{r.seconds:.3g}",
            }
        )  # fmt: skip
    return sorted(rows, key=lambda r: (r["cluster"], r["network"], r["method"], int(r["seed"])))


def _place(r: Summary) -> tuple[str, str]:
    return r.workload, r.cluster


def table(rows: list[Row]) -> None:
    """Print the evaluations."""
    found: dict[tuple[str, str], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for r in rows:
        found[r["network"], r["cluster"]][r["method"]].append(r)
    learned = [m for m in METHODS if any(len(row[m]) > 1 for row in found.values() if m in row)]
    print("evaluations until within 1% of the run's own best | as good as the worst run of seq2seq")
    print(f"{'network':14}{'machine':14}" + "".join(f"{m:>17}" for m in learned))
    for (network, cluster), by in sorted(found.items()):
        texts = [f"{_median(by[m], 'to_own_best')} | {_median(by[m], 'to_seq2seq')}" for m in learned]
        print(f"{network:14}{cluster:14}" + "".join(f"{text:>17}" for text in texts))


def _median(rows: list[Row], column: str) -> str:
    """The median over the runs; `-` if most never got there."""
    middle = float(np.median([float(r[column] or "inf") for r in rows])) if rows else np.inf
    return f"{middle:.0f}" if np.isfinite(middle) else "-"


if __name__ == "__main__":
    main(__doc__, rows_of, table)
