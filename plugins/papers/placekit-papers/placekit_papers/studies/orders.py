"""Trained policies place the same graph with its groups in unseen orders (Addanki et al. 2019, section 4.3).

Policies train on one graph, in topological order or in 64 random ones. Each then places the graph in topological order and in 64
random orders that no run trained with. Each value is the time of one placement over that of the best placement in training.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from placekit_core import Registry
from placekit_papers.runs import DATA
from placekit_papers.studies.rows import Row, interval, placed_s, problem_of, read_rows, trained_runs, write_rows

_FIRST_SEED, _ORDERS = 1000, 64


def run(folder: Path, registry: Registry) -> list[str]:
    """Train and place, write `folder`/rows.csv, and return the table."""
    rows: list[Row] = []
    for run_dir, summary in trained_runs([["experiment=placeto_orders"]], folder):
        problem = problem_of(run_dir, summary, registry)
        for order, seed in [("topological", 0), *(("random", _FIRST_SEED + i) for i in range(_ORDERS))]:
            value_s = placed_s(problem, run_dir, summary, registry, order=order, order_seed=seed)
            rows.append(
                {
                    "policy": summary.policy, "trained_in": summary.config["policy"]["order"], "seed": str(summary.seed),
                    "order": order, "order_seed": str(seed), "best_s": f"{summary.value_s:.9g}", "value_s": f"{value_s:.9g}",
                }
            )  # fmt: skip
    write_rows(rows, folder / "rows.csv")
    return table(rows)


def show() -> list[str]:
    """The table of the recorded rows."""
    return table(read_rows(DATA / "placeto_orders.csv"))


def table(rows: list[Row]) -> list[str]:
    """By orders in training and in placing: the time over the best found in training, mean ± 95% over the seeds."""
    found: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for r in rows:
        found[r["policy"], r["trained_in"], r["order"]][r["seed"]].append(float(r["value_s"]) / float(r["best_s"]))
    lines = [f"{'policy':10}{'trained in':14}{'placed in':14}{'over the best found':>20}"]
    for (policy, trained, order), by_seed in found.items():
        means = [float(np.mean(x)) for x in by_seed.values()]
        lines.append(f"{policy:10}{trained:14}{order:14}{interval(means):>20}")
    return lines
