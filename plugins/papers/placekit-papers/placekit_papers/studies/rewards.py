"""Rewards only for the last step of Placeto's episodes, or for every step (Addanki et al. 2019, appendix A.4).

The table has a row for each kind of rewards and budget: episodes and seconds (medians over the seeds), and the seconds of a
step under the best placement found and under the one that the trained policy itself chooses.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np

from placekit_core import Registry
from placekit_papers.runs import DATA
from placekit_papers.studies.rows import Row, interval, placed_s, problem_of, read_rows, trained_runs, write_rows

_BUDGETS = {"terminal": (4_000, 16_000), "intermediate": (170_000,)}
"""Budgets in evaluations. With 4,000 and 170,000, both kinds have the same number of episodes; 16,000 take as long as 170,000."""


def run(folder: Path, registry: Registry) -> list[str]:
    """Train, write `folder`/rows.csv, and return the table."""
    options = [
        ["experiment=placeto_rewards", f"trainer.rewards={kind}", f"budget.evaluations={budget}"]
        for kind, budgets in _BUDGETS.items()
        for budget in budgets
    ]
    rows: list[Row] = []
    for run_dir, summary in trained_runs(options, folder):
        trainer = summary.config["trainer"]
        with (run_dir / "history.csv").open(newline="") as file:
            batches = list(csv.DictReader(file))[:-1]  # the last row is the policy's own placement
        own_s = placed_s(problem_of(run_dir, summary, registry), run_dir, summary, registry)
        rows.append(
            {
                "network": summary.workload, "rewards": trainer["rewards"],
                "budget": str(summary.config["budget"]["evaluations"]), "seed": str(summary.seed),
                "episodes": str((len(batches) - 1) * trainer["samples"]), "evaluations": str(summary.evaluations),
                "seconds": f"{summary.seconds:.3g}", "best_s": f"{summary.value_s:.9g}", "own_s": f"{own_s:.9g}",
            }
        )  # fmt: skip
    write_rows(rows, folder / "rows.csv")
    return table(rows)


def show() -> list[str]:
    """The table of the recorded rows."""
    return table(read_rows(DATA / "placeto_rewards.csv"))


def table(rows: list[Row]) -> list[str]:
    """A line for each kind of rewards and budget."""
    found: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for r in rows:
        found[r["rewards"], int(r["budget"])].append(r)
    lines = [f"{'rewards':14}{'budget':>8}{'episodes':>10}{'seconds':>9}{'best found':>17}{'its own':>17}"]
    for (kind, budget), of in sorted(found.items()):
        episodes, seconds = (np.median([float(r[k]) for r in of]) for k in ("episodes", "seconds"))
        best, own = (interval([float(r[k]) for r in of]) for k in ("best_s", "own_s"))
        lines.append(f"{kind:14}{budget:8}{episodes:10.0f}{seconds:9.0f}{best:>17}{own:>17}")
    return lines
