"""Predicted beside published seconds and memory of training plans: Sailor's, from its profiles of layers, and vTrain's replicas.

    PLACEKIT_SAMPLES=FOLDER python benchmarks/training.py [--write]

`--write` keeps the tables in benchmarks/results/training.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from placekit_formats import ProfileOptions
from placekit_formats.profile import ProfileImporter
from placekit_training.model import Model, Parts
from placekit_training.steps import Outcome, Steps
from placekit_training.strategy import Replica, Strategy

from placekit_core import Cluster

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
        replicas = tuple(
            Replica(tuple(next(number) for _ in row), begins, plan["mbs"], microbatches) for row in groups
        )
        yield Published(
            "/".join([*place[:-1], file.stem.removeprefix("plan_config_")]), place[0], model, Strategy(replicas), kinds,
            int(groups[0][0][1]), plan["real"], plan["max_mem"],
        )  # fmt: skip


def machine(row: Published) -> Cluster:
    """The groups of devices that a plan uses, each as one device; each is a node with a link of its own to the network."""
    kinds: dict[str, Any] = {
        kind: {"flops_per_s": {"float32": 1.0}, "memory_bytes": MEMORY[kind] * 2**30, "memory_bytes_per_s": 1.0}
        for kind in dict.fromkeys(row.kinds)
    }
    devices = [{"kind": kind, "name": f"node{i}"} for i, kind in enumerate(row.kinds)]
    link = {"mesh": "*", "bytes_per_s": NETWORK[row.machine]}
    return Cluster.parse({"kinds": kinds, "devices": devices, "links": [link] if len(devices) > 1 else []})


def predicted(row: Published, profiles: Path) -> Outcome:
    """What the plan costs with Sailor's profile."""
    rows = row.strategy.replicas[0].rows

    def load(_: Any) -> Any:
        return ProfileImporter(
            ProfileOptions(path=str(profiles / row.model), degree=row.degree, microbatch=rows, kinds={k: k for k in row.kinds})
        ).load()

    return Steps(Model(row.model, load, (rows,)), machine(row)).outcome(row.strategy)


if __name__ == "__main__":
    samples = Path(os.environ["PLACEKIT_SAMPLES"]) / "published" / "sailor"
    for row in published(samples / "validation"):
        if row.model != "OPT-350": continue
        found = predicted(row, samples / "profiles_and_configs" / "Planner" / "sailor_planner" / "profiles")
        print(row.name, row.real_s, found.step_s, f"{found.step_s / row.real_s - 1:+.1%}", row.max_bytes/1e9, found.peak_bytes.max()/1e9, found.error)
