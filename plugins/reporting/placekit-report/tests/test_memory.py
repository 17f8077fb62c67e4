"""Memory over time: the peaks are the backend's, and what holds them is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from placekit_report.memory import HOLDERS, DeviceMemory, memory_over_time, thinned
from placekit_testing.strategies import Case, machine, problems, random_placements, random_step

from placekit_core import Backend, CostTable, GraphBuilder, Placement, Problem

Pipeline = pytest.importorskip("placekit_pipeline.pipeline").Pipeline
simulator = pytest.importorskip("placekit_sim.simulator")
BulkSynchronous, Simulator = simulator.BulkSynchronous, simulator.Simulator


def curves(backend: Backend, problem: Problem, placement: Placement) -> tuple[DeviceMemory, ...]:
    """The memory of each device; checked against the backend's peaks."""
    session = backend.open(problem)
    peaks = session.evaluate(placement.batch()).peak_bytes[0]
    schedule = session.schedule(placement)
    memory = memory_over_time(problem, schedule, placement, session, peaks)
    assert not memory.reason
    for d, m in enumerate(memory.devices):
        assert m.peak_bytes == m.bytes_.max() == peaks[d]
        assert (np.diff(m.time_s) >= 0).all()
        assert (m.time_s[0], m.time_s[-1]) == (0, schedule.end_s)
        assert sum(h.bytes_ for h in m.holders) == peaks[d]
        assert (m.bytes_ >= 0).all()
    return memory.devices


@settings(max_examples=100, deadline=None)
@given(
    case=problems(max_n=24, max_devices=4),
    order=st.sampled_from(["priority", "fifo", "depth_first", "random"]),
    noise=st.sampled_from([0.0, 0.0, 0.3]),
    prefetch=st.sampled_from([None, None, 0, 1, 3]),
    bulk=st.booleans(),
)
def test_peaks_are_the_simulators(case: Case, order: Any, noise: float, prefetch: int | None, bulk: bool) -> None:
    problem = case.problem
    if prefetch is not None and not problem.cluster.multicast:
        backend: Backend = Simulator(ready_order=order, noise=noise, prefetch=prefetch)
    else:
        backend = (BulkSynchronous if bulk else Simulator)(ready_order=order, noise=noise)
    curves(backend, problem, problem.placement(*random_placements(case.rng, problem, 1, True).one(0)))


def test_a_chain_by_hand() -> None:
    """x (8 bytes, device 0) -> a, 1 s -> y (3) -> b on device 1, 1 s -> z (5), which nobody reads; the link: 1 byte per s."""
    b = GraphBuilder("chain")
    x = b.source("x", 8, op_type="parameter")
    [y] = b.add("a", inputs=[x], outputs=[3])
    b.add("b", inputs=[y], outputs=[5], phase="backward")
    cluster = machine(("gpu",), 2, memory_bytes=100).model_dump()
    cluster["links"][0]["bytes_per_s"] = 1.0
    problem = Problem.of(b.build(), machine(("gpu",), 2).parse(cluster))
    costs = CostTable(("gpu",), np.array([[0.0], [1.0], [1.0]]), np.zeros((3, 1), np.bool_))
    problem = Problem(problem.graph, problem.grouping, problem.cluster, costs)
    first, second = curves(Simulator(), problem, problem.placement([0, 0, 1]))
    assert list(zip(first.time_s, first.bytes_, strict=True)) == [(0, 8), (0, 11), (4, 8), (5, 8)]
    assert list(zip(second.time_s, second.bytes_, strict=True)) == [(0, 0), (1, 3), (4, 8), (5, 0), (5, 0)]
    assert (first.peak_s, second.peak_s, first.capacity_bytes) == (0, 4, 100)
    assert [(h.name, h.what, h.bytes_) for h in first.holders] == [
        ("x", "parameters", 8),
        ("a", "saved for backward", 3),
    ]
    assert [(h.name, h.what, h.bytes_) for h in second.holders] == [("b", "other", 5), ("a", "saved for backward", 3)]


