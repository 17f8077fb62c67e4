"""Placeto's default network without some parts, trained on a family, tested on unseen graphs (Addanki et al. 2019, 4.3).

The presets `placeto_simple_aggregator` and `placeto_simple_partitioner` take the same parts from the paper's
network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from placekit_core import Registry
from placekit_papers.runs import DATA
from placekit_papers.studies.families import Family, table
from placekit_papers.studies.rows import read_rows

_FAMILIES = ("cifar10", "nmt")
_EVALUATIONS, _SEEDS = 4_000, 6
_POLICIES: dict[str, dict[str, Any]] = {
    "placeto": {"name": "placeto"},
    "simple aggregator": {"name": "placeto", "rounds": 0, "pooling": "graph"},
    "simple partitioner": {"name": "placeto", "rounds": 0},
    "seq2seq": {"name": "seq2seq"},
}
"""The recorded CSVs have further variants, which no claim is about."""


def run(folder: Path, registry: Registry) -> list[str]:
    """Train and place, write the rows to `folder`, and return the tables."""
    lines = []
    for name in _FAMILIES:
        path = folder / f"placeto_{name}_ablations.csv"
        family = Family(name, path)
        family.run("single_gpu", family.alone, "single_gpu", 1, 0)
        for method, policy in _POLICIES.items():
            for seed in range(_SEEDS):
                family.run(method, family.test, policy, _EVALUATIONS, seed, family.train)
        lines += table(name, read_rows(path))
    return lines


def show() -> list[str]:
    """The tables of the recorded rows."""
    return [line for name in _FAMILIES for line in table(name, read_rows(DATA / f"placeto_{name}_ablations.csv"))]
