"""Unseen graphs of Placeto's families (Addanki et al. 2019, figure 5 and section 4.3): one placement of each, or training on it.

    python benchmarks/placeto_families.py FAMILY ... [--seeds 6] [--few 4] [--work FOLDER] [--ablations] [--plot SVG] [--table]

FAMILY is cifar10, ptb or nmt. Rows go to docs/research/placeto_FAMILY.csv as they come; rows that are there are not run again.
`--table` only prints what is there. All on simulated `k80x4`, in the family's groups. For each seed:

- single_gpu, heft, etf, random, untrained: one placement of each test graph; `untrained` is `placeto` before it has learned.
- placeto zero-shot, seq2seq zero-shot: trained on the 16 training graphs, then one placement of each test graph.
- placeto zero-shot from one GPU: the same policy, whose one episode starts with all groups on one GPU (`start=one_device`).
- placeto optimised, seq2seq optimised: learns on one test graph, from nothing. On the first `--few` test graphs.
- placeto fine-tuned: the trained policy goes on learning on one test graph. On the same graphs.
- shipped placeto, best of draws: the shipped policy draws as many placements, and learns nothing from them. On the same
  graphs. It is one trained policy, so its interval covers the draws only.
- search: the default search on one test graph, with as many evaluations. On the same graphs.
- search, one second: the default search on each test graph. A trained policy places it in a twentieth of that.

`--ablations` (cifar10, nmt) are further methods, zero-shot after fewer evaluations, in
docs/research/placeto_FAMILY_ablations.csv. Values are over that of a single GPU. `seconds` are of the clock, for the search
on that graph alone.
"""

from __future__ import annotations

import argparse
import csv
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from placekit_report import plots
from placeto_rows import Row, interval, read

import placekit_core
from placekit_core import Program, Result
from placekit_core.contracts.result import ProgramResult
from placekit_core.run.run_directory import RESULT, load_summary

CLUSTER = "k80x4"
GROUPERS: dict[str, dict[str, Any]] = {  # of the presets of the workloads
    "cifar10": {"name": "colocation", "keep_branches": True, "max_groups": 128},
    "ptb": {"name": "colocation", "max_groups": 128},
    "nmt": {"name": "colocation", "max_groups": 160},
}
TRAINING, OPTIMISED, ABLATION = 8_000, 2_000, 4_000
"""Evaluations on the 16 training graphs, on one test graph, and on the training graphs for an ablation."""
PLACETO, PAPER = {"name": "placeto"}, {"name": "placeto", "head": "paper"}
SEQ2SEQ, STEPWISE = {"name": "seq2seq"}, {"name": "stepwise"}
AGGREGATOR, PARTITIONER = {"rounds": 0, "pooling": "graph"}, {"rounds": 0}
Ablations = dict[str, tuple[dict[str, Any], dict[str, Any] | None]]
ARCHITECTURE: Ablations = {  # policy and trainer; None: the policy's own
    "placeto": (PLACETO, None),
    "simple aggregator": ({**PLACETO, **AGGREGATOR}, None),
    "simple partitioner": ({**PLACETO, **PARTITIONER}, None),
}
ABLATIONS: dict[str, Ablations] = {
    "nmt": {  # section 4.3
        **ARCHITECTURE,
        "seq2seq": (SEQ2SEQ, None),
        "head=paper": (PAPER, None),
        "head=paper, simple aggregator": ({**PAPER, **AGGREGATOR}, None),
        "head=paper, simple partitioner": ({**PAPER, **PARTITIONER}, None),
    },
    "cifar10": {  # what was added to the paper, and what makes the RNN better than in the paper
        **ARCHITECTURE,
        "head=paper": (PAPER, None),
        "no schedule": ({**PLACETO, "schedule": False}, None),
        "baseline of 10 updates": (PLACETO, {**STEPWISE, "window": 10}),
        "seq2seq": (SEQ2SEQ, None),
        "seq2seq, baseline of the batch": (SEQ2SEQ, {"name": "reinforce", "baseline": "batch"}),
        "seq2seq, random orders": ({**SEQ2SEQ, "order": "random"}, None),
        "seq2seq, not aligned": ({**SEQ2SEQ, "aligned": False}, None),
        "seq2seq, one type, one size": ({**SEQ2SEQ, "type_buckets": 1, "outputs": 1}, None),
    },
}
FROM_ONE = "placeto zero-shot from one GPU"
DRAWN = ("random", "untrained", "placeto zero-shot", FROM_ONE, "seq2seq zero-shot", "search, one second")
STILL = {**STEPWISE, "learning_rate": 1e-9, "learning_rate_end": 1e-9}
RESEARCH = Path(__file__).parents[1] / "docs" / "research"


