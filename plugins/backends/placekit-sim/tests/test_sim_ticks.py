"""Whole ticks: decimal durations are added without rounding; all others stay floating-point seconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from machine_model import Rules, clock
from placekit_sim import packing, rules
from placekit_sim.simulator import Simulator

from placekit_core import Cluster, CostTable, Graph, GraphBuilder, Problem, Schedule


def problem(graph: Graph, seconds: list[float], link: dict[str, Any] | None = None, **fields: Any) -> Problem:
    """Operations of these seconds on two devices, each with two streams. A link carries a byte per second."""
    gpu = {"flops_per_s": {"float32": 1.0}, "memory_bytes": 1000, "memory_bytes_per_s": 1.0, "streams": 2}
    links = [{"mesh": "*", **(link or {"bytes_per_s": 1.0})}]
    machine = {"kinds": {"gpu": gpu}, "devices": [{"kind": "gpu", "count": 2}], "links": links, **fields}
    op_s = np.asarray(seconds)[:, None]
    return Problem.of(graph, Cluster.parse(machine), costs=CostTable(("gpu",), op_s, np.zeros(op_s.shape, np.bool_)))


def row(n: int, launches: float = 1.0) -> Graph:
    """Operations that each read a byte from the one before."""
    b = GraphBuilder("row")
    outputs: list[int] = []
    for i in range(n):
        outputs = b.add(f"o{i}", inputs=outputs, outputs=[1])
    b.columns["launches"] = np.full(n, launches)
    return b.build()


def schedule(p: Problem, device: list[int]) -> Schedule:
    return Simulator().open(p).schedule(p.placement(device))


def test_decimal_durations_are_added_without_rounding() -> None:
    assert 0.1 + 0.2 + 0.3 != 0.6
    p = problem(row(3), [0.1, 0.2, 0.3])
    found = schedule(p, [0, 0, 0])
    assert found.op_start_s.tolist() == [0.0, 0.1, 0.3]
    assert found.op_end_s.tolist() == [0.1, 0.3, 0.6]
    assert found.value_s == 0.6
    found = schedule(p, [0, 1, 1])
    assert found.transfer_end_s.tolist() == [1.1]
    assert found.value_s == 1.6


def test_rounding_breaks_no_ties() -> None:
    b = GraphBuilder("tie")
    (x,) = b.add("first", outputs=[1])
    (y,) = b.add("second", inputs=[x], outputs=[1])
    (z,) = b.add("long", outputs=[1])
    for name, tensor in (("after second", y), ("after long", z), ("also after long", z)):
        b.add(name, inputs=[tensor])
    found = schedule(problem(b.build(), [0.1, 0.2, 0.3, 1, 1, 1]), [0] * 6)
    assert found.op_start_s.tolist() == [0.0, 0.1, 0.0, 0.3, 0.3, 1.3]  # two streams: the lower numbers go first


SLOW = {"bytes_per_s": 1.0, "latency_s": 5e-6}


@pytest.mark.parametrize(
    ("p", "per_s"),
    [
        (problem(row(2), [1, 2]), 1),
        (problem(row(2), [0.5, 1.25]), 100),
        (problem(row(1), [0.5], {"bytes_per_s": 1e3}), 1000),
        (problem(row(1), [0.5], SLOW), 10**6),
        (problem(row(1), [0.5], hosts=[{"launch_s": 2e-4}]), 10**4),
        (problem(row(1, launches=0.25), [0.5], hosts=[{"launch_s": 2e-4}]), 10**5),
        (problem(row(1), [0.5], hosts=[{"launch_s": 2e-4, "handover_s": 1e-5}]), 10**5),
        (problem(row(1), [2e-12]), 10**12),
        (problem(row(1), [2e-13]), 0),
        (problem(row(1), [1 / 3]), 0),
        (problem(row(1), [0.5], {"bytes_per_s": 12e9}), 0),
        (problem(row(1), [1e11], SLOW), 0),  # 10^17 ticks would be rounded
    ],
)
def test_ticks_are_as_long_as_they_can_be(p: Problem, per_s: int) -> None:
    assert clock(p, Rules()).per_s == per_s
    packed = packing.pack(p, rules.Rules()).layout
    assert packed.floats[packed.begin["ticks_per_s"]] == max(per_s, 1)


def test_noise_is_no_number_of_ticks() -> None:
    assert clock(problem(row(1), [0.5]), Rules(noise=0.1)).per_s == 0
