"""Learning curves of trainer `asynchronous` at equal evaluations, beside those of `synchronous: true` and of one process.

    python benchmarks/ray_curves.py [--evaluations N] [--seeds 3] [--csv OUT.csv] [--plot OUT.svg] [--write]
    python benchmarks/ray_curves.py --from IN.csv --plot OUT.svg    draws a table that was written before

seq2seq with the papers' manual groups on four simulated K80 GPUs and the CPU, as in experiment=mirhoseini2017_learned.
*average* is the mean of what was evaluated since the point before, *best* the best so far; both are means over the seeds.
The staleness of a gradient is how many updates others made between reading the parameters and applying it. `--write` keeps
the report in benchmarks/results/ray_curves.md.
"""

from __future__ import annotations

import argparse
import csv
import logging
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import ray
from curves import curve
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from placekit_ray.asynchronous import Asynchronous
from placekit_report import plots
from ray_workers import machine

from placekit_core import Program, Trainer, installed
from placekit_core.cli.compose import assembled
from placekit_core.cli.sweep import programs
from placekit_core.contracts.units import seconds
from placekit_core.run import pipeline
from placekit_core.run.assembly import Assembly, PythonObjects

RESULT = Path(__file__).parent / "results" / "ray_curves.md"
WORKLOADS = ("rnnlm", "inception_v3")
CLUSTER, CONTROLLERS = "k80x4", 4
WAYS = {"asynchronous": False, "synchronous": True, "one process": None}
POINTS = 10
STALENESS = "staleness"


@dataclass
class Found:
    """The runs of a workload in one way: curves [seeds, points, 3] as in `curves.curve`, and how often each staleness was."""

    curves: list[NDArray[np.float64]] = field(default_factory=list)
    staleness: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    took_s: list[float] = field(default_factory=list)

    @property
    def mean(self) -> NDArray[np.float64]:
        """[points, 3] over the seeds."""
        mean: NDArray[np.float64] = np.mean(np.array(self.curves), axis=0)
        return mean


Table = dict[tuple[str, str], Found]
"""By workload and way."""


def run(workload: str, loaded: Sequence[Program], way: str, evaluations: int, seed: int, found: Found) -> None:
    """One training, added to `found`."""
    registry, synchronous = installed(), WAYS[way]
    trainer: Trainer | None = None
    if synchronous is not None:
        trainer = Asynchronous(controllers=CONTROLLERS, workers=1, worker_cpus=0.5, synchronous=synchronous)
    arguments = [
        f"workload={workload}", "grouper=manual", f"cluster={CLUSTER}", "policy=seq2seq", f"seed={seed}", "baselines=[]",
        f"budget.evaluations={evaluations}", "log=[csv]", *(["trainer=asynchronous"] if trainer else []),
    ]  # fmt: skip
    config = assembled(arguments, registry).config
    with tempfile.TemporaryDirectory() as folder:
        objects = PythonObjects(programs=loaded, trainer=trainer)
        found.took_s.append(pipeline.run(Assembly(config, registry, objects), folder).summary.seconds)
        found.curves.append(curve(Path(folder), POINTS))
    if isinstance(trainer, Asynchronous):
        for late, count in trainer.staleness.items():
            found.staleness[late] += count


def measured(evaluations: int, seeds: int) -> Table:
    """All runs; the ways take turns, so that all see the same noise of the machine."""
    table: Table = defaultdict(Found)
    for workload in WORKLOADS:
        registry = installed()
        loaded = programs(assembled([f"workload={workload}"], registry).config, registry)
        for seed in range(seeds):
            for way in WAYS:
                run(workload, loaded, way, evaluations, seed, table[workload, way])
                print(f"{workload}, {way}, seed {seed}: {table[workload, way].took_s[-1]:.1f} s", flush=True)
    return table


def write_csv(path: Path, table: Table) -> None:
    """A row per point of a curve, and per staleness."""
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["workload", "training", "seed", "evaluations", "best_s", "average_s"])
        for (workload, way), found in table.items():
            for seed, points in enumerate(found.curves):
                out.writerows([workload, way, seed, *(f"{x:.6g}" for x in point)] for point in points)
        for (workload, way), found in table.items():
            out.writerows(
                [workload, way, STALENESS, late, count, ""] for late, count in sorted(found.staleness.items())
            )


