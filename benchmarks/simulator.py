"""Placements per second of the simulator: the numba kernel on one core against the plain-Python reference.

    python benchmarks/simulator.py [--quick] [--write]

Layered random graphs and random placements on four devices (conf/cluster/p100x4.yaml: each has a full-duplex link of
12 GB/s to one PCIe switch). Both implementations run in the same process, the reference on the first of the placements,
where their values and peaks must be equal to the bit. Seconds are processor time of the one thread, which other programs
on the machine disturb less than the clock on the wall. The column `recorded` is the time of an evaluation that leaves why
everything started when it did, as searches have it, over that of one that does not. `--write` keeps the report in
benchmarks/results/simulator.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numba
import numpy as np
from placekit_scheduling.evaluation import evaluate_batch
from placekit_sim import SimulatorOptions
from placekit_sim.packing import pack
from placekit_sim.rules import Rules
from placekit_sim.simulator import Simulator

from placekit_core import Graph, GraphBuilder, Measurements, Placements, Problem, load_cluster

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins/backends/placekit-sim/tests"))

from sim_reference import Reference

SIZES = (112, 215, 1_000, 10_000, 50_000)


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


def events(problem: Problem, placements: Placements) -> float:
    """Mean number of operations and transfers that a placement runs."""
    graph, size = problem.graph, problem.cluster.size
    counts = []
    for device in placements.device[:16]:
        home = problem.expand(device).astype(np.int64)
        remote = home[graph.tensor_producer[graph.input_tensor]] != home[graph.edge_op]
        sent = np.unique(graph.input_tensor[remote].astype(np.int64) * size + home[graph.edge_op[remote]])
        counts.append(graph.n + len(sent))
    return float(np.mean(counts))


def row(problem: Problem, priority: bool, memory: bool, seconds: float) -> tuple[str, float]:
    """One line of the table, and nanoseconds per operation. Raises AssertionError if kernel and reference disagree."""
    n, size = problem.graph.n, problem.cluster.size
    rules = Rules.of(problem, SimulatorOptions())
    packed, reference = pack(problem, rules, track_memory=memory), Reference(problem, rules)
    count = max(8, 200_000 // n)
    rng = np.random.default_rng(1)
    device = rng.integers(0, size, (count, problem.g))
    placements = Placements.of(device, rng.random((count, problem.g)) if priority else None)
    few = placements[: max(1, min(count, 4_000 // n))]
    value_s, peak_bytes = evaluate_batch(packed.kernel(), few, size, packed.tasks)
    for i in range(len(few)):
        run = reference.run(*few.one(i), memory=memory)
        assert run.value_s == value_s[i]
        assert not memory or np.array_equal(run.peak_bytes, peak_bytes[i])
    fast = seconds_per_run(lambda: evaluate_batch(packed.kernel(), placements, size, packed.tasks), count, seconds)
    recording = pack(problem, rules, track_memory=memory, record=True)
    recorded = seconds_per_run(
        lambda: evaluate_batch(recording.kernel(), placements, size, recording.tasks), count, seconds
    )
    slow = seconds_per_run(
        lambda: [reference.run(*few.one(i), memory=memory) for i in range(len(few))], len(few), seconds
    )
    per_event = fast / events(problem, placements) * 1e9
    line = (
        f"| {n:,} | {'priority' if priority else 'fifo'} | {'yes' if memory else 'no'} | {1 / fast:,.0f} |"
        f" {per_event:.0f} | {1 / slow:,.1f} | {slow / fast:.1f} | {fast / n * 1e9:.0f} | {recorded / fast:.2f} |"
    )
    return line, fast / n * 1e9


def same_on_two_threads(problem: Problem) -> str:
    """Whether 1 and 2 threads give equal bits."""
    rng = np.random.default_rng(2)
    batch = Placements.of(rng.integers(0, problem.cluster.size, (400, problem.g)), rng.random((400, problem.g)))
    results: list[Measurements] = []
    for threads in (1, 2):
        session = Simulator(threads=threads).open(problem)
        results.append(session.evaluate(batch))
        session.close()
    one, two = results
    equal = one.value_s.tobytes() == two.value_s.tobytes() and one.peak_bytes.tobytes() == two.peak_bytes.tobytes()
    return "yes" if equal else "NO"


def processor() -> str:
    """Model of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), platform.processor())


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter measurements")
    parser.add_argument("--write", action="store_true", help="keep the report in benchmarks/results/simulator.md")
    arguments = parser.parse_args()
    seconds = 0.2 if arguments.quick else 2.0
    cluster = load_cluster(Path(__file__).parents[1] / "conf" / "cluster" / "p100x4.yaml")
    lines = [
        "| operations | order | memory | placements/s | ns/event | reference/s | ratio | ns/operation | recorded |",
        "|---:|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    load = os.getloadavg()[0]
    per_op: dict[tuple[int, bool, bool], float] = {}
    problems = [Problem.of(layered(n), cluster) for n in SIZES]
    print("\n".join(lines), flush=True)
    for problem in problems:
        for priority in (False, True):
            for memory in (False, True):
                line, per_op[problem.graph.n, priority, memory] = row(problem, priority, memory, seconds)
                lines.append(line)
                print(line, flush=True)
    growth = [per_op[50_000, p, m] / per_op[1_000, p, m] for p, m in product((False, True), repeat=2)]
    notes = [
        "",
        f"time per operation at 50,000 operations over that at 1,000: {min(growth):.2f} to {max(growth):.2f}",
        "",
        f"1 and 2 threads give the same bits: {same_on_two_threads(problems[2])}",
        "",
        "seconds are processor time of one thread",
        "",
        f"machine: {processor()}, {os.cpu_count()} cores, Python {platform.python_version()},"
        f" numba {numba.__version__}, numpy {np.__version__}, load {load:.1f} before the run",
    ]
    print("\n".join(notes))
    if arguments.write:
        report = ["# Simulator", "", "`python benchmarks/simulator.py --write`", "", *lines, *notes, ""]
        target = Path(__file__).parent / "results" / "simulator.md"
        target.parent.mkdir(exist_ok=True)
        target.write_text("\n".join(report))


if __name__ == "__main__":
    main()
