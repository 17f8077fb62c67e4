"""Predicted beside published seconds and memory of training plans: Sailor's, from its profiles of layers, and vTrain's replicas.

    PLACEKIT_SAMPLES=FOLDER python benchmarks/training.py [--write]

`--write` keeps the tables in benchmarks/results/training.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import vtrain
from placekit_formats import ProfileOptions
from placekit_formats.profile import ProfileImporter
from placekit_pipeline.pipeline import Pipeline
from placekit_training.model import Model
from placekit_training.planner import changed
from placekit_training.steps import Outcome, Steps
from placekit_training.strategy import Replica, Strategy

from placekit_core import Cluster, ImporterError, Problem

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MODELS = {"OPT-350": "OPT-350", "GPT-NEO": "GPT-Neo-2.7"}
NETWORK = {"mit": 125e6, "clariden": 25e9}
"""Bytes per second between nodes. MIT: 1 Gb/s explains the time in which replicas average gradients (see the results); Clariden:
200 Gb/s, the data sheet of its network."""
MEMORY = {"RTX-3090": 24, "RTX-2080": 11, "Titan-RTX": 24, "GH-96": 96}


@dataclass(frozen=True)
class Published:
    """One measured plan of Sailor."""

    name: str
    machine: str
    model: str
    strategy: Strategy
    kinds: tuple[str, ...]
    degree: int
    real_s: float
    max_bytes: float


def published(folder: Path) -> Iterator[Published]:
    """The plans of a folder."""
    for file in sorted(folder.rglob("plan_config*.json")):
        plan = json.loads(file.read_text())
        place = file.relative_to(folder).parts
        model = MODELS.get(place[1], "OPT-350")
        [pipeline] = plan["pipeline_list"]
        count = pipeline["dp"][0]
        groups = [[stage[r][0][0] for stage in pipeline["tmp_per_stage"]] for r in range(count)]
        kinds = tuple(group[0] for row in groups for group in row)
        number = itertools.count()
        begins = tuple(f"layers.{layers[0]}" for layers in pipeline["layers_per_stage"][1:])
        microbatches = plan["gbs"] // plan["mbs"] // count
        replicas = tuple(Replica(tuple(next(number) for _ in row), begins, plan["mbs"], microbatches) for row in groups)
        yield Published(
            "/".join([*place[:-1], file.stem.removeprefix("plan_config_")]), place[0], model, Strategy(replicas), kinds,
            int(groups[0][0][1]), plan["real"], plan["max_mem"],
        )  # fmt: skip


def machine(row: Published) -> Cluster:
    """The groups of devices that a plan uses, each as one device. A group is a node, whose devices share its link."""
    kinds: dict[str, Any] = {
        kind: {"flops_per_s": {"float32": 1.0}, "memory_bytes": MEMORY[kind] * 2**30, "memory_bytes_per_s": 1.0}
        for kind in dict.fromkeys(row.kinds)
    }
    devices = [{"kind": kind, "name": f"node{i}"} for i, kind in enumerate(row.kinds)]
    link = {"mesh": "*", "bytes_per_s": NETWORK[row.machine] / row.degree}
    return Cluster.parse({"kinds": kinds, "devices": devices, "links": [link] if len(devices) > 1 else []})


def predicted(row: Published, profiles: Path) -> list[Outcome]:
    """The costs of the plan with Sailor's profile, without and with recomputation: the files do not say which was run."""
    rows = row.strategy.replicas[0].rows

    def load(_: Any) -> Any:
        kinds = {kind: kind for kind in row.kinds}
        options = ProfileOptions(
            path=str(profiles / row.model), degree=row.degree, microbatch=rows, kinds=kinds, output_bytes=0
        )
        return ProfileImporter(options).load()

    steps = Steps(Model(row.model, load, (rows,)), machine(row))
    return [steps.outcome(replace(row.strategy, recompute=again)) for again in (False, True)]


# ---- vTrain's rows with replicas