def read_csv(path: Path) -> Table:
    """What `write_csv` wrote."""
    rows: dict[tuple[str, str], dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    table: Table = defaultdict(Found)
    with path.open(newline="") as file:
        for r in csv.DictReader(file):
            key = r["workload"], r["training"]
            if r["seed"] == STALENESS:
                table[key].staleness[int(r["evaluations"])] = int(r["best_s"])
            else:
                rows[key][r["seed"]].append([float(r[name]) for name in ("evaluations", "best_s", "average_s")])
    for key, seeds in rows.items():
        table[key].curves = [np.array(points) for points in seeds.values()]
    return table


def draw(path: Path, table: Table) -> None:
    """Above the curves of each workload, the average thick with markers, the best thin; below how late gradients were."""
    workloads = sorted({key[0] for key in table}, reverse=True)
    with plots.style():
        fig = plots.figure(4.2 * len(workloads), 5.4)
        axes = plots.panels(fig, 2 * len(workloads), len(workloads))
        for ax, below, workload in zip(axes, axes[len(workloads) :], workloads, strict=False):
            for i, way in enumerate(WAYS):
                kind, found = plots.series(i), table[workload, way]
                m = found.mean
                ax.plot(m[:, 0], m[:, 2], label=way, **kind)
                ax.plot(m[:, 0], m[:, 1], color=kind["color"], linestyle=kind["linestyle"], linewidth=0.8)
            ax.set(title=f"{workload}, {CLUSTER}", xlabel="evaluations", ylabel="seconds per step, simulated")
            ax.set_ylim(0, None)
            bars(below, table, workload)
        handles, names = axes[0].get_legend_handles_labels()
        fig.legend(handles, names, loc="outside lower center", ncols=len(WAYS))
    plots.save(fig, path)


def bars(ax: Axes, table: Table, workload: str) -> None:
    """The share of gradients of each staleness; where controllers wait for each other, it is 0."""
    found = table[workload, next(iter(WAYS))].staleness
    total = sum(found.values())
    ax.bar(list(found), [count / total for count in found.values()], 0.8, color=plots.series(0)["color"])
    ax.set(xlabel="staleness, updates", ylabel="share of gradients", ylim=(0, 1))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def report(table: Table) -> list[str]:
    """The lines of the report's table."""
    lines = [
        "| workload | training | average, first tenth | average, last tenth | best | least to most over seeds | to one process"
        " | staleness, mean | most | s |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for (workload, way), found in table.items():
        m, last = found.mean, [c[-1, 1] for c in found.curves]
        base = table[workload, "one process"].mean[-1, 1]
        total = sum(found.staleness.values())
        late = sum(k * n for k, n in found.staleness.items()) / total if total else 0.0
        cells = [
            workload, way, seconds(float(m[0, 2])), seconds(float(m[-1, 2])), seconds(float(m[-1, 1])),
            f"{seconds(float(min(last)))} to {seconds(float(max(last)))}", f"{m[-1, 1] / base:.3f}",
            *((f"{late:.2f}", max(found.staleness)) if total else ("", "")), f"{np.median(found.took_s):.1f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return lines


def main() -> None:
    """Train, or read the table; print it; draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--evaluations", type=int, default=1600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--from", type=Path, dest="written")
    parser.add_argument("--write", action="store_true", help=f"into {RESULT.name}")
    given = parser.parse_args()
    if given.written:
        draw(given.plot, read_csv(given.written))
        return
    ray.init(
        "local", num_cpus=CONTROLLERS + 1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
    )
    table = measured(given.evaluations, given.seeds)
    lines = [
        f"# Ray: learning curves of asynchronous training\n\n`python benchmarks/ray_curves.py --evaluations {given.evaluations}"
        f" --seeds {given.seeds} --write`: seq2seq with REINFORCE, 10 placements per gradient, {CONTROLLERS} controllers of one"
        f" worker; {CLUSTER}, manual groups; {given.evaluations} evaluations in each run, means over {given.seeds} seeds. Where"
        f" controllers wait for each other, {CONTROLLERS} gradients make one update. Seconds of a run are their median.\n",
        *report(table),
        f"\n{machine()}",
    ]
    print("\n".join(lines))
    if given.csv:
        write_csv(given.csv, table)
    if given.plot:
        draw(given.plot, table)
    if given.write:
        RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
