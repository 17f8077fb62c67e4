"""The simulator of one checkout of placekit, for benchmarks/simulator.py: measures the cases on standard input, one a line.

Each line has the fields of a `Case` and a number of seconds, as JSON; the answer is the seconds for one placement. It works with
every version of placekit from the first benchmark on.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from placekit_sim.simulator import Simulator

try:
    from placekit_core import Cluster, Graph, GraphBuilder, Placements, Problem, load_cluster
except ImportError:  # before the core had one public list of names
    from placekit_core.cluster import Cluster, load_cluster  # type: ignore[no-redef]
    from placekit_core.graph import Graph, GraphBuilder  # type: ignore[no-redef]
    from placekit_core.placement import Placements  # type: ignore[no-redef]
    from placekit_core.problem import Problem  # type: ignore[no-redef]

ROOT = Path(__file__).resolve().parents[1]


def layered(n: int, width: int = 32, seed: int = 0) -> Graph:
    """Layers of `width` operations that read one to three outputs, four of five of them from the layer before."""
    rng = np.random.default_rng(seed)
    builder = GraphBuilder(f"layered {n}")
    outputs: list[int] = []
    for v in range(n):
        layer = v // width
        inputs = []
        for _ in range(int(rng.integers(1, 4)) if layer else 0):
            back = 1 if rng.random() < 0.8 else min(layer, int(rng.integers(1, 6)))
            inputs.append(outputs[(layer - back) * width + int(rng.integers(0, width))])
        outputs += builder.add(
            f"v{v}",
            op_class="matmul",
            inputs=inputs,
            outputs=[int(rng.uniform(1e6, 2e7))],
            flops=rng.uniform(2e9, 4e10),
        )
    return builder.build()


def seconds_per_run(action: Callable[[], object], runs: int, at_least_s: float) -> float:
    """Least processor time of `action`, which simulates `runs` placements, over repetitions that fill `at_least_s`."""
    best, total = float("inf"), 0.0
    while total < at_least_s:
        start = time.thread_time()
        action()
        took = time.thread_time() - start
        best, total = min(best, took), total + took
    return best / runs


class Case(NamedTuple):
    """The simulations of one row of the table."""

    machine: str
    n: int
    priority: bool
    memory: bool

    def problem(self) -> Problem:
        """The graph on the machine."""
        cluster = load_cluster(ROOT / "conf" / "cluster" / "p100x4.yaml")
        if self.machine == "links":
            link = {"mesh": "p100:*", "bytes_per_s": 12e9, "latency_s": 5e-6}
            cluster = Cluster.parse({**cluster.model_dump(mode="json"), "name": "links", "links": [link]})
        return Problem.of(layered(self.n), cluster)

    def placements(self, problem: Problem) -> Placements:
        """Random placements, fewer of larger graphs; with or without priorities."""
        rng, count = np.random.default_rng(1), max(8, 100_000 // self.n)
        device = rng.integers(0, problem.cluster.size, (count, problem.g))
        return Placements.of(device, rng.random((count, problem.g)) if self.priority else None)


def main() -> None:
    """Answer until the input ends."""
    known: dict[Case, tuple[Callable[[], Any], int]] = {}
    for line in sys.stdin:
        *about, at_least_s = json.loads(line)
        case = Case(*about)
        if case not in known:
            problem = case.problem()
            placements = case.placements(problem)
            evaluate = partial(Simulator(threads=1).open(problem).evaluate, placements)
            known = {case: (evaluate, len(placements))}
        print(seconds_per_run(*known[case], at_least_s), flush=True)


if __name__ == "__main__":
    main()
