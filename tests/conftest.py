"""Shared by the core's tests: the command line in this process, and small problems."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from placekit_core.cluster import Cluster
from placekit_core.graph import Graph, GraphBuilder
from placekit_core.problem import Problem
from placekit_core.testing import fakes


class Outcome(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


@pytest.fixture
def placekit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Outcome]:
    """Run `placekit ARGS` in this process, in an empty folder."""
    from placekit_core.cli import main

    def run(*args: str) -> Outcome:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["placekit", *args])
        try:
            code = main()
        except SystemExit as e:  # Hydra's --help and --cfg leave this way
            code = int(e.code or 0)
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    monkeypatch.chdir(tmp_path)
    return run


@pytest.fixture
def diamond() -> Graph:
    r"""A weight and an input, then  a -> (b, c) -> d; b and c can run side by side."""
    return fakes.diamond_graph()


def machine(devices: int = 2, memory_bytes: int = 2**30, **kind: object) -> Cluster:
    """Equal GPUs of 1 TFLOP/s with full efficiency, linked to one hub at 1 GB/s."""
    full = {"compute": 1.0, "memory": 1.0}
    data = {
        "name": f"test{devices}",
        "kinds": {
            "gpu": {
                "flops_per_s": {"float32": 1e12},
                "memory_bytes": memory_bytes,
                "memory_bytes_per_s": 1e15,
                "efficiency": {"other": full},
                **kind,
            }
        },
        "devices": [{"kind": "gpu", "count": devices}],
        "links": [{"a": "gpu:*", "b": "hub", "bytes_per_s": 1e9}],
    }
    return Cluster.parse(data)


@pytest.fixture
def problem(diamond: Graph) -> Problem:
    """The diamond on two devices: 20 ms on one of them, critical path 12 ms."""
    return Problem.of(diamond, machine())


def chain(n: int, seed: int = 0) -> Graph:
    """A chain of n operations of random length."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder(f"chain{n}")
    t = b.source("x", 1000, op_type="input")
    for i in range(n):
        [t] = b.add(f"op{i}", inputs=[t], outputs=[1000], flops=float(rng.integers(1, 10)) * 1e9)
    return b.build()
