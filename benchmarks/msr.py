"""Compares placekit with the published optima of the graphs of Tarnawski et al. (NeurIPS 2020), and measures its moves.

    PLACEKIT_SAMPLES=FOLDER python benchmarks/msr.py
    python benchmarks/msr.py --moves [--write]

For each graph: the published optimum, the value found, and whether that took less than a minute.

`--moves` measures evaluations of `blocking_latency` per second of processor time, on layered random graphs and four
accelerators, from two placements. A contiguous split has few calls, so a move changes the calls of many operations; in a random
placement, of few. `--write` writes the table to benchmarks/results/moves.md, which explains its columns.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import types
from placekit_pipeline.blocking import BlockingLatency, BlockingSession
from placekit_scheduling import kernel_signature
from placekit_scheduling.jit import njit
from placekit_search.local_search import LocalSearch, SearchContext
from placekit_search.move_kinds import KINDS
from placekit_search.neighbourhood import neighbourhood
from simulator_worker import ROOT, layered

from placekit_core import Ledger, Placements, Problem, Task, load_cluster, place
from placekit_core.run.evaluator import BudgetedEvaluator

CASES = [
    ("throughput/layer_bert24_inference", "max_load", "chain", 17.790),
    ("throughput/layer_bert24_training", "max_load", "chain", 41.746),
    ("throughput/operator_bert3_inference", "max_load", "chain", 27.919),
    ("throughput/layer_bert24_inference", "max_load", "portfolio", 17.715),
    ("throughput/layer_bert24_training", "max_load", "portfolio", 39.790),
    ("throughput/operator_bert3_inference", "max_load", "portfolio", 21.908),
    ("latency/layer_bert24_inference", "blocking_latency", "chain", 100.219),
    ("latency/layer_bert24_inference", "blocking_latency", "portfolio", 100.219),
]
"""Graph, backend, policy, published milliseconds: the optimum of contiguous splits (`chain` with `max_load`), the optimum of all
placements (`portfolio`), or the best known latency."""
SIZES = (100, 1_000, 10_000)
MOVES = 4_000_000  # operations of all evaluations of one measurement
PARTS = 20  # of a measurement; the fastest counts, because other programs disturb it least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--moves", action="store_true", help="measure evaluations per second")
    parser.add_argument(
        "--write", action="store_true", help="with --moves: keep the table in benchmarks/results/moves.md"
    )
    arguments = parser.parse_args()
    if arguments.moves:
        moves(arguments.write)
        return
    folder = os.environ.get("PLACEKIT_SAMPLES")
    if not folder:
        raise SystemExit("PLACEKIT_SAMPLES is not set: give the folder with msr/throughput and msr/latency")
    print("| graph | backend | policy | published | found | above | under a minute |")
    print("|---|---|---|---:|---:|---:|---|")
    for graph, backend, policy, published in CASES:
        began = time.perf_counter()
        result = place(str(Path(folder) / "msr" / f"{graph}.json"), backend=backend, policy=policy)
        assert result.value_s is not None
        found = 1e3 * result.value_s
        fast = "yes" if time.perf_counter() - began < 60 else "no"
        print(
            f"| {graph} | {backend} | {policy} | {published:.3f} | {found:.3f} | {found / published - 1:+.2%} | {fast} |"
        )


# ---- moves

_loop = types.float64(
    types.FunctionType(kernel_signature()), types.int16[::1], types.int64[::1], types.int64[::1], types.int32[::1],
    types.float64[::1], types.int32[::1], types.float64[::1], types.float64[::1], types.int64,
)  # fmt: skip


@njit(_loop)
def _moved(evaluate, device, group, to, ints, floats, work_ints, work_floats, peak, known):  # type: ignore[no-untyped-def]
    """Evaluate after each move; the entry `known` of the working space, if any, is set to 0 before. Returns the last value."""
    value, priority = 0.0, np.zeros(0, np.float32)
    for i in range(len(group)):
        device[group[i]] = to[i]
        if known >= 0:
            work_ints[known] = 0
        value = evaluate(device, priority, ints, floats, work_ints, work_floats, peak)
    return value


def per_second(action: Callable[[int], object], count: int) -> float:
    """Evaluations per second in the fastest of `PARTS` parts. `action(k)` makes k evaluations; `count` are made in all."""
    each, best = max(1, count // PARTS), 0.0
    for _ in range(PARTS):
        began = time.thread_time()
        action(each)
        best = max(best, each / (time.thread_time() - began))
    return best


def called(session: BlockingSession, start: Any, count: int, forgetting: bool) -> float:
    """Evaluations per second of the compiled evaluation, called in a loop."""
    kernel, problem = session.kernel(), session.problem
    at = [int(kernel.ints[i]) for i, field in enumerate(session.fields) if field.name == "count"]
    rng, device, peak = np.random.default_rng(0), start.copy(), np.empty(problem.cluster.size)
    work = np.zeros(kernel.scratch_ints, np.int32), np.zeros(kernel.scratch_floats)

    def some(number: int) -> None:
        group, to = rng.integers(0, problem.g, number), rng.integers(0, problem.cluster.size, number)
        _moved(kernel.function, device, group, to, kernel.ints, kernel.floats, *work, peak, at[0] if forgetting else -1)

    return per_second(some, count)


def searched(session: BlockingSession, start: Any, count: int) -> float:
    """Evaluations per second of the searches' loop with moves of single groups."""
    problem = session.problem
    task = Task(problem, BudgetedEvaluator(problem, session, Ledger(None, None), objective="blocking_latency"))
    context = SearchContext(task, {kind: float(kind == "single") for kind in KINDS})
    value_s = float(np.nan_to_num(session.evaluate(Placements.of(start[None])).value_s[0], nan=1.0))
    state = LocalSearch.begin(start, None, value_s, 0.0, value_s, np.ones(1, np.uint64))
    chain, hood = LocalSearch(context, state), neighbourhood(problem)
    return per_second(lambda number: chain.walk(hood, number, 1e-3 * value_s, 1.0), count)


def moves(write: bool) -> None:
    """Print the table of evaluations per second."""
    lines = ["| operations | start | kept | all | kept over all | search |", "|---:|---|---:|---:|---:|---:|"]
    cluster = load_cluster(ROOT / "conf" / "cluster" / "p100x4.yaml")
    for n in SIZES:
        problem = Problem.of(layered(n), cluster)
        session, count = BlockingLatency(threads=1).open(problem), MOVES // n
        assert isinstance(session, BlockingSession)
        starts = {
            "contiguous": np.arange(problem.g) * cluster.size // problem.g,
            "random": np.random.default_rng(1).integers(0, cluster.size, problem.g),
        }
        for name, start in starts.items():
            device = start.astype(np.int16)
            kept, whole = (called(session, device, count, forgetting) for forgetting in (False, True))
            row = f"{kept:,.0f} | {whole:,.0f} | {kept / whole:.1f} | {searched(session, device, count):,.0f}"
            lines.append(f"| {n:,} | {name} | {row} |")
            print(lines[-1], flush=True)
    machine = f"machine: {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    if write:
        head = ["# Moves under `blocking_latency`", "", "`python benchmarks/msr.py --moves --write`", ""]
        about = [
            "Evaluations per second of processor time. After each, a random group moves to a random device.",
            "`kept`: the evaluation updates what it kept from the placement before, as in searches; `all`: it keeps nothing.",
            "`search`: the loop of the searches, which undoes moves that it refuses.",
        ]
        target = Path(__file__).parent / "results" / "moves.md"
        target.write_text("\n".join([*head, *about, "", *lines, "", machine, ""]))


if __name__ == "__main__":
    main()