class Rows:
    """The rows of a family, in its file."""

    def __init__(self, family: str, kind: str = "") -> None:
        self.family, self.path = family, RESEARCH / f"placeto_{family}{kind}.csv"
        self.rows: list[Row] = read(self.path) if self.path.is_file() else []

    def place(self, programs: list[Program], policy: Any, budget: Any, seed: int, **more: Any) -> Result:
        """Place them on the cluster of the table."""
        return placekit_core.place(
            programs, grouper=GROUPERS[self.family], cluster=CLUSTER, policy=policy, budget=budget, seed=seed, **more
        )

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
        again: bool = False,
        **more: Any,
    ) -> None:
        """Run it, and append a row for each of the graphs to test, unless their rows are there. `again`: run it even so."""
        known = self.has(method, seed, test)
        if known and not again:
            return
        result = self.place([*train, *test], policy, budget, seed, **more)
        names = {p.graph.name for p in test}
        found = [
            {
                "method": method, "seed": str(seed), "graph": p.program, "value_s": f"{p.value_s:.9g}",
                "evaluations": str(p.evaluations), "seconds": f"{p.seconds:.3g}",
                "largest_share": f"{largest_share(of):.3g}",
            }
            for p, of in zip(result.summary.programs, result.programs, strict=True) if p.program in names
        ]  # fmt: skip
        values = {(r["method"], r["seed"], r["graph"]): r["value_s"] for r in self.rows}
        if known and any(values[r["method"], r["seed"], r["graph"]] != r["value_s"] for r in found):
            raise SystemExit(f"{method}, seed {seed}: other values than in {self.path}: delete its rows to begin anew")
        if not known:
            new = not self.path.is_file()
            with self.path.open("a", newline="") as file:
                writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
                if new:
                    writer.writeheader()
                writer.writerows(found)
            self.rows += found
        mean = np.mean([float(r["value_s"]) for r in found])
        print(f"{self.family}, {method}, seed {seed}: {mean:.4f} s, in {result.summary.seconds:.1f} s", flush=True)

    def relative(self) -> dict[str, dict[int, dict[str, float]]]:
        """Values over that of a single GPU, by method, seed and graph."""
        single = {r["graph"]: float(r["value_s"]) for r in self.rows if r["method"] == "single_gpu"}
        found: dict[str, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
        for r in self.rows:
            found[r["method"]][int(r["seed"])][r["graph"]] = float(r["value_s"]) / single[r["graph"]]
        return found


def largest_share(of: ProgramResult) -> float:
    """Share of the device that has most of the placement's computation."""
    assert of.placement is not None
    device = of.placement.device
    busy_s = np.bincount(device, of.problem.group_s[np.arange(len(device)), device])
    return float(busy_s.max() / busy_s.sum())


def measure(family: str, seeds: int, few: int, work: Path) -> None:
    """All runs of a family whose rows are missing."""
    rows, train, test = Rows(family), *programs_of(family)
    alone = [replace(p, split=None) for p in test]
    for policy in ("single_gpu", "heft", "etf"):
        rows.run(policy, alone, policy, 1, 0)
    for seed in range(seeds):
        rows.run("random", alone, "random", 1, seed)
        rows.run("untrained", test, "placeto", len(train), seed, train, trainer=STILL)
        for policy in ("placeto", "seq2seq"):
            folder, zero_shot = work / f"{family}-{policy}-{seed}", f"{policy} zero-shot"
            known = rows.has(zero_shot, seed, test)
            later = policy == "placeto" and not (
                rows.has(FROM_ONE, seed, test) and rows.has("placeto fine-tuned", seed, alone[:few])
            )
            whole = (folder / RESULT).is_file() and load_summary(folder).status == "finished"
            if whole and not known:  # it ended before its rows were written: train again, which gives the same
                shutil.rmtree(folder)
            if not known or (later and not whole):
                resume = folder.is_dir()
                rows.run(zero_shot, test, policy, TRAINING, seed, train, again=True, run_dir=folder, resume=resume)
        trained = {**PLACETO, "checkpoint": str(work / f"{family}-placeto-{seed}")}
        rows.run(FROM_ONE, alone, {**trained, "start": "one_device"}, 1, seed, trainer="none")
    shipped = {**PLACETO, "checkpoint": f"pkg://placekit_placeto/pretrained/{family}"}
    for seed in range(seeds):
        trained = {**PLACETO, "checkpoint": str(work / f"{family}-placeto-{seed}")}
        for p in alone:
            rows.run("search, one second", [p], None, {"seconds": 1}, seed)
        for p in alone[:few]:
            rows.run("search", [p], None, OPTIMISED, seed)
            for policy in ("placeto", "seq2seq"):
                rows.run(f"{policy} optimised", [p], policy, OPTIMISED, seed)
            rows.run("placeto fine-tuned", [p], trained, OPTIMISED, seed, trainer="stepwise")
            rows.run("shipped placeto, best of draws", [p], shipped, OPTIMISED, seed, trainer=STILL)


def ablate(family: str, seeds: int) -> None:
    """The runs of the ablations whose rows are missing."""
    rows, train, test = Rows(family, "_ablations"), *programs_of(family)
    rows.run("single_gpu", [replace(p, split=None) for p in test], "single_gpu", 1, 0)
    for name, (policy, trainer) in ABLATIONS[family].items():
        for seed in range(seeds):
            rows.run(name, test, policy, ABLATION, seed, train, trainer=trainer)


def programs_of(family: str) -> tuple[list[Program], list[Program]]:
    """The graphs to train on, and to test on."""
    programs = placekit_core.load_programs(f"placeto_{family}")
    train, test = ([p for p in programs if p.split == split] for split in ("train", "test"))
    return train, test


def table(family: str, kind: str = "") -> None:
    """Print the methods: medians over the test graphs of the mean over seeds, all graphs and those that were trained on; the
    mean over the graphs, with its 95% interval over the seeds; the share of the device with most of the computation, where it was
    written; and how zero-shot compares with training on a graph."""
    found = Rows(family, kind).relative()
    means = {m: _by_graph(seeds) for m, seeds in found.items()}
    few = sorted({graph for method in means if "optimised" in method for graph in means[method]})
    last = f"{'on ' + str(len(few)):>8}" if few else ""
    print(f"{family}: value over a single GPU")
    share = _shares(Rows(family, kind).rows)
    last += f"{'one device':>12}" if share else ""
    print(f"  {'':32}{'seeds':>6}{'graphs':>8}{'median':>8}{'mean and 95% interval':>24}{last}")
    for method, seeds in found.items():
        by = means[method]
        each = [float(np.mean(list(values.values()))) for values in seeds.values()]
        last = f"{np.median([by[g] for g in few if g in by] or [np.nan]):8.3f}" if few else ""
        last += f"{share[method]:12.0%}" if method in share else ""
        print(f"  {method:32}{len(each):6}{len(by):8}{np.median(list(by.values())):8.3f}{interval(each):>24}{last}")
    for zero_shot in ("placeto zero-shot", FROM_ONE, "seq2seq zero-shot"):
        zero, own = means.get(zero_shot, {}), means.get(f"{zero_shot.partition(' ')[0]} optimised", {})
        ratios = [zero[g] / own[g] for g in sorted(zero.keys() & own.keys())]
        if ratios:
            texts = ", ".join(f"{r:.2f}" for r in ratios)
            print(f"{zero_shot} over optimised: {texts}; median {np.median(ratios):.3f}")


def _shares(rows: list[Row]) -> dict[str, float]:
    """The mean over graphs and seeds of each method whose placements' shares were written."""
    found: dict[str, list[float]] = defaultdict(list)
    for r in rows:
        if r["largest_share"]:
            found[r["method"]].append(float(r["largest_share"]))
    return {method: float(np.mean(values)) for method, values in found.items()}


def _by_graph(seeds: dict[int, dict[str, float]]) -> dict[str, float]:
    """The mean over seeds of each graph."""
    graphs = sorted({graph for by in seeds.values() for graph in by})
    return {g: float(np.mean([by[g] for by in seeds.values() if g in by])) for g in graphs}


def draw(families: list[str], path: Path) -> None:
    """The share of the 16 test graphs whose value, the mean over seeds, is at most x times that of a single GPU."""
    with plots.style():
        figure = plots.figure(4.2 * len(families), 3.6)
        for axes, family in zip(plots.panels(figure, len(families), len(families)), families, strict=True):
            found = Rows(family).relative()
            for i, method in enumerate(DRAWN):
                values = np.sort(list(_by_graph(found.get(method, {})).values()))
                x, share = (
                    [*values, *values[-1:]],
                    [*np.linspace(0, 1, len(values), endpoint=False), 1.0][: len(values) + 1],
                )
                axes.step(x, share if x else [], where="post", label=method, **plots.series(i))
            axes.set(title=family, xlabel="time of a step / single GPU", ylabel="share of test graphs", xlim=(0, 2))
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2 * len(families))
    plots.save(figure, path)


def main() -> None:
    """Run what is missing, print the tables, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("families", nargs="+", choices=GROUPERS)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--few", type=int, default=4, help="test graphs that are trained on")
    parser.add_argument("--work", type=Path, default=Path("placeto_families"), help="folder of the trained policies")
    parser.add_argument("--ablations", action="store_true")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--table", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    if arguments.ablations and not set(arguments.families) <= ABLATIONS.keys():
        parser.error(f"--ablations has only {', '.join(ABLATIONS)}")
    for family in arguments.families:
        if not arguments.table and arguments.ablations:
            ablate(family, arguments.seeds)
        elif not arguments.table:
            measure(family, arguments.seeds, arguments.few, arguments.work)
        table(family, "_ablations" * arguments.ablations)
    if arguments.plot:
        draw(arguments.families, arguments.plot)


if __name__ == "__main__":
    main()
