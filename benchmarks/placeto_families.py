"""Unseen graphs of Placeto's families (Addanki et al. 2019, figure 5): one placement of each, or training on it.

    python benchmarks/placeto_families.py FAMILY ... [--seeds 6] [--optimised 4] [--work FOLDER] [--png OUT.png] [--table]

FAMILY is cifar10, ptb or nmt. Rows go to docs/research/placeto_FAMILY.csv as they come; rows that are there are not run again.
`--table` only prints what is there. All on simulated `k80x4`, in the family's groups. For each seed:

- single_gpu, random, untrained: one placement of each test graph; `untrained` is `placeto` before it has learned anything.
- placeto zero-shot, seq2seq zero-shot: trained on the 16 training graphs, then one placement of each test graph.
- placeto optimised: the trained policy goes on learning on one test graph. On the first `--optimised` test graphs.
- seq2seq optimised: learns on one test graph, from nothing. On the same graphs.
- search: the default search on one test graph, with as many evaluations.
- search, same time: the default search on each test graph, for as many seconds as the trained policy takes to place it.

Values are over that of a single GPU. `seconds` are of the clock, for the whole call.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import placekit_core
from placekit_core import Program, Result
from placekit_core.run.run_directory import RESULT

FAMILIES = ("cifar10", "ptb", "nmt")
CLUSTER = "k80x4"
TRAINING = {"placeto": 4_000, "seq2seq": 16_000}
"""Evaluations on the 16 training graphs. A placement of `seq2seq` costs a quarter of the time of one of `placeto`."""
OPTIMISED = 2_000
RESEARCH = Path(__file__).parents[1] / "docs" / "research"


class Rows:
    """The rows of a family, in its file."""

    def __init__(self, family: str) -> None:
        self.family, self.path = family, RESEARCH / f"placeto_{family}.csv"
        self.rows: list[dict[str, str]] = []
        if self.path.is_file():
            with self.path.open(newline="") as file:
                self.rows = list(csv.DictReader(file))

    def place(self, programs: list[Program], policy: Any, budget: Any, seed: int, **more: Any) -> tuple[Result, float]:
        """What was found, and in how many seconds."""
        start = time.perf_counter()
        result = placekit_core.place(
            programs, grouper=f"placeto_{self.family}", cluster=CLUSTER, policy=policy, budget=budget, seed=seed, **more
        )
        return result, time.perf_counter() - start

    def has(self, method: str, seed: int, programs: list[Program]) -> bool:
        """Whether the rows of all programs are there."""
        found = {(r["method"], r["seed"], r["graph"]) for r in self.rows}
        return {(method, str(seed), p.graph.name) for p in programs} <= found

    def run(
        self,
        method: str,
        test: list[Program],
        policy: Any,
        budget: Any,
        seed: int,
        train: Sequence[Program] = (),
        **more: Any,
    ) -> None:
        """Run it, and append a row for each of the graphs to test, unless their rows are there."""
        if self.has(method, seed, test):
            return
        result, seconds = self.place([*train, *test], policy, budget, seed, **more)
        names = {p.graph.name for p in test}
        found = [
            {
                "method": method, "seed": str(seed), "graph": p.program, "value_s": f"{p.value_s:.9g}",
                "evaluations": str(p.evaluations), "seconds": f"{seconds:.3g}",
            }
            for p in result.summary.programs if p.program in names
        ]  # fmt: skip
        new = not self.path.is_file()
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerows(found)
        self.rows += found
        mean = np.mean([float(r["value_s"]) for r in found])
        print(f"{self.family}, {method}, seed {seed}: {mean:.4f} s, in {seconds:.1f} s", flush=True)

    def relative(self) -> dict[str, dict[int, dict[str, float]]]:
        """Values over that of a single GPU, by method, seed and graph."""
        single = {r["graph"]: float(r["value_s"]) for r in self.rows if r["method"] == "single_gpu"}
        found: dict[str, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
        for r in self.rows:
            found[r["method"]][int(r["seed"])][r["graph"]] = float(r["value_s"]) / single[r["graph"]]
        return found


def measure(family: str, seeds: int, optimised: int, work: Path) -> None:
    """All runs of a family whose rows are missing."""
    rows = Rows(family)
    programs = placekit_core.load_programs(f"placeto_{family}")
    train, test = ([p for p in programs if p.split == split] for split in ("train", "test"))
    alone = [replace(p, split=None) for p in test]
    rows.run("single_gpu", alone, "single_gpu", 1, 0)
    for seed in range(seeds):
        rows.run("random", alone, "random_search", 1, seed)
        rows.run("untrained", alone, "placeto", 1, seed, trainer="none")
        for policy, evaluations in TRAINING.items():
            folder = work / f"{family}-{policy}-{seed}"
            resume = folder.is_dir() and not (folder / RESULT).is_file()
            if not resume and not rows.has(f"{policy} zero-shot", seed, test):
                shutil.rmtree(folder, ignore_errors=True)
            rows.run(f"{policy} zero-shot", test, policy, evaluations, seed, train, run_dir=folder, resume=resume)
    for seed in range(seeds):
        trained = {"name": "placeto", "checkpoint": str(work / f"{family}-placeto-{seed}")}
        for p in alone:
            if not rows.has("search, same time", seed, [p]):
                _, seconds = rows.place([p], trained, 1, seed, trainer="none")
                rows.run("search, same time", [p], None, {"seconds": seconds}, seed)
        for p in alone[:optimised]:
            rows.run("search", [p], None, OPTIMISED, seed)
            rows.run("seq2seq optimised", [p], "seq2seq", OPTIMISED, seed)
            rows.run("placeto optimised", [p], trained, OPTIMISED, seed, trainer="stepwise")


def table(family: str) -> None:
    """Print the methods: median over the test graphs of the mean over seeds, and on the optimised graphs alone."""
    found = Rows(family).relative()
    few = set.intersection(*(set(by) for by in found.get("placeto optimised", {0: {}}).values()))
    print(f"{family}: value over a single GPU, median of the graphs' means over seeds")
    print(f"  {'':22}{'seeds':>6}{'graphs':>8}{'median':>9}{f'on {len(few)}':>9}")
    for method, seeds in found.items():
        graphs = sorted({graph for by in seeds.values() for graph in by})
        means = {g: np.mean([by[g] for by in seeds.values() if g in by]) for g in graphs}
        same = [means[g] for g in few if g in means]
        print(
            f"  {method:22}{len(seeds):6}{len(graphs):8}{np.median(list(means.values())):9.3f}"
            f"{np.median(same) if same else np.nan:9.3f}"
        )


def draw(families: list[str], path: Path) -> None:
    """The share of test graphs whose value, the mean over seeds, is at most x times that of a single GPU."""
    figure = Figure(figsize=(4.2 * len(families), 3.4), layout="constrained")
    for axes, family in zip(np.atleast_1d(figure.subplots(1, len(families))), families, strict=True):
        for method, seeds in Rows(family).relative().items():
            graphs = sorted({graph for by in seeds.values() for graph in by})
            values = np.sort([np.mean([by[g] for by in seeds.values() if g in by]) for g in graphs])
            axes.step(
                [*values, values[-1]],
                [*np.linspace(0, 1, len(values), endpoint=False), 1.0],
                where="post",
                label=method,
            )
        axes.set(title=family, xlabel="time of a step / single GPU", ylabel="share of test graphs", xlim=(0, 2))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize="small")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run what is missing, print the tables, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("families", nargs="+", choices=FAMILIES)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--optimised", type=int, default=4, help="test graphs that are trained on")
    parser.add_argument("--work", type=Path, default=Path("placeto_families"), help="folder of the trained policies")
    parser.add_argument("--png", type=Path)
    parser.add_argument("--table", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    for family in arguments.families:
        if not arguments.table:
            measure(family, arguments.seeds, arguments.optimised, arguments.work)
        table(family)
    if arguments.png:
        draw(arguments.families, arguments.png)


if __name__ == "__main__":
    main()
