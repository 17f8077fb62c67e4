"""Families of graphs in numbers: the least, the median and the most of their graphs.

    python benchmarks/family_sizes.py [--cluster p100x4] WORKLOAD ...

*depth* is the number of kernels on the longest path, *width* the number on the fullest level, *parallelism* the work over the
critical path on the machine, without transfers. Groups are those of the workload's own grouper.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median

import numpy as np
from placekit_inspect.graph_facts import Facts

from placekit_core import installed
from placekit_core.cli.compose import assembled


def main() -> None:
    """Print a table per family."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cluster", default="p100x4")
    parser.add_argument("workloads", metavar="WORKLOAD", nargs="+")
    arguments = parser.parse_args()
    for workload in arguments.workloads:
        parts = assembled([f"workload={workload}", f"cluster={arguments.cluster}"], installed())
        facts = [Facts.of(parts.problem(program)) for program in parts.programs]
        rows: dict[str, Sequence[float]] = {
            "operations": [f.operations for f in facts],
            "depth": [f.levels for f in facts],
            "width": [int(np.bincount(p.graph.depth[p.graph.kernel]).max()) for p in parts.programs],
            "groups": [f.groups for f in facts],
            "parallelism": [f.parallelism for f in facts],
        }
        print(f"{workload}, {len(facts)} graphs")
        for name, values in rows.items():
            digits = 2 if name == "parallelism" else 0
            row = min(values), median(values), max(values)
            print(f"  {name:12}" + "".join(f"{x:9.{digits}f}" for x in row))


if __name__ == "__main__":
    main()
