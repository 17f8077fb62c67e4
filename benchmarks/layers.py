"""What the default grouper costs or saves: every workload with `grouper=none` and `grouper=auto`.

    python benchmarks/layers.py [--clusters A,B] [--evaluations N] [WORKLOAD ...]

Prints a Markdown table: the value of the default policy with each, how much that of `auto` differs, groups, evaluations, seconds.
Where `auto` makes the groups of `none`, nothing is run: the values are the same. Without arguments: all workloads at their full
size, without the planted ones and those with groups of their own.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from placekit_core import installed, place
from placekit_core.cli.compose import assembled
from placekit_core.contracts.units import seconds


def workloads() -> list[str]:
    """The names of workloads that have the default grouper and machine."""
    names = sorted({preset.name for preset in installed().presets() if preset.group == "workload"})
    return [n for n in names if n != "none" and not n.startswith(("planted", "placeto")) and not n.endswith("_small")]


def rows(workload: str, clusters: list[str], evaluations: int) -> list[list[str]]:
    """A row per machine."""
    made = assembled([f"workload={workload}", "grouper=auto"], installed())
    program = made.programs[0]
    began = time.process_time()
    grouping = made.grouper.group(program.graph, np.random.default_rng(0))
    took = f"{time.process_time() - began:.2f}"
    if " placed whole" not in grouping.note:
        why = grouping.note.partition(", because ")[2] or "a small graph"
        return [[workload, "all", str(grouping.count), "", "", "the same", "", "", took, why]]
    found = []
    for cluster in clusters:
        none, auto = (
            place(program.graph, cluster=cluster, grouper=grouper, budget=evaluations).summary
            for grouper in ("none", "auto")
        )
        change = (auto.value_s or np.nan) / (none.value_s or np.nan) - 1
        found.append(
            [workload, cluster, f"{none.programs[0].groups} / {auto.programs[0].groups}", seconds(none.value_s),
             seconds(auto.value_s), f"{change:+.1%}", f"{none.evaluations} / {auto.evaluations}",
             f"{none.seconds:.1f} / {auto.seconds:.1f}", took, "; ".join(auto.programs[0].layers.values())]
        )  # fmt: skip
    return found


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clusters", default="rtx4090_3090,p100x4")
    parser.add_argument("--evaluations", type=int, default=10_000)
    parser.add_argument("workloads", metavar="WORKLOAD", nargs="*")
    arguments = parser.parse_args()
    columns = (
        "workload", "machine", "groups", "none", "auto", "change", "evaluations", "seconds", "grouping s", "layers, or why none",
    )  # fmt: skip
    print("|", " | ".join(columns), "|\n|", " | ".join("---" for _ in columns), "|")
    for workload in arguments.workloads or workloads():
        for row in rows(workload, arguments.clusters.split(","), arguments.evaluations):
            print("|", " | ".join(row), "|", flush=True)


if __name__ == "__main__":
    main()
