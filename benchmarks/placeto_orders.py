"""Trained policies on the same graph in orders that they have not seen (Addanki et al. 2019, section 4.3).

    placekit run experiment=placeto_orders run_dir=placeto_orders
    python benchmarks/placeto_orders.py FOLDER ... [--orders 64] [--csv OUT.csv] [--table IN.csv]

FOLDER are runs of `placeto` or `seq2seq` that trained on one graph, with `policy.order` topological or random. Each policy places
the graph in topological order, and in 64 random ones, whose seeds begin at 1000: no run trained with them. Each episode of
`placeto` starts from random devices of its own, as in training. Every value is one placement over the best that the run found.
`--table` prints a CSV.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from placekit_learn.torch_policy import TorchPolicy
from placekit_placeto.placeto import Placeto
from placekit_seq2seq.seq2seq import Seq2Seq
from placekit_sim.simulator import Simulator
from scipy import stats

from placekit_core import Problem, installed
from placekit_core.cli.compose import assembled
from placekit_core.run.run_directory import find_runs, load_summary
from placekit_core.run.trained import load_policy

SEED = 1000  # of the first order
GROUPER = "placeto_cifar10"  # of the experiment
POLICIES: dict[str, type[TorchPolicy]] = {"placeto": Placeto, "seq2seq": Seq2Seq}
Row = dict[str, Any]


def placed(problem: Problem, run_dir: Path, name: str, options: dict[str, Any]) -> float:
    """Seconds per step of the placement that the policy of a run makes, with these options."""
    policy = POLICIES[name](**options)
    policy.build([problem], np.random.default_rng(0))
    load_policy(policy, str(run_dir))
    placements = policy.rollout(problem, 1, np.random.default_rng(0)).placements
    return float(Simulator().open(problem).evaluate(placements).value_s[0])


def rows_of(run_dir: Path, orders: int) -> list[Row]:
    """A row for the topological order, and for each of the others."""
    summary = load_summary(run_dir)
    config = summary.config
    presets = [f"workload={summary.workload}", f"grouper={GROUPER}", f"cluster={summary.cluster}"]
    assembly = assembled(presets, installed())
    problem = assembly.problem(assembly.programs[0])
    if problem.fingerprint != summary.programs[0].problem_fingerprint:
        raise SystemExit(f"{run_dir} placed something else than {', '.join(presets)}")
    base = {
        k: v for k, v in config["policy"].items() if k not in ("name", "order", "orders", "order_seed", "checkpoint")
    }
    rows: list[Row] = []
    for order, order_seed in [("topological", 0), *(("random", SEED + i) for i in range(orders))]:
        options = {**base, "order": order, "orders": None, "order_seed": order_seed}
        value_s = placed(problem, run_dir, summary.policy, options)
        trained_in = config["policy"]["order"]
        rows.append(
            {
                "policy": summary.policy, "trained_in": trained_in, "seed": summary.seed, "order": order,
                "order_seed": order_seed, "best_s": f"{summary.value_s:.9g}", "value_s": f"{value_s:.9g}",
            }
        )  # fmt: skip
    return rows


def table(rows: list[Row]) -> None:
    """Print how much slower than the best found, by what the policy was trained in and placed in: means and 95% intervals over
    the seeds, and how far the slowest of a seed's orders is from its fastest, in the mean."""
    found: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for r in rows:
        key = str(r["policy"]), str(r["trained_in"]), str(r["order"])
        found[key][str(r["seed"])].append(float(r["value_s"]) / float(r["best_s"]))
    print(
        f"{'policy':10}{'trained in':14}{'placed in':14}{'seeds':>6}{'over the best found':>24}{'slowest/fastest':>18}"
    )
    for (policy, trained, order), by_seed in found.items():
        means = np.array([np.mean(x) for x in by_seed.values()])
        half = stats.t.ppf(0.975, len(means) - 1) * stats.sem(means) if len(means) > 1 else np.nan
        apart = np.mean([max(x) / min(x) for x in by_seed.values()])
        print(f"{policy:10}{trained:14}{order:14}{len(means):6}{f'{means.mean():.3f} ± {half:.3f}':>24}{apart:18.3f}")


def main() -> None:
    """Place, write the rows, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--orders", type=int, default=64)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    if not arguments.folders and not arguments.table:
        parser.error("give folders of runs, or --table")
    if arguments.table:
        with arguments.table.open(newline="") as file:
            rows: list[Row] = list(csv.DictReader(file))
    else:
        rows = [row for run_dir in find_runs(arguments.folders) for row in rows_of(run_dir, arguments.orders)]
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    table(rows)


if __name__ == "__main__":
    main()
