"""Measures imports of networks: milliseconds per operation, the share of each phase, and memory.

    python benchmarks/tracing.py [--quick] [--write]

Imports networks of placekit-zoo, with default options and the options shown. Each is imported in a process of its own, which has
imported a small network before. Seconds are CPU time of one thread, the less of two imports. The ratio is that of an
import without the short paths of `placekit_torch.shortcuts`, in the same process; the graphs must be equal. `--quick` takes
small networks; `--write` writes the report to benchmarks/results/tracing.md.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import multiprocessing
import os
import platform
import resource
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from placekit_torch import capture, factory, importer, lowering, optimizers, tracing
from placekit_torch.shortcuts import ShapeMode
from placekit_zoo import placekit_importers
from torch._subclasses.fake_tensor import FakeTensorMode

from placekit_core import Importer, Program

NETWORKS: list[tuple[str, dict[str, Any]]] = [
    ("inception_v3", {}),
    ("inception_v3", {"optimizer": "adam"}),
    ("inception_v3", {"mode": "inference"}),
    ("resnet", {}),
    ("nasnet", {"optimizer": "adam"}),
    ("rnnlm", {}),
    ("nmt", {}),
    ("nmt", {"layers": 8}),
    ("gpt", {}),
]
QUICK: list[tuple[str, dict[str, Any]]] = [("mlp", {}), ("rnnlm", {"steps": 4}), ("nmt", {"length": 4})]
PHASES = ("build", "trace", "optimizer", "lower")


def programs(name: str, options: dict[str, Any]) -> list[Program]:
    """Load the programs of importer `name`."""
    component = next(c for c in placekit_importers() if c.name == name)
    module, _, attribute = component.target.partition(":")
    made: Importer = getattr(importlib.import_module(module), attribute)(component.config.model_validate(options))
    return made.load()


@contextlib.contextmanager
def phases(spent: dict[str, float]) -> Iterator[None]:
    """Inside, imports add the seconds of each phase to `spent`."""

    def timed(phase: str, action: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **keywords: Any) -> Any:
            start = time.thread_time()
            result = action(*arguments, **keywords)
            result = list(result) if phase == "optimizer" else result  # a generator
            spent[phase] += time.thread_time() - start
            return result

        return run

    build, append = factory.Made.build, optimizers.Optimizer.append
    with (
        mock.patch.object(factory.Made, "build", timed("build", build)),
        mock.patch.object(capture, "trace_joint", timed("trace", tracing.trace_joint)),
        mock.patch.object(optimizers.Optimizer, "append", timed("optimizer", append)),
        mock.patch.object(importer, "lower", timed("lower", lowering.lower)),
    ):
        yield


@contextlib.contextmanager
def long_ways() -> Iterator[None]:
    """Inside, imports use only torch's own code."""
    with (
        mock.patch.object(tracing, "shortcuts", contextlib.nullcontext),
        mock.patch.object(ShapeMode, "__torch_dispatch__", FakeTensorMode.__torch_dispatch__),
        mock.patch.object(optimizers, "repeat_update", return_value=None),
    ):
        yield


def measure(name: str, options: dict[str, Any]) -> str:
    """One line of the table. Raises AssertionError if the short paths give another graph."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    programs("mlp", {})
    best, shares = float("inf"), dict[str, float]()
    for _ in range(2):
        spent: dict[str, float] = defaultdict(float)
        start = time.thread_time()
        with phases(spent):
            made = programs(name, options)
        took = time.thread_time() - start
        if took < best:
            best, shares = took, spent
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10  # kB on Linux
    with long_ways():
        start = time.thread_time()
        slow = programs(name, options)
        ratio = (time.thread_time() - start) / best
    assert [p.graph.fingerprint for p in made] == [p.graph.fingerprint for p in slow]
    n = sum(p.graph.n for p in made)
    text = ", ".join([name, *(f"{k}={v}" for k, v in options.items())])
    parts = " | ".join(f"{shares[p] / best:.0%}" for p in PHASES)
    return f"| {text} | {n:,} | {best:.2f} | {best / n * 1e3:.3f} | {parts} | {peak:,.0f} | {ratio:.2f} |"


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small networks")
    parser.add_argument("--write", action="store_true", help="keep the report in benchmarks/results/tracing.md")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    lines = [
        f"| network | operations | s | ms/operation | {' | '.join(PHASES)} | peak MiB | ratio |",
        "|---|---:|---:|---:|" + "---:|" * len(PHASES) + "---:|---:|",
    ]
    print("\n".join(lines), flush=True)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for line in pool.imap(measure_one, QUICK if arguments.quick else NETWORKS):
            lines.append(line)
            print(line, flush=True)
    machine = (
        f"machine: {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__},"
        f" load {load:.1f} before the run"
    )
    notes = ["", "ratio: seconds without the short paths over seconds with them; the graphs are equal", "", machine]
    print("\n".join(notes))
    if arguments.write:
        head = ["# Importing networks", "", "`python benchmarks/tracing.py --write`", ""]
        target = Path(__file__).parent / "results" / "tracing.md"
        target.write_text("\n".join([*head, *lines, *notes, ""]))


def measure_one(network: tuple[str, dict[str, Any]]) -> str:
    """`measure`, for a pool."""
    return measure(*network)


if __name__ == "__main__":
    main()
