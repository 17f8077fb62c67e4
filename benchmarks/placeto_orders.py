"""Trained policies on the same graph in orders that they have not seen (Addanki et al. 2019, section 4.3).

    placekit run experiment=placeto_orders run_dir=placeto_orders
    python benchmarks/placeto_orders.py FOLDER ... [--csv OUT.csv] [--table IN.csv]

FOLDER are runs of `placeto` or `seq2seq` that trained on one graph, with `policy.order` topological or random. Each policy places
the graph in topological order, and in 64 random ones, whose seeds begin at 1000: no run trained with them. Each episode of
`placeto` starts from random devices of its own, as in training. Every value is one placement over the best that the run found.
`--table` prints a CSV.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
from placeto_rows import Row, interval, main, placed_s, problem_of

from placekit_core import Summary

SEED, ORDERS = 1000, 64  # of the first order, and number of orders


def rows_of(runs: list[tuple[Path, Summary]]) -> list[Row]:
    """A row for each run and order: the topological one, and each of the others."""
    rows = []
    for run_dir, r in runs:
        problem, config = problem_of(run_dir, r), r.config
        for order, order_seed in [("topological", 0), *(("random", SEED + i) for i in range(ORDERS))]:
            value_s = placed_s(problem, run_dir, r, order=order, order_seed=order_seed)
            rows.append(
                {
                    "policy": r.policy, "trained_in": config["policy"]["order"], "seed": str(r.seed), "order": order,
                    "order_seed": str(order_seed), "best_s": f"{r.value_s:.9g}", "value_s": f"{value_s:.9g}",
                }
            )  # fmt: skip
    return rows


def table(rows: list[Row]) -> None:
    """Print how much slower than the best found, by what the policy was trained in and placed in: means and 95% intervals over
    the seeds, and how far the slowest of a seed's orders is from its fastest, in the mean."""
    found: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for r in rows:
        found[r["policy"], r["trained_in"], r["order"]][r["seed"]].append(float(r["value_s"]) / float(r["best_s"]))
    print(
        f"{'policy':10}{'trained in':14}{'placed in':14}{'seeds':>6}{'over the best found':>24}{'slowest/fastest':>18}"
    )
    for (policy, trained, order), by_seed in found.items():
        means = [float(np.mean(x)) for x in by_seed.values()]
        apart = np.mean([max(x) / min(x) for x in by_seed.values()])
        print(f"{policy:10}{trained:14}{order:14}{len(means):6}{interval(means):>24}{apart:18.3f}")


if __name__ == "__main__":
    main(__doc__, rows_of, table)
