"""Functions that studies share: rows in CSV files, runs of an experiment, and the placement that a trained policy chooses."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from placekit_core import Problem, Registry, RunError, Summary
from placekit_core.cli.compose import assembled
from placekit_core.run.run_directory import find_runs, load_summary
from placekit_core.run.trained import load_policy
from placekit_papers.experiments import sweep
from placekit_papers.statistics import mean_and_half

Row = dict[str, str]
_ORDERS = ("order", "orders", "order_seed")


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Write a CSV that `read_rows` reads."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def interval(values: Sequence[float]) -> str:
    """The mean, with its 95% interval over the seeds if they differ."""
    mean, half = mean_and_half(values)
    return f"{mean:.3f}" + (f"±{half:.3f}" if half else "")


def trained_runs(options: Sequence[Sequence[str]], folder: Path) -> Iterator[tuple[Path, Summary]]:
    """Run sweeps of policies that train on one graph, and return their runs."""
    for i, words in enumerate(options):
        sweep(words, folder / str(i))
    for run_dir in find_runs([folder / str(i) for i in range(len(options))]):
        yield run_dir, load_summary(run_dir)


def problem_of(run_dir: Path, summary: Summary, registry: Registry) -> Problem:
    """Build the problem of a run of one program again. Raises RunError if it has changed."""
    presets = [f"workload={summary.workload}", "grouper=placeto_cifar10", f"cluster={summary.cluster}"]
    assembly = assembled(presets, registry)
    problem = assembly.problem(assembly.programs[0])
    if problem.fingerprint != summary.programs[0].problem_fingerprint:
        raise RunError(f"{run_dir} placed another program than {', '.join(presets)}", "run it again")
    return problem


def placed_s(problem: Problem, run_dir: Path, summary: Summary, registry: Registry, **order: Any) -> float:
    """Seconds of a step with the placement that a run's trained policy chooses; `order` are options that replace its own."""
    own = {k: v for k, v in summary.config["policy"].items() if k not in ("name", "checkpoint", *_ORDERS)}
    policy = registry.build("policy", summary.policy, {**own, **order})
    policy.build([problem], np.random.default_rng(0))
    load_policy(policy, str(run_dir))
    placements = policy.rollout(problem, 1, np.random.default_rng(0)).placements
    return float(registry.build("backend", "simulator", {}).open(problem).evaluate(placements).value_s[0])