def test_holders_are_modules_as_deep_as_they_fit() -> None:
    """Forty layers of two parts: together they have too many rows, so the layers' parent is named."""
    b = GraphBuilder("layers")
    for i in range(40):
        b.source(f"w{i}", 10, op_type="parameter", module=f"net.layers.{i}.linear")
        b.source(f"m{i}", 20, op_type="state", module=f"net.layers.{i}.linear", phase="update")
    b.source("e", 5, op_type="buffer", module="net.embedding")
    b.source("input", 1, op_type="input")
    problem = Problem.of(b.build(), machine(("gpu",), 1))
    [memory] = curves(Simulator(), problem, problem.placement([0] * problem.g))
    assert [(h.name, h.what, h.bytes_) for h in memory.holders] == [
        ("net.layers", "optimizer", 800), ("net.layers", "parameters", 400), ("net.embedding", "parameters", 5),
        ("(outside modules)", "other", 1),
    ]  # fmt: skip


def test_holders_without_modules_are_the_largest_operations() -> None:
    b = GraphBuilder("flat")
    for i in range(40):
        b.source(f"w{i}", 100 - i, op_type="parameter")
    problem = Problem.of(b.build(), machine(("gpu",), 1))
    [memory] = curves(Simulator(), problem, problem.placement([0] * problem.g))
    assert len(memory.holders) == HOLDERS
    assert (memory.holders[0].name, memory.holders[-1].name) == ("w0", "(all others)")


def test_what_the_memory_of_a_step_is_for() -> None:
    """While c runs, y is still read by the backward pass, g waits for the update, and nobody reads h."""
    b = GraphBuilder("step")
    w = b.source("w", 10, op_type="parameter", colocate=0)
    m = b.source("m", 20, op_type="state", colocate=0, phase="update")
    [y] = b.add("a", inputs=[w], outputs=[3])
    [g] = b.add("b", inputs=[y], outputs=[5], phase="backward")
    b.add("c", inputs=[y, g], outputs=[2], phase="backward")
    b.add("u", inputs=[g, w, m], phase="update", colocate=0)
    problem = Problem.of(b.build(), machine(("gpu",), 1))
    [memory] = curves(Simulator(), problem, problem.placement([0] * problem.g))
    assert [(h.name, h.what, h.bytes_) for h in memory.holders] == [
        ("m", "optimizer", 20), ("w", "parameters", 10), ("b", "gradients", 5), ("a", "saved for backward", 3), ("c", "other", 2),
    ]  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_holders_of_steps_add_up(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = Problem.of(random_step(rng, 20), machine())
    curves(Simulator(), problem, problem.placement(random_placements(rng, problem).device))


def test_there_is_no_curve_where_the_rules_differ() -> None:
    b = GraphBuilder("stages")
    [y] = b.add("a", outputs=[3], flops=1.0)
    b.add("b", inputs=[y], flops=1.0)
    problem = Problem.of(b.build(), machine(("gpu",), 2))
    placement = problem.placement([0, 1])
    session = Pipeline(microbatches=2).open(problem)
    peaks = session.evaluate(placement.batch()).peak_bytes[0]
    memory = memory_over_time(problem, session.schedule(placement), placement, session, peaks)
    assert not memory.devices
    assert "micro-batches" in memory.reason
    simulated = Simulator().open(problem)
    memory = memory_over_time(problem, simulated.schedule(placement), placement, simulated, peaks + 1)
    assert not memory.devices
    assert "only the peak" in memory.reason


def test_thinning_keeps_the_peak() -> None:
    rng = np.random.default_rng(0)
    bytes_ = rng.random(5000)
    bytes_[[1234, 4999]] = 3.0, 2.0
    memory = DeviceMemory(np.arange(5000.0), bytes_, 1234.0, 3.0, 9.0, ())
    time_s, thin = thinned(memory, 100)
    assert len(time_s) <= 100
    assert (time_s[0], time_s[-1]) == (0, 4999)
    assert thin[time_s == 1234].tolist() == [3.0]
    assert (np.diff(time_s) > 0).all()
    assert thinned(memory, 5000)[0] is memory.time_s
