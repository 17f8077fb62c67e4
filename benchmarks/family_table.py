"""Runs over a family of graphs, beside each other: the graphs to train on, then the graphs to test on.

    python benchmarks/family_table.py RUN_DIR ...

Prints the mean seconds per step, the median evaluations per graph, and on how many graphs each run is ahead of all runs
above it.
"""

from __future__ import annotations

import argparse
import statistics
from math import inf
from pathlib import Path

from placekit_core.run.run_directory import load_summary


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", metavar="RUN_DIR", nargs="+", type=Path)
    runs = {str(folder): load_summary(folder).programs for folder in parser.parse_args().runs}
    for split in ("train", "test"):
        graphs = [i for i, p in enumerate(next(iter(runs.values()))) if p.split == split]
        best = dict.fromkeys(graphs, inf)
        print(f"{split}: {len(graphs)} graphs")
        print(f"  {'':10}{'mean s':>8}{'evaluations':>13}{'ahead of all above':>20}")
        for folder, found in runs.items():
            values = {i: found[i].value_s for i in graphs}
            seconds = {i: inf if value is None else value for i, value in values.items()}
            evaluations = statistics.median(found[i].evaluations for i in graphs)
            ahead = sum(seconds[i] < best[i] for i in graphs)
            best = {i: min(best[i], seconds[i]) for i in graphs}
            print(f"  {folder:10}{statistics.mean(seconds.values()):8.3f}{evaluations:13.0f}{ahead:20d}")


if __name__ == "__main__":
    main()
