"""The cost of running a placed step, compared with eager PyTorch: milliseconds per step, microseconds per operation.

    python benchmarks/executor.py [--workloads A,B] [--repeats N] [--seeds N] [--write]

All ways to run one step take turns in this process, one torch thread a device; medians of the repeats. `halves` has the first
half of the program's work on one device and the rest on the other; `random` places every group anywhere.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from placekit_cuda.backend import CPUBackend, MeasuringBackend
from placekit_sim.simulator import Simulator
from placekit_zoo.base import ZooImporter
from simulator import processor

import placekit_core
from placekit_core import Cluster, CostTable, Problem, Program
from placekit_core.cli.compose import assembled

Run = Callable[[], object]
RESULT = Path(__file__).parent / "results" / "executor.md"


class Way(NamedTuple):
    """One way to run a step; `tasks` is the number of launches."""

    devices: int
    placement: str
    schedule: str
    launched: str
    tasks: int


def eager(importer: ZooImporter, device: str = "cpu") -> Callable[[], object]:
    """One training step as PyTorch does it."""
    torch.manual_seed(0)
    step = importer.step()
    assert step.optimizer is not None, "the training step"
    module = step.module.to(device)
    optimizer = step.optimizer([p for p in module.parameters() if p.requires_grad])
    on_device = functools.partial(torch.utils._pytree.tree_map_only, torch.Tensor, lambda t: t.to(device))
    positional, named = on_device(step.arguments)
    targets = on_device(step.loss_arguments)

    def run() -> None:
        optimizer.zero_grad()
        out = module(*positional, **named)
        (out if step.loss is None else step.loss(out, *targets)).backward()
        optimizer.step()

    return run


def placements(problem: Problem, devices: int) -> dict[str, NDArray[np.int64]]:
    """Groups to devices, by name."""
    if devices == 1:
        return {"one": np.zeros(problem.g, np.int64)}
    first = np.full(problem.g, problem.graph.n)
    np.minimum.at(first, problem.grouping.group_of, np.arange(problem.graph.n))
    order, seconds = np.argsort(first), problem.group_s[:, 0]
    halves = np.zeros(problem.g, np.int64)
    halves[order] = np.cumsum(seconds[order]) > seconds.sum() / 2
    return {"halves": halves, "random": np.random.default_rng(0).integers(0, devices, problem.g)}


def ways(program: Program, make: Callable[..., MeasuringBackend], counts: Sequence[int] = (1, 2)) -> dict[Way, Run]:
    """Every way to run a step of a program: on backends `make(devices=..., schedule=..., fuse=...)`."""
    found: dict[Way, Run] = {}
    for devices in counts:
        for schedule in ("static", "dynamic"):
            for fuse in (True, False):
                backend = make(devices=devices, schedule=schedule, fuse=fuse)
                cluster = backend.devices()
                assert cluster is not None
                problem = Problem.of(program.graph, cluster)
                session: Any = backend.open(problem, program.executable)
                for name, device in placements(problem, devices).items():
                    engine = session.engine(problem.placement(device))
                    way = Way(devices, name, schedule, "fused" if fuse else "single", len(engine.plan.nodes))
                    found[way] = functools.partial(engine.run, engine.place(session.initial), 0, schedule)
    return found


class Sleeping:
    """An executable whose kernels sleep for as long as they take in the machine model."""

    views: Mapping[int, int] = {}
    updates: Mapping[int, int] = {}
    results: Mapping[str, int] = {}

    def __init__(self, problem: Problem) -> None:
        self.graph, self.op_s = problem.graph, problem.op_s[:, 0]

    def initial(self, seed: int | None = None) -> dict[int, torch.Tensor]:
        """Nothing in all sources."""
        graph = self.graph
        return {t: self.made(t) for v in np.flatnonzero(~graph.kernel) for t in graph.outputs(int(v))}

    def made(self, tensor: int) -> torch.Tensor:
        """As many bytes as the graph says."""
        return torch.empty(int(self.graph.tensor_bytes[tensor]), dtype=torch.uint8)

    def compile(self, ops: Sequence[int], device: Any = None, keep: Any = None) -> Callable[..., Any]:
        """See `placekit_core.Executable`."""

        def run(values: Any, step: int = 0) -> Any:
            for op in ops:
                time.sleep(self.op_s[op])
            return {t: self.made(t) for op in ops for t in self.graph.outputs(op) if t in keep}

        return run


def sleeping(seeds: int) -> list[str]:
    """Makespans with kernels and copies that sleep, over the simulated ones: rows of a table."""
    rows = []
    graph = assembled(["workload=chainmm_small"], placekit_core.installed()).programs[0].graph
    for devices in (1, 2, 3, 4):
        ratios = []
        for seed in range(seeds):
            rng = np.random.default_rng([devices, seed])
            kind = {"type": "cpu", "flops_per_s": {"float32": 1e9}, "memory_bytes": 2**30, "memory_bytes_per_s": 1e9}
            links = [{"mesh": "cpu:*", "bytes_per_s": 1e5, "latency_s": 2e-3}] if devices > 1 else []
            cluster = Cluster.parse(
                {"kinds": {"cpu": kind}, "devices": [{"kind": "cpu", "count": devices}], "links": links}
            )
            op_s = rng.uniform(5e-3, 25e-3, graph.n) * graph.kernel
            costs = CostTable(("cpu",), op_s[:, None], np.zeros((graph.n, 1), np.bool_))
            problem = Problem.of(graph, cluster, costs=costs)
            placement = problem.placement(rng.integers(0, devices, problem.g), rng.permutation(problem.g)).batch()
            expected = Simulator().open(problem).evaluate(placement).value_s[0]
            executable: Any = Sleeping(problem)
            session = CPUBackend(links="cluster", steps=1, warm_up=1).open(problem, executable)
            ratios.append(session.evaluate(placement).value_s[0] / expected)
            session.close()
        low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
        rows.append(f"| {devices} | {seeds} | {low:.3f} | {middle:.3f} | {high:.3f} |")
        print(rows[-1], flush=True)
    return rows


PARALLEL_REPEATS = 7
PARALLEL = {
    "ChainMM, n = 1024": ["workload=chainmm", "importer.sizes={n: 1024}"],
    "ChainMM, n = 2048": ["workload=chainmm", "importer.sizes={n: 2048}"],
    "FFNN, 4096 x 512 x 2048 x 512": [
        "workload=ffnn_sharded", "importer.sizes={rows: 4096, features: 512, hidden: 2048, classes: 512}",
    ],
    "Inception-V3 (training), batch 2": ["workload=inception_v3", "importer.batch=2"],
}  # fmt: skip
"""Programs with work for two, and their options."""


def speedups(repeats: int) -> list[str]:
    """Two devices beside one: rows of a table."""
    rows = []
    for name, options in PARALLEL.items():
        program = assembled(options, placekit_core.installed()).programs[0]
        result = placekit_core.place(program, cluster=CPUBackend(devices=2).devices(), budget=2000)
        assert result.placement is not None
        for schedule in ("static", "dynamic", "bulk_synchronous"):
            session: Any = CPUBackend(devices=2, schedule=schedule).open(result.problem, program.executable)
            one = session.engine(session.problem.placement(np.zeros(session.problem.g, np.int64)))
            two = session.engine(result.placement)
            runs = {
                Way(devices, "", schedule, "", 0): functools.partial(
                    engine.run, engine.place(session.initial), 0, schedule
                )
                for devices, engine in ((1, one), (2, two))
            }
            alone, both = medians(runs, repeats).values()
            session.close()
            rows.append(f"| {name} | {schedule} | {1e3 * alone:.1f} | {1e3 * both:.1f} | {alone / both:.2f} |")
            print(rows[-1], flush=True)
    return rows


def medians(
    runs: Mapping[Way, Run], repeats: int, synchronize: Callable[[], object] = lambda: None
) -> dict[Way, float]:
    """Median seconds of each, all taking turns."""
    seconds: dict[Way, list[float]] = {way: [] for way in runs}
    for repeat in range(repeats + 2):
        for way, run in runs.items():
            start = time.perf_counter()
            run()
            synchronize()
            if repeat >= 2:
                seconds[way].append(time.perf_counter() - start)
    return {way: statistics.median(s) for way, s in seconds.items()}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workloads", default="inception_v3_small,rnnlm_small")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=10, help="placements of sleeping kernels")
    parser.add_argument("--write", action="store_true", help=f"into {RESULT.name}")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "# What running a placed step costs\n\n`python benchmarks/executor.py"
        f" --workloads {arguments.workloads} --repeats {arguments.repeats} --write`, medians; devices are threads of one"
        " processor, one torch thread each.\n",
        "| workload | devices | placement | schedule | launched | tasks | ms a step | µs an operation | of eager |",
        "| --- | ---: | --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for workload in arguments.workloads.split(","):
        importer = assembled([f"workload={workload}", "importer.mode=train"], placekit_core.installed()).build(
            "importer"
        )
        program = importer.load()[0]
        operations = int(program.graph.kernel.sum())
        runs = {Way(1, "one", "eager", "", operations): eager(importer), **ways(program, CPUBackend)}
        found = medians(runs, arguments.repeats)
        base = next(iter(found.values()))
        for way, s in found.items():
            row = " | ".join(map(str, [workload, *way]))
            lines.append(f"| {row} | {1e3 * s:.2f} | {1e6 * s / operations:.1f} | {s / base:.2f} |")
            print(lines[-1], flush=True)
    lines += [
        "\n## Two devices beside one\n\nSteps of programs with work for two: all operations on one device, and placed on two by"
        " the default policy with 2,000 evaluations on the simulator, at the nominal rates of the machine. Medians of"
        f" {PARALLEL_REPEATS}.\n",
        "| program | schedule | one, ms | two, ms | times as fast |",
        "| --- | --- | ---: | ---: | ---: |",
        *speedups(PARALLEL_REPEATS),
        "\n## Sleeping kernels\n\nSteps of the small ChainMM whose kernels (5 to 25 ms) and copies (2 ms and more) sleep, under"
        " random placements with random priorities: seconds over those of the simulator.\n",
        "| devices | placements | least | median | most |",
        "| ---: | ---: | ---: | ---: | ---: |",
        *sleeping(arguments.seeds),
    ]
    text = "\n".join([*lines, "", f"machine: {processor()}, load {os.getloadavg()[0]:.1f} at the end", ""])
    print(text)
    if arguments.write:
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
