"""How many groups the groupers make, and how long they take.

    python benchmarks/groupers.py [--groupers A,B] WORKLOAD ...
    python benchmarks/groupers.py --seconds [--operations N]

The first prints groups, a row per workload and a column per grouper or preset of one. `--seconds` prints processor seconds
for two graphs: in `layered` each operation reads from two of the last 2,000. In `star` all operations read from one, and
every second one may run on CPUs only.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np

from placekit_core import Graph, GraphBuilder, installed
from placekit_core.cli.compose import assembled

ALL = "none,manual,module,colocation,chains,heavy_edge,metis"


def graph_of(workload: str) -> Graph:
    """The graph of a workload's first program."""
    return assembled([f"workload={workload}"], installed()).programs[0].graph


def groups(graph: Graph, *options: str) -> int:
    """Groups of the grouper that the options describe."""
    return assembled([*options], installed()).grouper.group(graph, np.random.default_rng(0)).count


def print_groups(workloads: list[str], groupers: list[str]) -> None:
    """A row per workload."""
    print(f"{'':19}", *groupers)
    for workload in workloads:
        graph = graph_of(workload)
        print(f"{workload:19}", *(f"{groups(graph, f'grouper={g}'):{len(g)}}" for g in groupers))


def made_graphs(operations: int) -> Iterator[Graph]:
    """`layered` and `star`."""
    rng, layered, made = np.random.default_rng(0), GraphBuilder("layered"), list[int]()
    for i in range(operations):
        reads = {made[-1 - k] for k in rng.integers(0, min(len(made), 2000), 2)} if made else ()
        size, flops = int(rng.integers(1, 10**6)), float(rng.integers(1, 10**9))
        made += layered.add(f"op{i}", inputs=reads, outputs=[size], flops=flops)
    yield layered.build()
    star = GraphBuilder("star")
    hub = star.add("hub", outputs=[8])
    for i in range(1, operations):
        flops = float(rng.integers(1, 10**9))
        star.add(f"op{i}", inputs=hub, outputs=[8], flops=flops, allowed="cpu" if i % 2 else "")
    yield star.build()


def print_seconds(operations: int) -> None:
    """A row per graph and grouper."""
    limit = "grouper.max_groups=128"
    for graph in made_graphs(operations):
        for name, *options in (["chains"], ["colocation", limit], ["heavy_edge", limit], ["metis"]):
            grouper = assembled([f"grouper={name}", *options], installed()).grouper
            start = time.process_time()
            count = grouper.group(graph, np.random.default_rng(0)).count
            print(f"{graph.name:8} {name:10} {count:5} groups {time.process_time() - start:4.1f} s")


def main() -> None:
    """Print one of the two tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--groupers", default=ALL)
    how.add_argument("--seconds", action="store_true", help="of groupers, on two made graphs")
    parser.add_argument("--operations", type=int, default=50_000, help="of the graphs of --seconds")
    parser.add_argument("workloads", metavar="WORKLOAD", nargs="*")
    arguments = parser.parse_args()
    if arguments.seconds:
        print_seconds(arguments.operations)
    else:
        print_groups(arguments.workloads, arguments.groupers.split(","))


if __name__ == "__main__":
    main()
