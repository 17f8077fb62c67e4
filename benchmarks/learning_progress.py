"""How fast what a run evaluates gets, in fifths of the run: mean milliseconds of all its placements.

    python benchmarks/learning_progress.py SWEEP_DIR ...

A row per run: policy, seed, evaluations on the proxy, five means.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from pathlib import Path

from placekit_core.run.run_directory import find_runs, load_summary


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", metavar="SWEEP_DIR", nargs="+", type=Path)
    for run_dir in find_runs(parser.parse_args().folders):
        run = load_summary(run_dir)
        with (run_dir / "history.csv").open(newline="") as file:
            ms = [1e3 * float(row["mean_s"]) for row in csv.DictReader(file)]
        n = len(ms)
        fifths = (statistics.mean(ms[i * n // 5 : (i + 1) * n // 5]) for i in range(5))
        print(run.policy, run.seed, run.proxy_evaluations, *(f"{x:.2f}" for x in fifths))


if __name__ == "__main__":
    main()
