"""Evaluations per second of backends max_load, blocking_latency and pipeline, and the seconds that policy chain takes.

    python benchmarks/pipeline.py [--quick] [--write]

Networks of layers (forward, backward and update phase; branches inside a layer) on eight devices of three kinds, a machine
with a switch. A group is an operation of the forward phase with its parameter, gradients and update. `from the beginning`:
placements that have little in common, so each is evaluated anew; `single move`: each moves one group from a stage to its
neighbour, in the same working space, as searches do. The evaluations in Python are those that the tests hold the compiled
ones against, on the first of the same placements and in the same process; values must be equal. Seconds are processor time of
the one thread, which other programs on the machine disturb less than the clock on the wall.

The second part splits decoders into stages. `whole process` is a new interpreter that imports torch, traces gpt (inference, 80
layers), finds the best split with policy chain, and prints the stages; its seconds are those of the clock. The 100 blocks are
of random seconds and bytes; their backward passes take twice as long, give or take a twentieth. `--write` keeps the report in
benchmarks/results/pipeline.md and pipeline.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray
from placekit_pipeline.blocking import BlockingLatency
from placekit_pipeline.chain import ChainPolicy
from placekit_pipeline.max_load import MaxLoad
from placekit_pipeline.pipeline import Pipeline
from placekit_scheduling.evaluation import evaluate_batch
from simulator_worker import seconds_per_run

from placekit_core import Backend, Cluster, CostTable, Graph, GraphBuilder, Placements, Problem, Task
from placekit_core.run.api import place
from placekit_core.run.evaluator import BudgetedEvaluator

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins/backends/placekit-pipeline/tests"))

import pipeline_reference as reference

RESULTS = Path(__file__).parent / "results"
SIZES = (100, 1_000, 10_000)
MICROBATCHES = 8
BACKENDS: dict[str, tuple[type[Backend], dict[str, Any]]] = {
    "max_load": (MaxLoad, {}),
    "blocking_latency": (BlockingLatency, {}),
    **{f"pipeline, {s}": (Pipeline, {"schedule": s}) for s in ("gpipe", "1f1b", "interleaved")},
    "pipeline, inference": (Pipeline, {"schedule": "inference"}),
}
KINDS = {
    "a": {"flops_per_s": {"float32": 80e12}, "memory_bytes": 80e9, "memory_bytes_per_s": 2e12},
    "b": {"flops_per_s": {"float32": 40e12}, "memory_bytes": 48e9, "memory_bytes_per_s": 1e12},
    "c": {"flops_per_s": {"float32": 20e12}, "memory_bytes": 24e9, "memory_bytes_per_s": 7e11},
}


@dataclass(frozen=True)
class Speed:
    """Evaluations per second of one backend on one graph."""

    backend: str
    operations: int
    fresh_per_s: float
    moves_per_s: float
    python_per_s: float


def machine() -> Cluster:
    """Eight devices of three kinds on one switch."""
    return Cluster.parse({
        "name": "unlike8", "kinds": KINDS,
        "devices": [{"kind": "a", "count": 3}, {"kind": "b", "count": 3}, {"kind": "c", "count": 2}],
        "links": [{"a": "*", "b": "switch", "bytes_per_s": 24e9, "latency_s": 1e-5}],
    })  # fmt: skip


def network(n: int, trains: bool, seed: int = 0) -> Graph:
    """About n operations, sources included: layers of three, of which the second and third both read from the first.

    Gradients flow back the same way.
    """
    rng = np.random.default_rng(seed)
    b = GraphBuilder(f"network {n}")
    outputs, weights, reads = list[int](), list[int](), list[list[int]]()
    for i in range(n // (5 if trains else 2)):
        before = [] if not i else [i - 2, i - 1] if i % 3 == 0 else [i - 1] if i % 3 == 1 else [i - 2]
        reads.append(before)
        weights.append(b.source(f"w{i}", int(rng.uniform(1e6, 1e7)), colocate=i))
        outputs += b.add(
            f"f{i}", op_class="matmul", inputs=[weights[i], *(outputs[j] for j in before)],
            outputs=[int(rng.uniform(1e6, 2e7))], flops=rng.uniform(2e9, 4e10), colocate=i,
        )  # fmt: skip
    gradients: list[list[int]] = [[] for _ in outputs]
    for i in reversed(range(len(outputs))) if trains else ():
        [gradient] = b.add(
            f"b{i}", op_class="matmul", inputs=[weights[i], outputs[i], *gradients[i]],
            outputs=[int(rng.uniform(1e6, 2e7))], flops=rng.uniform(2e9, 4e10), colocate=i, phase="backward",
        )  # fmt: skip
        [of_weight] = b.add(
            f"g{i}", op_class="matmul", inputs=[outputs[i], *gradients[i]], outputs=[int(rng.uniform(1e6, 1e7))],
            flops=rng.uniform(2e9, 4e10), colocate=i, phase="backward",
        )  # fmt: skip
        b.add(f"u{i}", inputs=[weights[i], of_weight], colocate=i, phase="update", flops=1e6)
        for j in reads[i]:
            gradients[j].append(gradient)
    return b.build()


def fresh(problem: Problem, count: int, turns: int) -> NDArray[np.int16]:
    """Contiguous splits into eight stages, or `turns` times eight, with devices in random order."""
    rng, size = np.random.default_rng(1), problem.cluster.size
    rows = []
    for _ in range(count):
        bounds = np.sort(rng.choice(np.arange(1, problem.g), min(turns * size, problem.g) - 1, replace=False))
        stage = np.searchsorted(bounds, np.arange(problem.g), side="right")
        rows.append(rng.permutation(size)[stage % size])
    return np.asarray(rows, np.int16)


def moves(problem: Problem, count: int, turns: int) -> NDArray[np.int16]:
    """A walk from such a split: each step moves the group at the edge of a stage to the stage beside it."""
    rng = np.random.default_rng(2)
    device = fresh(problem, 1, turns)[0]
    rows = [device]
    while len(rows) < count:
        i = int(rng.integers(1, problem.g - 1))
        other = device[i - 1] if device[i + 1] == device[i] else device[i + 1]
        if other == device[i] or device[i] not in (device[i - 1], device[i + 1]):
            continue  # inside a stage, or all of it
        device = device.copy()
        device[i] = other
        rows.append(device)
    return np.asarray(rows, np.int16)


def in_python(name: str, problem: Problem, device: NDArray[np.int16], schedule: str) -> float:
    """The value by the tests' evaluation in Python, seconds."""
    if name == "max_load":
        return float(reference.max_load(problem, device)[0])
    if name == "blocking_latency":
        return float(reference.blocking_latency(problem, device)[0])
    return float(reference.pipeline(problem, device, "step", schedule, MICROBATCHES, True, False)[0])


