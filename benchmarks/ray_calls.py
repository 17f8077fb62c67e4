"""The costs of Ray on one computer: starting it, starting workers, and one call.

    python benchmarks/ray_calls.py [--workload mlp] [--workers 2] [--calls 200]

*call* evaluates one placement in a worker and waits for it; *here* evaluates it in this process. *evaluation* is the time
per placement of a large batch that all workers share.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from placekit_core import Placements, Problem, installed
from placekit_core.cli.compose import assembled


def main() -> None:
    """Print a line for each cost."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default="mlp")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--calls", type=int, default=200)
    o = parser.parse_args()
    parts = assembled([f"workload={o.workload}"], installed())
    problem = parts.problem(parts.programs[0])
    one = batch(problem, 1)
    here = installed().build("backend", "simulator", {}).open(problem)
    there = installed().build("backend", "ray", {"workers": o.workers, "inner": {"name": "simulator", "threads": 1}})
    began = time.perf_counter()
    session = there.open(problem)
    told("Ray and its workers are asked for", time.perf_counter() - began)
    began = time.perf_counter()
    session.evaluate(one)
    told("the first worker is ready", time.perf_counter() - began)
    session.evaluate(batch(problem, o.calls))
    here.evaluate(one)
    told("here", median(here.evaluate, one, o.calls))
    told("call", median(session.evaluate, one, o.calls))
    many = batch(problem, 50 * o.calls)
    began = time.perf_counter()
    session.evaluate(many)
    told("evaluation", (time.perf_counter() - began) / len(many))
    session.close()


def batch(problem: Problem, count: int) -> Placements:
    """The same placement, `count` times."""
    return Placements.of(np.tile(problem.allowed.argmax(axis=1), (count, 1)))


def median(evaluate: Callable[[Placements], object], placements: Placements, calls: int) -> float:
    """Seconds of a call, the median of `calls`."""
    seconds = []
    for _ in range(calls):
        began = time.perf_counter()
        evaluate(placements)
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


def told(what: str, seconds: float) -> None:
    """Print a line."""
    print(f"{what:<36} {seconds * 1e3:>10.3f} ms", flush=True)


if __name__ == "__main__":
    main()
