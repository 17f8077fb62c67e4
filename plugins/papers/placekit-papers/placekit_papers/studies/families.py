"""Unseen graphs of Placeto's families (Addanki et al. 2019, figure 5): one placement of each, or training on it.

All on simulated `k80x4`, in the family's groups. For each seed:

- single_gpu, heft, etf, random, untrained: one placement of each test graph; `untrained` is `placeto` before it has learned.
- placeto zero-shot, seq2seq zero-shot: trained on the 16 training graphs, then one placement of each test graph.
- placeto zero-shot from one GPU: the same policy, whose episode starts with all groups on one GPU (`start=one_device`).
- placeto optimised, seq2seq optimised: learns on one test graph, from nothing. On the first four test graphs.
- search: the default search on one test graph, with as many evaluations. On the same graphs.
- search, one second: the default search on each test graph.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import placekit_core
from placekit_core import Program, Registry
from placekit_papers.runs import DATA
from placekit_papers.studies.rows import Row, interval, read_rows

FAMILIES = ("cifar10", "nmt", "ptb")
_CLUSTER = "k80x4"
_GROUPERS: dict[str, dict[str, Any]] = {  # of the presets of the workloads
    "cifar10": {"name": "colocation", "keep_branches": True, "max_groups": 128},
    "ptb": {"name": "colocation", "max_groups": 128},
    "nmt": {"name": "colocation", "max_groups": 160},
}
_SEEDS, _OPTIMISED_GRAPHS = 6, 4
_TRAINING, _OPTIMISED = 8_000, 2_000
"""Evaluations on the 16 training graphs, and on one test graph."""
_FROM_ONE = "placeto zero-shot from one GPU"
_STILL = {"name": "stepwise", "learning_rate": 1e-9, "learning_rate_end": 1e-9}


class Family:
    """The graphs of a family, and the rows of a CSV, which grows as runs end: rows that are there are not run again."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.rows: list[Row] = read_rows(path) if path.is_file() else []
        programs = placekit_core.load_programs(f"placeto_{name}")
        self.train, self.test = ([p for p in programs if p.split == split] for split in ("train", "test"))
        self.alone = [replace(p, split=None) for p in self.test]

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
        """Place graphs, and append a row for each of those to test."""
        known = {(r["method"], r["seed"], r["graph"]) for r in self.rows}
        names = {p.graph.name for p in test}
        if {(method, str(seed), name) for name in names} <= known:
            return
        grouper = _GROUPERS[self.name]
        result = placekit_core.place(
            [*train, *test],
            grouper=grouper,
            cluster=_CLUSTER,
            policy=policy,
            budget=budget,
            seed=seed,
            baselines=[],
            **more,
        )
        found = [
            {
                "method": method, "seed": str(seed), "graph": p.program, "value_s": f"{p.value_s:.9g}",
                "evaluations": str(p.evaluations), "seconds": f"{p.seconds:.3g}",
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


def run(folder: Path, registry: Registry) -> list[str]:
    """Train and place all three families; the rows are in `folder`."""
    for name in FAMILIES:
        measure(Family(name, folder / f"placeto_{name}.csv"), folder)
    return [line for name in FAMILIES for line in table(name, read_rows(folder / f"placeto_{name}.csv"))]


def show() -> list[str]:
    """The tables of the recorded rows."""
    return [line for name in FAMILIES for line in table(name, read_rows(DATA / f"placeto_{name}.csv"))]


def measure(family: Family, folder: Path, seeds: Iterable[int] = range(_SEEDS)) -> None:
    """All runs of a family whose rows are missing."""
    for policy in ("single_gpu", "heft", "etf"):
        family.run(policy, family.alone, policy, 1, 0)
    for seed in seeds:
        family.run("random", family.alone, "random", 1, seed)
        family.run("untrained", family.test, "placeto", len(family.train), seed, family.train, trainer=_STILL)
        for policy in ("placeto", "seq2seq"):
            run_dir = folder / f"{family.name}-{policy}-{seed}"
            resume = run_dir.is_dir()
            family.run(
                f"{policy} zero-shot",
                family.test,
                policy,
                _TRAINING,
                seed,
                family.train,
                run_dir=run_dir,
                resume=resume,
            )
        trained = {
            "name": "placeto",
            "checkpoint": str(folder / f"{family.name}-placeto-{seed}"),
            "start": "one_device",
        }
        family.run(_FROM_ONE, family.alone, trained, 1, seed, trainer="none")
        for program in family.alone:
            family.run("search, one second", [program], None, {"seconds": 1}, seed)
        for program in family.alone[:_OPTIMISED_GRAPHS]:
            family.run("search", [program], None, _OPTIMISED, seed)
            for policy in ("placeto", "seq2seq"):
                family.run(f"{policy} optimised", [program], policy, _OPTIMISED, seed)


def table(name: str, rows: list[Row]) -> list[str]:
    """By method, the time over that of a single GPU: mean over the graphs ± 95% over the seeds."""
    single = {r["graph"]: float(r["value_s"]) for r in rows if r["method"] == "single_gpu"}
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for r in rows:
        found[r["method"]][r["seed"]].append(float(r["value_s"]) / single[r["graph"]])
    lines = [f"{name + ': time over a single GPU':36}{'seeds':>6}{'graphs':>8}{'mean ± 95%':>17}"]
    for method, by_seed in found.items():
        means = [float(np.mean(x)) for x in by_seed.values()]
        graphs = len(next(iter(by_seed.values())))
        lines.append(f"  {method:34}{len(means):6}{graphs:8}{interval(means):>17}")
    return lines
