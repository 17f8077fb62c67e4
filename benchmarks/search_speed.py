"""Evaluations per second of local searches: with trials, without them, and in an older checkout.

    python benchmarks/search_speed.py [--beside CHECKOUT] [--write]

First a search of its own, on one core: from a random placement, cooled down, then at the last temperature of `annealing`, which
is what is timed. `first come` is a search of devices only, `priorities` one that changes the order, too. The same moves are
made with trials (`placekit_scheduling.Trial`), which go on from marks and end early, and without; both end at the same placement,
to the last bit, or the benchmark fails. Seconds are processor time of one thread, the least of three turns.

With `--beside`, the whole command `placekit run +policy=annealing` of an older checkout (a git worktree of some commit, after
`make setup` in it) and of this one, in turns, each in a process of its own with 20,000 evaluations: seconds of the search that
the results state, the least of three. `--write` keeps the report in benchmarks/results/search_speed.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from checkouts import placekit_of
from placekit_scheduling import Kernel
from placekit_search.chain import Chain, Moves
from placekit_search.neighbourhood import Neighbourhood, neighbourhood
from placekit_search.options import AnnealingOptions
from placekit_search.reuse import reuse
from placekit_sim.simulator import Simulator
from simulator import processor
from simulator_worker import Case, layered

from placekit_core import Grouping, Ledger, Placements, Problem, Task, installed
from placekit_core.cli.compose import assembled
from placekit_core.run.evaluator import BudgetedEvaluator

ROOT = Path(__file__).resolve().parents[1]
WORKLOADS = ["chainmm", "ffnn_sharded", "llama_block_sharded", "llama_layer_sharded", "rnnlm_small", "inception_v3"]
TURNS = 3


def problems() -> dict[str, Problem]:
    """Random layers and workloads of the papers, on four P100 on a switch."""
    cluster = Case("switch", 112, False, False).problem().cluster
    graphs = [layered(n) for n in (215, 1_000, 10_000)]
    for name in WORKLOADS:
        graphs.append(assembled([f"workload={name}"], installed()).build("importer").load()[0].graph)
    return {g.name: Problem.of(g, cluster, Grouping.colocated(g)) for g in graphs}


def cooled(problem: Problem, kernel: Kernel, priorities: bool, count: int) -> tuple[Chain, Neighbourhood]:
    """A search after `count` evaluations, in which it was cooled from ten times annealing's first temperature to its last."""
    o, rng = AnnealingOptions.model_validate({}), np.random.default_rng(0)
    session = Simulator(threads=1).open(problem)
    moves = Moves(Task(problem, BudgetedEvaluator(problem, session, Ledger(10**9))), o.weights(), o.neighbour_bias)
    moves.kernel, moves.reuse = kernel, reuse(problem, kernel)
    device = rng.integers(0, problem.cluster.size, problem.g).astype(np.int16)
    order = rng.random(problem.g).astype(np.float32) if priorities else None
    value_s = float(session.evaluate(Placements.of(device[None], None if order is None else order[None])).value_s[0])
    chain = Chain(moves, Chain.begin(device, order, value_s, 0.0, 20 * value_s, np.array([1], np.uint64)))
    hood, first = neighbourhood(problem), 10 * o.temperature_start
    chain.walk(hood, count, first * value_s, (o.temperature_end / first) ** (1 / count))
    return chain, hood


def row(name: str, problem: Problem, priorities: bool) -> str:
    """Evaluations per second with trials and without."""
    kernel = Simulator(threads=1).open(problem).kernel()
    assert kernel is not None
    count = max(500, min(10_000, 4_000_000 // problem.graph.n))
    runs = {
        trial: cooled(problem, k, priorities, count)
        for trial, k in ((True, kernel), (False, replace(kernel, trial=None)))
    }
    least = dict.fromkeys(runs, float("inf"))
    for _ in range(TURNS):
        for trial, (chain, hood) in runs.items():
            start = time.thread_time()
            chain.walk(hood, count, AnnealingOptions.model_validate({}).temperature_end * chain.start_s, 1.0)
            least[trial] = min(least[trial], time.thread_time() - start)
    for with_trials, without in zip(*(chain.at for chain, _ in runs.values()), strict=True):
        assert np.array_equal(with_trials, without), "trials changed the search"
    return (
        f"| {name} | {problem.graph.n:,} | {problem.g:,} | {'priorities' if priorities else 'first come'} |"
        f" {count / least[False]:,.0f} | {count / least[True]:,.0f} | {least[False] / least[True]:.2f} |"
    )


def seconds(checkout: Path, workload: str, folder: Path) -> float:
    """Seconds of the search of `placekit run +policy=annealing` in a checkout."""
    placekit, environment = placekit_of(checkout)
    command = [*placekit, "run", "+policy=annealing"]
    options = [
        f"workload={workload}",
        "cluster=p100x4",
        "grouper=colocation",
        "budget.evaluations=20000",
        f"run_dir={folder}",
    ]
    done = subprocess.run(
        [*command, *options],
        env=environment,
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr}")
    return float(json.loads((folder / "result.json").read_text())["seconds"])


def beside(older: Path) -> list[str]:
    """Evaluations per second of the whole command, in both checkouts."""
    lines = ["| workload | older evaluations/s | this | ratio |", "|---|---:|---:|---:|"]
    for workload in WORKLOADS:
        least = {older: float("inf"), ROOT: float("inf")}
        with tempfile.TemporaryDirectory() as folder:
            for turn in range(TURNS + 1):  # the first turn compiles
                for checkout in least:
                    took = seconds(checkout, workload, Path(folder) / f"{turn}-{checkout.name}")
                    if turn:
                        least[checkout] = min(least[checkout], took)
        old, new = (20_000 / least[c] for c in (older, ROOT))
        lines.append(f"| {workload} | {old:,.0f} | {new:,.0f} | {new / old:.2f} |")
        print(lines[-1], flush=True)
    return lines


LEGEND = [
    "`evaluations/s`: every move evaluated from the beginning; `with trials`: the same moves from marks, ended early;",
    "`ratio`: the second over the first. Below 1, the bookkeeping takes more than it saves.",
    "",
]


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    lines = [
        "| graph | operations | groups | order | evaluations/s | with trials | ratio |",
        "|---|---:|---:|---|---:|---:|---:|",
    ]
    print("\n".join(lines), flush=True)
    for name, problem in problems().items():
        for priorities in (False, True):
            lines.append(row(name, problem, priorities))
            print(lines[-1], flush=True)
    if arguments.beside:
        commit = subprocess.check_output(
            ["git", "-C", str(arguments.beside), "log", "-1", "--format=%h"], text=True
        ).strip()
        lines += [
            "",
            f"`placekit run +policy=annealing`, the older checkout is {commit}:",
            "",
            *beside(arguments.beside.resolve()),
        ]
    lines += [
        "",
        f"machine: {processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {load:.1f}",
    ]
    print(lines[-1])
    if arguments.write:
        command = f"`python benchmarks/search_speed.py{' --beside CHECKOUT' if arguments.beside else ''} --write`"
        text = "\n".join(["# Speed of searches", "", command, "", *LEGEND, *lines, ""])
        (ROOT / "benchmarks" / "results" / "search_speed.md").write_text(text)


if __name__ == "__main__":
    main()
