"""A second device that gains nothing is not used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from placekit_search.fewer_devices import on_fewer_devices
from placekit_search.portfolio import Portfolio
from search_helpers import machine, task_of

from placekit_core import Cluster, ErrorBand, Graph, GraphBuilder, Problem


def with_aside(seconds: float) -> Graph:
    """A chain of 100 s, and beside it an operation of so many seconds."""
    b = GraphBuilder("aside")
    [x] = b.add("start", outputs=[1], flops=1.0)
    [y] = b.add("long", inputs=[x], outputs=[1], flops=99.0)
    [z] = b.add("aside", inputs=[x], outputs=[1], flops=seconds)
    b.add("end", inputs=[y, z], flops=1.0)
    return b.build()


def hosted(gpus: int) -> Cluster:
    """A machine of 1 FLOP/s with a host, and links that take no time."""
    data = machine(gpus, flops_per_s=1.0, bytes_per_s=1e15).model_dump()
    return Cluster.parse({**data, "hosts": [{"launch_s": 1e-9}]})


def used(p: Problem, device: np.ndarray) -> int:
    return len(set(p.expand(device)[p.graph.kernel].tolist()))


@pytest.mark.parametrize(
    ("seconds", "options", "band", "devices"),
    [
        (0.5, {}, None, 1),  # it would save 0.5%
        (0.5, {"simpler_within": 0.0}, None, 2),
        (8.0, {}, None, 2),
        (8.0, {}, 0.12, 1),  # predictions are no better than that
        (20.0, {}, 0.12, 2),
    ],
)
def test_a_gain_must_be_larger_than_the_error(
    seconds: float, options: dict[str, Any], band: float | None, devices: int
) -> None:
    p = Problem.of(with_aside(seconds), hosted(2))
    task = task_of(p, 200)
    task.error_band = lambda devices: ErrorBand(kind="any", rows=9, error=band)
    placement = Portfolio(starts={"critical_path": {}}, threads=1, **options).place(task, np.random.default_rng(0))
    best = task.evaluate.best
    assert best is not None
    assert used(p, placement.device) == used(p, best.placement.device) == devices
    noted = [note for note in task.evaluate.notes if "on fewer devices" in note]
    assert bool(noted) == (devices == 1)
    assert not noted or f"is {seconds / 101:.1%} more than the fastest placement found" in noted[0]


def test_machines_without_hosts_are_of_papers_and_keep_the_fastest() -> None:
    p = Problem.of(with_aside(0.5), machine(2, flops_per_s=1.0, bytes_per_s=1e15))
    placement = Portfolio(starts={"critical_path": {}}, threads=1).place(task_of(p, 200), np.random.default_rng(0))
    assert used(p, placement.device) == 2


@pytest.mark.parametrize(("share", "devices"), [(1.0, 1), (0.95, 2)])
def test_fewer_devices_are_compared_with_the_fastest_placement(share: float, devices: int) -> None:
    """Not with contiguous layers, which may be slower already."""
    p = Problem.of(with_aside(0.5), hosted(2))
    task = task_of(p, 10)
    task.evaluate(p.placement([0, 0, 1, 0]).batch())
    best = task.evaluate.best
    assert best is not None
    Portfolio(threads=1)._simpler(task, replace(best, value_s=best.value_s * share))
    chosen = task.evaluate.best
    assert chosen is not None
    assert used(p, chosen.placement.device) == devices


def test_of_three_devices_one_is_left_out() -> None:
    b = GraphBuilder("two chains")
    for name in ("a", "b"):
        [x] = b.add(name, outputs=[1], flops=100.0)
        b.add(f"{name} end", inputs=[x], flops=1.0)
    b.add("aside", outputs=[1], flops=0.5)
    p = Problem.of(b.build(), hosted(3))
    task = task_of(p, 10)
    task.evaluate(p.placement([0, 0, 1, 1, 2]).batch())
    best = task.evaluate.best
    assert best is not None
    found = on_fewer_devices(task, best.value_s * 1.01)
    assert found is not None
    assert used(p, found.device) == 2
    assert on_fewer_devices(task, best.value_s * 1.001) is None


def test_of_many_devices_those_with_least_to_do_are_left_out() -> None:
    b = GraphBuilder("many")
    for i in range(20):
        b.add(f"o{i}", flops=100.0 if i < 18 else 0.5)
    p = Problem.of(b.build(), hosted(20))
    task = task_of(p, 10)
    task.evaluate(p.placement(np.arange(20)).batch())
    best = task.evaluate.best
    assert best is not None
    found = on_fewer_devices(task, best.value_s * 1.01)
    assert found is not None
    assert used(p, found.device) == 18