SAILOR_NOTES = """\
What Sailor's files leave open:

- Whether layers were recomputed. On the RTX nodes (`mit`), three plans fit better with recomputation, and three
  without. To choose for each plan after the fact would prove nothing.
- The speed of the network, which was read from the same rows: 1 Gb/s gives the time in which four replicas averaged
  their gradients.
- On the GH200 nodes (`clariden`), at one row per micro-batch and four GPUs, the profile of a layer is slower than
  that of two GPUs, and than the runs.
- GPT-Neo's profile is a copy of OPT-350's, with fewer layers than the model. Two plans contradict each other:
  `GPT-NEO/N4_D4` lists the layers of the profile, and its seconds for averaging gradients are those of `OPT-350/N4_D4`.
"""
FITTED = vtrain.Parameters(1.0, 0.33, 0.81, 51e-6)
"""As `benchmarks/vtrain.py` fits them on rows with two stages and without replicas (results/vtrain.md)."""


@dataclass(frozen=True)
class Step:
    """One measured step of vTrain: `copies` of `stages` each."""

    micro: int
    hidden: int
    heads: int
    layers: int
    length: int
    copies: int
    stages: int
    microbatches: int
    real_s: float


def steps(file: Path) -> Iterator[Step]:
    """The rows of vTrain's file."""
    for line in file.read_text().splitlines()[1:]:
        *numbers, ms = line.split(",")
        _, total, micro, hidden, heads, layers, length, _, copies, stages = map(int, numbers)
        yield Step(micro, hidden, heads, layers, length, copies, stages, total // micro // copies, float(ms) / 1e3)


def seconds(step: Step, overlap: bool | None, fitted: bool = True) -> float:
    """Seconds of a step; with `overlap` None, of one copy alone, which averages nothing. If not fitted, with shipped rates."""
    setting = vtrain.Setting()
    model = vtrain.model(step.micro, step.hidden, step.heads, step.layers, step.length, setting.vocabulary)
    copies = 1 if overlap is None else step.copies
    cluster = vtrain.machine(copies * step.stages, FITTED, setting)
    if not fitted:
        shipped = vtrain.shipped()
        cluster = changed(shipped, devices=[shipped.devices[0].model_copy(update={"count": cluster.size})])
    problem = Problem.of(model.graph, cluster, model.grouping)
    rows = [list(range(r * step.stages, (r + 1) * step.stages)) for r in range(copies)]
    backend = Pipeline(
        schedule="1f1b", microbatches=copies * step.microbatches, checkpointing=setting.checkpointing, threads=1,
        replicas=rows if copies > 1 else [], overlap=bool(overlap),
    )  # fmt: skip
    return float(
        backend.open(problem).evaluate(problem.placement(model.stage(step.stages, step.layers)).batch()).value_s[0]
    )


def independent(rows: Sequence[Step]) -> tuple[int, float]:
    """How many numbers give all rows, as a + b L + c M + d L M for each cell (L layers, M micro-batches); the worst error."""
    numbers, worst = 0, 0.0
    for _, own in itertools.groupby(sorted(rows, key=_cell), key=_cell):
        part = list(own)
        terms = np.asarray([[1, r.layers, r.microbatches, r.layers * r.microbatches] for r in part], np.float64)
        real = np.asarray([r.real_s for r in part])
        solved, _, rank, _ = np.linalg.lstsq(terms, real, rcond=None)
        numbers, worst = numbers + int(rank), max(worst, float(np.abs(terms @ solved / real - 1).max()))
    return numbers, worst


def _cell(row: Step) -> tuple[int, ...]:
    return row.hidden, row.micro, row.stages, row.copies


# ---- the report


def sailor_lines(folder: Path) -> list[str]:
    """The table of Sailor's plans, and the errors by machine."""
    lines = [
        "| plan | measured | predicted | error | recomputed | error | measured GB | predicted GB | recomputed GB |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    known: dict[str, list[tuple[float, float, float]]] = {}
    for row in published(folder / "validation"):
        real, size = f"{row.real_s:.3f} s", f"{row.max_bytes / 1e9:.1f}"
        try:
            found = predicted(row, folder / "profiles_and_configs" / "Planner" / "sailor_planner" / "profiles")
        except ImporterError:  # the profile has 26 layers, and the model 34
            lines.append(f"| {row.name} | {real} | no profile | | | | {size} | | |")
            continue
        known.setdefault(row.machine, []).append((row.real_s, found[0].step_s, found[1].step_s))
        cells = [f"{o.step_s:.3f} s | {o.step_s / row.real_s - 1:+.1%}" for o in found]
        peaks = " | ".join(f"{o.peak_bytes.max() / 1e9:.1f}" for o in found)
        lines.append(f"| {row.name} | {real} | {' | '.join(cells)} | {size} | {peaks} |")
    for place, own in known.items():
        for label, column in (("without recomputation", 1), ("with", 2)):
            error = np.asarray([abs(r[column] / r[0] - 1) for r in own])
            both = list(itertools.combinations(own, 2))
            right = sum((a[0] < b[0]) == (a[column] < b[column]) for a, b in both)
            lines += [
                "", f"{place}, {label}: median error {np.median(error):.1%}, worst {error.max():.1%}; {right} of"
                f" {len(both)} pairs of plans are in the right order",
            ]  # fmt: skip
    return lines


def vtrain_lines(file: Path) -> list[str]:
    """The table of vTrain's replicas."""
    rows = list(steps(file))
    numbers, worst = independent(rows)
    lines = [
        f"{len(rows)} rows are at most {numbers} numbers, which give them all to {worst:.1e}.", "",
        "| averaging gradients | copies | stages | rows | mean error | median | worst |", "|---|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    for label, overlap in (("not counted", None), ("in buckets during the backward pass", True), ("after it", False)):
        error = np.asarray([abs(seconds(row, overlap) / row.real_s - 1) for row in rows])
        cells = [(2, 1), (2, 2), (4, 1), (4, 2)]
        for copies, stages in cells:
            own = error[[r.copies == copies and r.stages == stages for r in rows]]
            lines.append(
                f"| {label} | {copies} | {stages} | {len(own)} | {own.mean():.1%} | {np.median(own):.1%} | {own.max():.1%} |"
            )
        lines.append(
            f"| {label} | all | all | {len(rows)} | {error.mean():.1%} | {np.median(error):.1%} | {error.max():.1%} |"
        )
    return lines


def shipped_line(folder: Path) -> str:
    """How far steps are from predictions with the rates that ship: the error band of a plan."""
    rows = [*steps(folder / "replicas.csv"), *steps(folder / "pipeline_2gpus.csv")]
    error = np.asarray([seconds(row, True, fitted=False) / row.real_s - 1 for row in rows])
    size = np.abs(error)
    return (
        f"With the rates of `a100x8` as it ships, {len(rows)} rows (those above, and {len(rows) - 320} of two stages without"
        f" replicas): median error {np.median(size):.1%}, nine of ten within {np.quantile(size, 0.9):.1%}, worst"
        f" {size.max():.1%}; median with its sign {np.median(error):+.1%}."
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sailor", action="store_true", help="Sailor's table only")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results")
    arguments = parser.parse_args()
    samples = os.environ.get("PLACEKIT_SAMPLES")
    if not samples:
        parser.error("PLACEKIT_SAMPLES is not set: the folder with published/sailor and vtrain/replicas.csv")
    lines = ["## Sailor", "", *sailor_lines(Path(samples) / "published" / "sailor"), "", SAILOR_NOTES, "## vTrain", ""]
    print("\n".join(lines), flush=True)
    if arguments.sailor:
        return
    more = vtrain_lines(Path(samples) / "vtrain" / "replicas.csv")
    more += ["", shipped_line(Path(samples) / "vtrain")]
    print("\n".join(more))
    if arguments.write:
        head = ["# Training plans beside published measurements", "", "`python benchmarks/training.py --write`", ""]
        (RESULTS / "training.md").write_text("\n".join([*head, *lines, *more, ""]))


if __name__ == "__main__":
    main()
