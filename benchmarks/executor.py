"""What running a placed step costs beside eager PyTorch: milliseconds per step, microseconds per operation.

    python benchmarks/executor.py [--workloads A,B] [--repeats N] [--write]

All ways to run one step take turns in this process, one torch thread a device; medians of the repeats. `halves` has the first
half of the program's work on one device and the rest on the other; `random` places every group anywhere.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from placekit_cuda.backend import CPUBackend
from placekit_zoo.base import ZooImporter
from simulator import processor

from placekit_core.cli.hydra_app import compose
from placekit_core.config import validate
from placekit_core.problem import Problem, Program

RESULT = Path(__file__).parent / "results" / "executor.md"


def eager(importer: ZooImporter) -> Callable[[], object]:
    """One step as PyTorch does it."""
    torch.manual_seed(0)
    step = importer.step()
    assert step.optimizer is not None, "the training step"
    optimizer = step.optimizer([p for p in step.module.parameters() if p.requires_grad])

    def run() -> None:
        optimizer.zero_grad()
        positional, named = step.arguments
        out = step.module(*positional, **named)
        (out if step.loss is None else step.loss(out, *step.loss_arguments)).backward()
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


def ways(program: Program) -> dict[str, Callable[[], object]]:
    """Every way to run a step of a program, by name."""
    found: dict[str, Callable[[], object]] = {}
    for devices in (1, 2):
        problem = Problem.of(program.graph, CPUBackend(devices=devices).devices())
        for name, device in placements(problem, devices).items():
            for schedule in ("static", "dynamic"):
                for fuse in (True, False):
                    backend = CPUBackend(devices=devices, schedule=schedule, fuse=fuse)
                    session: Any = backend.open(problem, program.executable)
                    engine = session.engine(problem.placement(device))
                    sources = engine.place(session.initial)
                    label = (
                        f"{devices} | {name} | {schedule} | {'fused' if fuse else 'single'} | {len(engine.plan.nodes)}"
                    )
                    found[label] = functools.partial(engine.run, sources, 0, schedule)
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workloads", default="inception_v3_small,rnnlm_small")
    parser.add_argument("--repeats", type=int, default=30)
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
        importer = validate(compose([f"workload={workload}", "importer.mode=train"])).build("importer")
        program = importer.load()[0]
        operations = int(program.graph.kernel.sum())
        runs = {f"1 | one | eager | | {operations}": eager(importer), **ways(program)}
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for repeat in range(arguments.repeats + 2):
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                if repeat >= 2:
                    seconds[name].append(time.perf_counter() - start)
        median = {name: statistics.median(s) for name, s in seconds.items()}
        base = next(iter(median.values()))
        for name, s in median.items():
            lines.append(f"| {workload} | {name} | {1e3 * s:.2f} | {1e6 * s / operations:.1f} | {s / base:.2f} |")
            print(lines[-1], flush=True)
    text = "\n".join([*lines, "", f"machine: {processor()}, load {os.getloadavg()[0]:.1f} at the end", ""])
    print(text)
    if arguments.write:
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
