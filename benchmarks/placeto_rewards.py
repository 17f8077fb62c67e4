"""Intermediate and terminal rewards of `placeto` (Addanki et al. 2019, appendix A.4).

    placekit run experiment=placeto_rewards ...        (see docs/research/placeto.md)
    python benchmarks/placeto_rewards.py FOLDER ... [--csv OUT.csv] [--table IN.csv]

FOLDER are runs of `placeto` with trainer `stepwise`, each on one graph. A row for each network, kind of rewards and budget:
episodes that were learned from and evaluations (medians over the seeds; the budget ends within the last batch, which is not
learned from), seconds of the clock (median), and two values in seconds per training step,
with 95% intervals over the seeds: the best placement found, and the one that the trained policy makes itself.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
from placeto_rows import Row, interval, main, placed_s, problem_of

from placekit_core import Summary


def rows_of(runs: list[tuple[Path, Summary]]) -> list[Row]:
    """A row for each run."""
    rows = []
    for run_dir, r in runs:
        trainer = r.config["trainer"]
        with (run_dir / "history.csv").open(newline="") as file:
            batches = list(csv.DictReader(file))[:-1]  # the last row is the policy's own placement
        rows.append(
            {
                "network": r.workload, "rewards": trainer["rewards"], "budget": str(r.config["budget"]["evaluations"]),
                "seed": str(r.seed), "episodes": str((len(batches) - 1) * trainer["samples"]), "evaluations": str(r.evaluations),
                "seconds": f"{r.seconds:.3g}", "best_s": f"{r.value_s:.9g}",
                "own_s": f"{placed_s(problem_of(run_dir, r), run_dir, r):.9g}",
            }
        )  # fmt: skip
    return rows


def table(rows: list[Row]) -> None:
    """Print it."""
    found: dict[tuple[str, str, int], list[Row]] = defaultdict(list)
    for r in rows:
        found[r["network"], r["rewards"], int(r["budget"])].append(r)
    numbers = f"{'seeds':>6}{'episodes':>10}{'evaluations':>13}{'seconds':>9}"
    print(f"{'network':14}{'rewards':14}{numbers}{'best found':>17}{'its own':>17}")
    for (network, rewards, _), of in sorted(found.items()):
        episodes, evaluations, seconds = (
            np.median([float(r[k]) for r in of]) for k in ("episodes", "evaluations", "seconds")
        )
        best, own = (interval([float(r[k]) for r in of]) for k in ("best_s", "own_s"))
        print(
            f"{network:14}{rewards:14}{len(of):6}{episodes:10.0f}{evaluations:13.0f}{seconds:9.0f}{best:>17}{own:>17}"
        )


if __name__ == "__main__":
    main(__doc__, rows_of, table)
