"""What the scripts of docs/research/placeto.md share: rows of runs in a CSV, means with intervals, a policy's own placement."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from placekit_learn.torch_policy import TorchPolicy
from placekit_placeto.placeto import Placeto
from placekit_seq2seq.seq2seq import Seq2Seq
from placekit_sim.simulator import Simulator
from scipy import stats

from placekit_core import Problem, Summary, installed
from placekit_core.cli.compose import assembled
from placekit_core.run.run_directory import find_runs, load_summary
from placekit_core.run.trained import load_policy

Row = dict[str, str]
GROUPER = "placeto_cifar10"  # of the experiments
POLICIES: dict[str, type[TorchPolicy]] = {"placeto": Placeto, "seq2seq": Seq2Seq}
ORDERS = ("order", "orders", "order_seed")


def main(
    doc: str, rows_of: Callable[[list[tuple[Path, Summary]]], list[Row]], table: Callable[[list[Row]], None]
) -> None:
    """Read runs, whose rows go to `--csv`, or the rows of a CSV (`--table`), and print their table."""
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    if not given.folders and not given.table:
        parser.error("give folders of runs, or --table")
    if given.table:
        rows = read(given.table)
    else:
        rows = rows_of([(run_dir, load_summary(run_dir)) for run_dir in find_runs(given.folders)])
    if given.csv:
        write(rows, given.csv)
    table(rows)


def write(rows: list[Row], path: Path) -> None:
    """Write a CSV that `read` reads."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read(path: Path) -> list[Row]:
    """The rows of a CSV."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def interval(values: Sequence[float]) -> str:
    """The mean, with its 95% interval (t distribution) if there is more than one value."""
    if len(values) < 2:
        return f"{np.mean(values):.3f}"
    return f"{np.mean(values):.3f} ± {stats.t.ppf(0.975, len(values) - 1) * stats.sem(values):.3f}"


def problem_of(run_dir: Path, summary: Summary) -> Problem:
    """What a run of one program placed."""
    presets = [f"workload={summary.workload}", f"grouper={GROUPER}", f"cluster={summary.cluster}"]
    assembly = assembled(presets, installed())
    problem = assembly.problem(assembly.programs[0])
    if problem.fingerprint != summary.programs[0].problem_fingerprint:
        raise SystemExit(f"{run_dir} placed something else than {', '.join(presets)}")
    return problem


def placed_s(problem: Problem, run_dir: Path, summary: Summary, **order: Any) -> float:
    """Seconds per step of the placement that the policy of a run makes, with these options of orders."""
    own = {k: v for k, v in summary.config["policy"].items() if k not in ("name", "checkpoint", *ORDERS)}
    policy = POLICIES[summary.policy](**own, **order)
    policy.build([problem], np.random.default_rng(0))
    load_policy(policy, str(run_dir))
    placements = policy.rollout(problem, 1, np.random.default_rng(0)).placements
    return float(Simulator().open(problem).evaluate(placements).value_s[0])
