"""One run of layers for each device: where it costs little it is the result, and both values are said."""

from __future__ import annotations

import numpy as np
import pytest
from placekit_layers.splits import layer_groups
from placekit_search.contiguity import contiguous_near
from placekit_search.portfolio import Portfolio
from search_helpers import machine, task_of

from placekit_core import Graph, GraphBuilder, Grouping, Placements, Problem

LAYERS = 12


def decoder(side: int = 0) -> Graph:
    """Layers of 1 GFLOP and 1 MB of weights, one after another; `side`: GFLOP beside them all, which the head reads."""
    b = GraphBuilder("decoder")
    [x] = b.add("embed", outputs=[1000], module="embed", flops=1e6)
    beside = b.add("side", inputs=[x], outputs=[1000], module="side", flops=side * 1e9) if side else []
    for i in range(LAYERS):
        weight = b.source(f"w{i}", 10**6, module=f"h.{i}", op_type="parameter")
        [x] = b.add(f"f{i}", inputs=[x, weight], outputs=[1000], module=f"h.{i}", flops=1e9)
    b.add("head", inputs=[x, *beside], outputs=[1000], module="head", flops=1e6)
    return b.build()


def layered(graph: Graph, memory_bytes: int = 2**40, bytes_per_s: float = 1e9) -> Problem:
    """Every module is a group."""
    return Problem.of(
        graph, machine(memory_bytes=memory_bytes, bytes_per_s=bytes_per_s), Grouping.of(graph.module.codes)
    )


def test_a_zigzag_becomes_one_run_for_each_device() -> None:
    problem = layered(decoder(), memory_bytes=8 * 10**6)
    task = task_of(problem, 300)
    layers = layer_groups(problem)
    assert layers is not None
    device = np.zeros(problem.g, np.int16)
    device[layers.group[::2]] = 1
    zigzag = problem.placement(device)
    [before] = task.evaluate(zigzag.batch()).value_s.tolist()
    found = contiguous_near(task, layers, zigzag, 100)
    assert found is not None
    placement, value_s = found
    assert layers.is_contiguous(placement.device)
    assert value_s < before
    assert task.evaluate.evaluations <= 101
    best = _best_split(problem, layers.group)
    assert value_s <= best * (1 + 1e-9)


def _best_split(problem: Problem, groups: np.ndarray) -> float:
    """The best value of all splits into two runs, with every other group on either device."""
    task, rows = task_of(problem, 10_000), []
    others = np.setdiff1d(np.arange(problem.g), groups)
    for border in range(LAYERS + 1):
        for first in range(2):
            for mask in range(2 ** len(others)):
                device = np.zeros(problem.g, np.int16)
                device[groups] = np.where(np.arange(LAYERS) < border, first, 1 - first)
                device[others] = [mask >> i & 1 for i in range(len(others))]
                rows.append(device)
    measured = task.evaluate(Placements.of(np.stack(rows)))
    return float(np.where(measured.fits, measured.value_s, np.inf).min())


@pytest.mark.parametrize("within", [0.02, 0.5])
def test_the_result_is_never_worse_than_allowed(within: float) -> None:
    problem = layered(decoder(side=6), memory_bytes=8 * 10**6)
    values = {}
    for share in (0.0, within):
        task = task_of(problem, 1000)
        Portfolio(starts={"critical_path": {}}, contiguous_within=share).place(task, np.random.default_rng(0))
        assert task.evaluate.best is not None
        assert task.evaluate.evaluations <= 1000
        values[share] = task.evaluate.best
        low = min(row[-1] for row in task.evaluate.history)
        assert task.evaluate.best.value_s <= low * (1 + share) + 1e-12
    layers = layer_groups(problem)
    assert layers is not None
    if within:
        assert layers.is_contiguous(values[within].placement.device)


def test_preferring_keeps_to_the_share_and_to_memory() -> None:
    problem = layered(decoder(), memory_bytes=8 * 10**6)
    task = task_of(problem, 100)
    layers = layer_groups(problem)
    assert layers is not None
    split, zigzag = (np.zeros(problem.g, np.int16) for _ in range(2))
    split[layers.group[6:]], zigzag[layers.group[::2]] = 1, 1
    task.evaluate(Placements.of(np.stack([split, zigzag])))
    best = task.evaluate.best
    assert best is not None
    assert not task.evaluate.prefer(problem.placement(zigzag), 1e-6)
    assert not task.evaluate.prefer(problem.placement(np.zeros(problem.g, np.int16)), 100.0), "it does not fit"
    assert task.evaluate.best is best
    assert task.evaluate.prefer(problem.placement(zigzag), 1.0)
    assert task.evaluate.best is not best
    assert task.evaluate.best.value_s > best.value_s