def speed(name: str, n: int, at_least_s: float) -> Speed:
    """One row of the table. Raises AssertionError if the evaluations disagree, or a placement has no value."""
    kind, options = BACKENDS[name]
    trains = name not in ("max_load", "blocking_latency", "pipeline, inference")
    problem = Problem.of(network(n, trains), machine())
    if kind is Pipeline:
        options = {**options, "microbatches": MICROBATCHES}
    turns = 2 if options.get("schedule") == "interleaved" else 1
    kernel = kind(threads=1, **options).open(problem).kernel()
    assert kernel is not None
    size, count = problem.cluster.size, max(16, 40_000 // n)

    def evaluate(rows: NDArray[np.int16]) -> NDArray[np.float64]:
        return evaluate_batch(kernel, Placements.of(rows), size, n)[0]

    anew, walk = fresh(problem, count, turns), moves(problem, count, turns)
    few = anew[: max(1, min(count, 1_000 // n))]
    values = evaluate(anew)
    assert np.isfinite(values).all()
    assert np.isfinite(evaluate(walk)).all()
    schedule = str(options.get("schedule", ""))
    for i, device in enumerate(few):
        assert abs(in_python(name, problem, device, schedule) - values[i]) <= 1e-9 * values[i], f"{name}, {n}, row {i}"
    slow = seconds_per_run(lambda: [in_python(name, problem, d, schedule) for d in few], len(few), at_least_s)
    return Speed(
        name, n, 1 / seconds_per_run(lambda: evaluate(anew), count, at_least_s),
        1 / seconds_per_run(lambda: evaluate(walk), count, at_least_s), 1 / slow,
    )  # fmt: skip


# ---- policy chain


def print_stages(objective: str) -> None:
    """Trace, split, and print the stages and what took how long: the whole process that the second part times."""
    started = time.perf_counter()
    result = place(
        "gpt", cluster=machine(), policy="chain", budget=100_000, mode="inference", layers=80,
        backend={"name": "pipeline", "objective": objective, "microbatches": 16},
    )  # fmt: skip
    assert result.placement is not None
    problem = result.programs[0].problem
    home = problem.expand(result.placement.device)
    layers: dict[int, list[str]] = {}
    for v in problem.graph.topological_order.tolist():
        module = ".".join(problem.graph.module[v].split(".")[:2])
        if problem.graph.kernel[v] and module.startswith("h."):
            own = layers.setdefault(int(home[v]), [])
            if module not in own:
                own.append(module)
    for d, own in layers.items():
        print(f"{problem.cluster.device_names[d]}: {own[0]} to {own[-1]}")
    print(json.dumps({
        "value_s": result.value_s, "policy_s": result.summary.seconds, "operations": problem.graph.n,
        "place_s": time.perf_counter() - started, "notes": result.summary.notes,
    }))  # fmt: skip


def whole_process(objective: str) -> dict[str, Any]:
    """Seconds on the clock of a new interpreter that prints the stages; the compiled code is on disk already."""
    command = [sys.executable, __file__, "--stages", objective]
    start = time.perf_counter()
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    took = time.perf_counter() - start
    return {"objective": objective, "whole_s": took, **json.loads(out[-1]), "stages": out[:-1]}


def blocks(count: int, trains: bool) -> Problem:
    """A chain of blocks of random costs, a group each; memory allows few splits."""
    rng = np.random.default_rng(7)
    b = GraphBuilder("blocks")
    made: list[int] = []
    weights: list[int] = []
    for i in range(count):
        weights.append(b.source(f"w{i}", int(rng.uniform(1e9, 3e9)), colocate=i))
        made += b.add(f"f{i}", inputs=[weights[i], *made[-1:]], outputs=[int(rng.uniform(1e7, 5e7))], colocate=i)
    gradient: list[int] = []
    for i in reversed(range(count)) if trains else ():
        gradient = b.add(
            f"b{i}",
            inputs=[made[i], weights[i], *gradient],
            outputs=[int(rng.uniform(1e7, 5e7))],
            colocate=i,
            phase="backward",
        )
    graph, cluster = b.build(), machine()
    seconds = rng.uniform(1e-3, 2e-2, count)[graph.colocate] * np.where(
        graph.phase == 1, rng.uniform(1.9, 2.1, graph.n), 1.0
    )
    op_s = seconds[:, None] * np.asarray([1.0, 2.0, 4.0]) * graph.kernel[:, None]
    return Problem.of(graph, cluster, None, CostTable(("a", "b", "c"), op_s, np.zeros(op_s.shape, np.bool_)))


def split_blocks(name: str, kind: type[Backend], options: dict[str, Any], trains: bool) -> dict[str, Any]:
    """Processor seconds of `chain` on 100 blocks, the backend opened and compiled before."""
    problem = blocks(100, trains)
    backend = kind(threads=1, **options)
    session = backend.open(problem)
    session.kernel()
    evaluator = BudgetedEvaluator(problem, session, objective=backend.objective)
    start, clock = time.process_time(), time.perf_counter()
    found = ChainPolicy().place(Task(problem, evaluator), np.random.default_rng(0))
    took, wall = time.process_time() - start, time.perf_counter() - clock
    measured = session.evaluate(found.batch())
    return {
        "case": name, "process_s": took, "clock_s": wall, "value_s": float(measured.value_s[0]), "fits": bool(measured.fits[0]),
        "evaluations": evaluator.evaluations, "proof": any("is better" in note for note in evaluator.notes),
    }  # fmt: skip


SPLITS: tuple[tuple[str, type[Backend], dict[str, Any], bool], ...] = (
    ("max_load", MaxLoad, {}, False),
    ("throughput", Pipeline, {"objective": "throughput"}, False),
    ("token", Pipeline, {"objective": "token"}, False),
    ("inference, 16 micro-batches", Pipeline, {"microbatches": 16}, False),
    ("1f1b, 16 micro-batches", Pipeline, {"microbatches": 16}, True),
    ("gpipe, 16 micro-batches", Pipeline, {"microbatches": 16, "schedule": "gpipe"}, True),
)


def processor() -> str:
    """Model of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), platform.processor())


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter measurements")
    parser.add_argument("--write", action="store_true", help="keep the report in benchmarks/results")
    parser.add_argument("--stages", metavar="OBJECTIVE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stages:
        print_stages(arguments.stages)
        return
    load = os.getloadavg()[0]
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    tell("| backend | operations | from the beginning/s | single moves/s | Python/s | ratio | ratio of moves |")
    tell("|---|---:|---:|---:|---:|---:|---:|")
    speeds = []
    for name in BACKENDS:
        for n in SIZES:
            s = speed(name, n, 0.1 if arguments.quick else 0.5)
            speeds.append(s)
            tell(
                f"| {name} | {n:,} | {s.fresh_per_s:,.0f} | {s.moves_per_s:,.0f} | {s.python_per_s:,.2f} |"
                f" {s.fresh_per_s / s.python_per_s:,.0f} | {s.moves_per_s / s.python_per_s:,.0f} |"
            )
    tell("\n| 100 blocks, 8 devices of 3 kinds | processor s | value, ms | evaluations | proof |")
    tell("|---|---:|---:|---:|---|")
    for case in SPLITS:  # compiled code is loaded at the first
        split_blocks(*case)
    splits = [split_blocks(*case) for case in SPLITS]
    for c in splits:
        tell(
            f"| {c['case']} | {c['process_s']:.2f} | {1e3 * c['value_s']:.2f} | {c['evaluations']} |"
            f" {'yes' if c['proof'] else 'no'} |"
        )
    tell("\n| gpt, 80 layers, 8 devices of 3 kinds | whole process, s | of it policy, s | value, ms | proof |")
    tell("|---|---:|---:|---:|---|")
    processes = [whole_process(objective) for objective in ("throughput", "token", "step")]
    for p in processes:
        proof = any("is better" in note for note in p["notes"])
        tell(
            f"| {p['objective']} | {p['whole_s']:.2f} | {p['policy_s']:.2f} | {1e3 * p['value_s']:.3f} |"
            f" {'yes' if proof else 'no'} |"
        )
    tell(f"\nstages for `throughput`: {'; '.join(processes[0]['stages'])}")
    tell(
        f"\nmachine: {processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, numba {numba.__version__},"
        f" numpy {np.__version__}, load {load:.1f} before the run"
    )
    if arguments.write:
        report = ["# Pipelines", "", "`python benchmarks/pipeline.py --write`", "", *lines, ""]
        (RESULTS / "pipeline.md").write_text("\n".join(report))
        data = {"speeds": [asdict(s) for s in speeds], "blocks": splits, "gpt": processes}
        (RESULTS / "pipeline.json").write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
