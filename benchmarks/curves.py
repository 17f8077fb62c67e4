"""Curves of sweeps: best and average value against evaluations, the median over seeds.

    python benchmarks/curves.py FOLDER ... [--points 4] [--csv OUT.csv] [--plot OUT.svg]
    python benchmarks/curves.py --from IN.csv --plot OUT.svg    draws a table that was written before

*best* is the best so far. *average* is the mean of what was evaluated since the point before; a placement that does not
fit counts as the run's failing signal. Searches that evaluate in compiled loops report the latter as well.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from placekit_report import plots
from placekit_report.compare_labels import labels
from seeds import CODE

from placekit_core import installed
from placekit_core.contracts.units import seconds
from placekit_core.run.run_directory import find_runs, load_summary

Key = tuple[str, str, str]
Curve = tuple[str, str, str, int, NDArray[np.float64]]
"""Workload, cluster, policy, seeds, and [points, 3] as in `curve`."""


def curve(run_dir: Path, points: int) -> NDArray[np.float64]:
    """[points, 3] evaluations, best so far and average since the last point (seconds) at equal parts of the run."""
    with (run_dir / "history.csv").open() as file:
        rows = [[float(r[k] or "nan") for k in ("evaluations", "mean_s", "best_s")] for r in csv.DictReader(file)]
    made, mean, best = np.array(rows).T
    weight = np.diff(made, prepend=0.0)
    found, since = [], 0
    for limit in made[-1] * np.arange(1, points + 1) / points:
        until = int(np.searchsorted(made, limit, "right"))
        part = slice(since, max(until, since + 1))
        average = float((mean[part] * weight[part]).sum() / weight[part].sum())
        found.append([made[part.stop - 1], best[part.stop - 1], average])
        since = min(part.stop, len(made) - 1)
    return np.array(found)


def main() -> None:
    """Print a row per workload, machine and policy."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--points", type=int, default=4)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--from", type=Path, dest="written")
    arguments = parser.parse_args()
    if bool(arguments.folders) == bool(arguments.written):
        parser.error("give the folders of the runs, or a table with --from")
    if arguments.written:
        draw(arguments.plot, read(arguments.written))
        return
    groups: dict[Key, list[NDArray[np.float64]]] = defaultdict(list)
    runs = [(run_dir, load_summary(run_dir)) for run_dir in find_runs(arguments.folders)]
    for (run_dir, r), text in zip(runs, labels([r for _, r in runs], installed()), strict=True):
        label = CODE.sub("", text)
        if r.status == "finished":
            groups[r.workload, r.cluster, label].append(curve(run_dir, arguments.points))
    table = []
    for (workload, cluster, policy), curves in sorted(groups.items()):
        median = np.median(np.array(curves), axis=0)
        table.append((workload, cluster, policy, len(curves), median))
    heads = [f"{v} {100 * (i + 1) // arguments.points}%" for v in ("best", "average") for i in range(arguments.points)]
    print(" | ".join(["workload", "cluster", "policy", "seeds", *heads]))
    for workload, cluster, policy, seeds, m in table:
        values = [seconds(float(x)) for x in (*m[:, 1], *m[:, 2])]
        print(" | ".join([workload, cluster, policy, str(seeds), *values]))
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["workload", "cluster", "policy", "seeds", "evaluations", "best_s", "average_s"])
            for workload, cluster, policy, seeds, m in table:
                out.writerows([workload, cluster, policy, seeds, *(f"{x:.6g}" for x in row)] for row in m)
    if arguments.plot:
        draw(arguments.plot, table)


def read(path: Path) -> list[Curve]:
    """The curves of a table that `--csv` wrote."""
    rows: dict[tuple[str, str, str, int], list[list[float]]] = defaultdict(list)
    with path.open() as file:
        for r in csv.DictReader(file):
            key = r["workload"], r["cluster"], r["policy"], int(r["seeds"])
            rows[key].append([float(r[name]) for name in ("evaluations", "best_s", "average_s")])
    return [(*key, np.array(values)) for key, values in rows.items()]


def draw(path: Path, table: list[Curve]) -> None:
    """A panel per workload and machine: the average as a thick line with markers, the best so far as a thin one."""
    found = sorted({row[:2] for row in table})
    policies = sorted({row[2] for row in table})
    columns = min(3, len(found))
    with plots.style():
        fig = plots.figure(4.2 * columns, 3.0 * -(-len(found) // columns) + 0.6)
        axes = plots.panels(fig, len(found), columns)
        for ax, panel in zip(axes, found, strict=True):
            for policy, m in [(row[2], row[4]) for row in table if row[:2] == panel]:
                kind = plots.series(policies.index(policy))
                ax.plot(m[:, 0], m[:, 2], label=policy.removeprefix("post policy.update="), **kind)
                ax.plot(m[:, 0], m[:, 1], color=kind["color"], linestyle=kind["linestyle"], linewidth=0.8)
            ax.set(title=", ".join(panel), xlabel="evaluations", ylabel="seconds per step, simulated", ylim=(0, None))
        handles, names = axes[0].get_legend_handles_labels()
        fig.legend(handles, names, loc="outside lower center", ncols=min(len(names), 3 * columns))
    plots.save(fig, path)


if __name__ == "__main__":
    main()
