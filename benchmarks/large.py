"""Measures how close the default search comes to the known optimum of large planted graphs, over processor seconds.

    python benchmarks/large.py [--sizes 10000,100000] [--seconds N] [--policies A,B] [--write]

Beside it are `etf`, `heft`, `metis` and one device. Every run has its own process, which has compiled its loops before. The clock
of the budget counts processor seconds of all threads, from the problem to the result, without import, bound and files. With
`--write`, benchmarks/results/large.json gets the runs, and large.md and large.svg show them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import resource
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

import placekit_core
from placekit_core import BudgetExhausted, Grouping, Ledger, Problem, Task, installed, load_programs
from placekit_core.contracts import ledger
from placekit_core.run.evaluator import BudgetedEvaluator

RESULTS = Path(__file__).parent / "results"
LAYERS = {10_000: 417, 100_000: 4167, 1_000_000: 41667}  # by operations, about
SECONDS = {10_000: 20, 100_000: 60, 1_000_000: 100}
POLICIES = ("portfolio", "etf", "heft", "metis", "single_device")
MARKS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8c959f")
LABELS = {
    "portfolio": ("portfolio", False, 16), "etf": ("", False, 0), "heft": ("etf, heft", False, 18),
    "metis": ("metis", True, -6), "single_device": ("single_device", True, -19),
}  # fmt: skip
"""Text of each policy in the chart, whether it is right of its mark, and how far below. `etf` and `heft` have one text."""


def measure(size: int, policy: str, seconds: float) -> dict[str, Any]:
    """One run, in this process: (processor seconds, value over the optimum) whenever the best value fell."""
    placekit_core.place("planted", policy=policy, budget={"seconds": 1}, baselines=[], log=[])
    if policy == "portfolio":
        from placekit_search.multilevel import warm_up_levels

        warm_up_levels()
    mock.patch.object(ledger, "time", SimpleNamespace(perf_counter=time.process_time)).start()
    [program] = load_programs("planted", layers=LAYERS[size])
    graph, cluster = program.graph, program.cluster
    assert cluster is not None
    registry = installed()
    began = time.process_time()
    problem = Problem.of(graph, cluster, Grouping(np.arange(graph.n, dtype=np.int32)))
    session = registry.build("backend", "simulator", {}).open(problem)
    evaluator = BudgetedEvaluator(problem, session, Ledger(None, seconds), objective="makespan")
    task = Task(problem, evaluator)
    chosen = registry.build("policy", policy, {"samples": 1} if policy in ("etf", "heft") else {})
    with contextlib.suppress(BudgetExhausted):
        placement = chosen.place(task, np.random.default_rng(0))
        if policy != "portfolio":
            task.evaluate(placement.batch())
    best = task.evaluate.best
    assert best is not None
    optimum_s, curve = float(graph.attributes["optimal_makespan_s"]), list[tuple[float, float]]()
    for row in evaluator.history:
        if not curve or row[4] / optimum_s < curve[-1][1]:
            curve.append((round(row[1], 2), row[4] / optimum_s))
    return {
        "operations": graph.n, "over": best.value_s / optimum_s, "evaluations": task.evaluate.evaluations,
        "processor_s": round(time.process_time() - began, 1), "clock_s": round(task.evaluate.ledger.seconds, 1),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10), "curve": curve,
    }  # fmt: skip


def table(runs: dict[str, Any]) -> str:
    """The runs as Markdown."""
    lines = [
        "# Large planted graphs", "", "`python benchmarks/large.py --write`", "",
        "Gap: how far the value is above the optimum, which is known by construction. Processor seconds are those of all",
        "threads, from the problem to the result.", "", "![gap over processor seconds](large.svg)", "",
        "| operations | policy | gap | evaluations | processor seconds | peak, MiB |", "|---:|---|---:|---:|---:|---:|",
    ]  # fmt: skip
    for key, run in sorted(runs.items(), key=lambda item: (item[1]["operations"], POLICIES.index(item[0].split()[1]))):
        lines.append(
            f"| {run['operations']:,} | `{key.split()[1]}` | {run['over'] - 1:.1%} | {run['evaluations']:,} |"
            f" {run['processor_s']} | {run['peak_mib']:,} |"
        )
    return "\n".join([*lines, ""])


def chart(runs: dict[str, Any]) -> str:
    """A panel for each size: gap over processor seconds, both logarithmic; a curve for the search, a point for the others."""
    sizes = [size for size in LAYERS if f"{size} portfolio" in runs]
    wide, high = 240, 200
    body = []
    for column, size in enumerate(sizes):
        left = 50 + column * (wide + 20)

        def at(seconds: float, over: float, left: float = left) -> tuple[float, float]:
            x = left + wide * (math.log10(min(max(seconds, 0.01), 1000)) + 2) / 5
            return round(x, 1), round(30 + high * (1 - (math.log10(max(over - 1, 1e-3)) + 3) / 4), 1)

        body.append(f'<text class="b" x="{left}" y="18">{runs[f"{size} portfolio"]["operations"]:,} operations</text>')
        for gap in (0.001, 0.01, 0.1, 1.0, 10.0):
            y = at(1, 1 + gap)[1]
            body.append(f'<path class="l" d="M{left} {y}h{wide}"/>')
            if not column:
                body.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{100 * gap:,.4g}%</text>')
        for power in range(-1, 3):
            x = at(10.0**power, 2)[0]
            body.append(f'<text x="{x}" y="{30 + high + 16}" text-anchor="middle">{10.0**power:g}</text>')
        for policy, colour in zip(POLICIES, MARKS, strict=True):
            run = runs.get(f"{size} {policy}")
            if run is None:
                continue
            if policy == "portfolio":
                steps = [at(*run["curve"][0])]
                for seconds, over in run["curve"][1:]:
                    steps += [(at(seconds, over)[0], steps[-1][1]), at(seconds, over)]
                steps.append((at(run["clock_s"], 2)[0], steps[-1][1]))
                points = " ".join(f"{x},{y}" for x, y in steps)
                body.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>')
                x, y = steps[-1]
            else:
                x, y = at(run["processor_s"], run["over"])
                body.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>')
            name, start, below = LABELS[policy]
            anchor = "start" if start or x < left + 80 else "end"
            x += 7 if anchor == "start" else -7
            body.append(f'<text x="{x:.1f}" y="{y + below:.1f}" text-anchor="{anchor}">{name}</text>')
    width = 50 + len(sizes) * (wide + 20)
    style = "text{font:11px sans-serif;fill:#1f2328}.b{font-weight:bold}.l{stroke:#8c959f;stroke-width:.5}"
    style += "@media (prefers-color-scheme:dark){text{fill:#f0f6fc}}"
    axes = "across: processor seconds; upwards: gap to the optimum"
    foot = f'<text x="{width / 2}" y="{high + 66}" text-anchor="middle">{axes}</text>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {high + 76}"><style>{style}</style>'
    return "\n".join([head, *body, foot, "</svg>", ""])


def main() -> None:
    """Measure, and print each run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", default=",".join(map(str, LAYERS)))
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--seconds", type=float, help="processor seconds of each search")
    parser.add_argument("--write", action="store_true", help="keep the runs in benchmarks/results")
    arguments = parser.parse_args()
    path = RESULTS / "large.json"
    runs: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    for size in map(int, arguments.sizes.split(",")):
        for policy in arguments.policies.split(","):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                run = pool.apply(measure, (size, policy, arguments.seconds or SECONDS[size]))
            print(size, policy, json.dumps(run), flush=True)
            runs[f"{size} {policy}"] = run
            if arguments.write:
                path.write_text(json.dumps(runs, indent=1) + "\n")
                (RESULTS / "large.md").write_text(table(runs))
                (RESULTS / "large.svg").write_text(chart(runs))


if __name__ == "__main__":
    main()
