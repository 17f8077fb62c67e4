"""The compiled kernel against the plain-Python reference, to the bit; and the reference against an independent check."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_scheduling.evaluation import evaluate_batch
from placekit_sim import SimulatorOptions
from placekit_sim.events import Run
from placekit_sim.packing import pack
from placekit_sim.recording import record
from placekit_sim.rules import Rules
from placekit_testing.strategies import Case, problems, random_graph, random_placements, random_problem
from sim_reference import Reference

from placekit_core import Cluster, CostTable, Problem

ORDERS = ("priority", "fifo", "depth_first", "breadth_first", "random")


def assert_equal_runs(
    problem: Problem, rng: Generator, options: SimulatorOptions, bulk: bool, priorities: bool
) -> None:
    """Kernel and reference agree in value, memory and every event on a few random placements."""
    rules = Rules.of(problem, options, bulk)
    placements = random_placements(rng, problem, 3, priorities)
    packed, recording = pack(problem, rules), pack(problem, rules, record=True)
    value_s, peak_bytes = evaluate_batch(packed.kernel(), placements, problem.cluster.size, packed.tasks)
    reference = Reference(problem, rules)
    for i in range(len(placements)):
        device, priority = placements.one(i)
        expected, actual = reference.run(device, priority), record(problem, recording, device, priority)
        assert value_s[i] == expected.value_s == actual.value_s
        np.testing.assert_array_equal(peak_bytes[i], expected.peak_bytes)
        np.testing.assert_array_equal(actual.peak_bytes, expected.peak_bytes)
        for column in ("op_start_s", "op_end_s", "copy_tensor", "copy_dst", "copy_start_s", "copy_end_s"):
            np.testing.assert_array_equal(getattr(actual, column), getattr(expected, column), err_msg=column)


@settings(max_examples=400, deadline=None)
@given(
    case=problems(max_n=30, max_devices=5),
    order=st.sampled_from(ORDERS),
    bulk=st.booleans(),
    priorities=st.booleans(),
    noise=st.sampled_from([0.0, 0.0, 0.3]),
)
def test_kernel_equals_reference(case: Case, order: Any, bulk: bool, priorities: bool, noise: float) -> None:
    options = SimulatorOptions(ready_order=order, seed=3, noise=noise)
    assert_equal_runs(case.problem, case.rng, options, bulk, priorities)


@settings(max_examples=300, deadline=None)
@given(
    case=problems(max_n=30, max_devices=5),
    order=st.sampled_from(ORDERS),
    priorities=st.booleans(),
    noise=st.sampled_from([0.0, 0.0, 0.3]),
    prefetch=st.integers(0, 4),
)
def test_kernel_equals_reference_where_sources_are_streamed(
    case: Case, order: Any, priorities: bool, noise: float, prefetch: int
) -> None:
    if not case.problem.cluster.multicast:
        options = SimulatorOptions(ready_order=order, seed=3, noise=noise, prefetch=prefetch)
        assert_equal_runs(case.problem, case.rng, options, False, priorities)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("bulk", [False, True])
def test_kernel_equals_reference_on_larger_graphs(order: Any, bulk: bool) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        problem = random_problem(rng, 400, 8)
        assert_equal_runs(problem, rng, SimulatorOptions(ready_order=order), bulk, priorities=seed % 2 == 0)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_kernel_equals_reference_where_hundreds_of_events_are_pending(noise: float) -> None:
    """More than the sorted list of events has room for, many of them at the same time."""
    rng = np.random.default_rng(0)
    graph = random_graph(rng, 600)
    kind = {
        "type": "gpu",
        "flops_per_s": {"float32": 1e9},
        "memory_bytes": 2**40,
        "memory_bytes_per_s": 1e9,
        "streams": 400,
    }
    link = {"mesh": "a:*", "bytes_per_s": 1e9, "concurrent": "unlimited"}
    cluster = Cluster.parse({"kinds": {"a": kind}, "devices": [{"kind": "a", "count": 3}], "links": [link]})
    op_s = rng.integers(1, 9, (graph.n, 1)) * graph.kernel[:, None] * 0.125
    problem = Problem.of(graph, cluster, costs=CostTable(("a",), op_s, np.zeros((graph.n, 1), np.bool_)))
    for priorities in (False, True):
        assert_equal_runs(problem, rng, SimulatorOptions(noise=noise), False, priorities)


@pytest.mark.slow
def test_kernel_equals_reference_thousands_of_times() -> None:
    for seed in range(700):
        rng = np.random.default_rng(seed)
        problem = random_problem(rng, int(rng.integers(1, 60)), 6)
        for order in ORDERS:
            for bulk in (False, True):
                noise = float(rng.choice([0, 0, 0.5]))
                options = SimulatorOptions.model_validate({"ready_order": order, "seed": seed, "noise": noise})
                assert_equal_runs(problem, rng, options, bulk, priorities=bool(rng.random() < 0.7))


class Checked:
    """A run seen only through its events: who could have started when, and what was busy."""

    def __init__(self, problem: Problem, device: NDArray[np.int16], run: Run) -> None:
        self.problem, self.run = problem, run
        graph, cluster = problem.graph, problem.cluster
        self.home = problem.expand(device)
        self.kernels = np.flatnonzero(graph.kernel).tolist()
        self.sent = {
            (int(x), int(d)): (float(s), float(e))
            for x, d, s, e in zip(run.copy_tensor, run.copy_dst, run.copy_start_s, run.copy_end_s, strict=True)
        }
        routes, size = cluster.routes, cluster.size
        self.sends: dict[tuple[int, ...], tuple[float, float, float, list[int]]] = {}  # ready, start, end, channels
        for (x, d), (start, end) in self.sent.items():
            src = int(self.home[graph.tensor_producer[x]])
            channels = routes.channel[routes.ptr[src * size + d] : routes.ptr[src * size + d + 1]].tolist()
            key = (x,) if cluster.multicast else (x, d)
            self.sends[key] = (float(run.op_end_s[graph.tensor_producer[x]]), start, end, channels)
        self.ready = {v: max((self.arrival(x, v) for x in graph.inputs(v).tolist()), default=0.0) for v in self.kernels}
        self.times = sorted({0.0, *run.op_start_s, *run.op_end_s, *run.copy_start_s, *run.copy_end_s})

    def arrival(self, tensor: int, op: int) -> float:
        producer = int(self.problem.graph.tensor_producer[tensor])
        if self.home[producer] == self.home[op]:
            return float(self.run.op_end_s[producer])
        return self.sent[tensor, int(self.home[op])][1]

    def check(self) -> None:
        """Durations, readiness, capacity, and that nothing waits without cause in any stretch between two events."""
        problem, run = self.problem, self.run
        streams, capacity = problem.cluster.streams, problem.cluster.routes.capacity
        needed = {
            (int(x), int(self.home[v]))
            for v in self.kernels
            for x in problem.graph.inputs(v)
            if self.home[problem.graph.tensor_producer[x]] != self.home[v]
        }
        assert set(self.sent) == needed
        for v in self.kernels:
            assert run.op_end_s[v] == run.op_start_s[v] + problem.op_s[v, self.home[v]]
            assert run.op_start_s[v] >= self.ready[v]
        for ready, start, _, _ in self.sends.values():
            assert start >= ready
        for begin, end in zip(self.times, self.times[1:], strict=False):
            middle = (begin + end) / 2
            busy = np.zeros(problem.cluster.size, np.int64)
            held = np.zeros(len(capacity), np.int64)
            for v in self.kernels:
                busy[self.home[v]] += run.op_start_s[v] < middle < run.op_end_s[v]
            for _, start, stop, channels in self.sends.values():
                if start < middle < stop:
                    held[channels] += 1
            assert (busy <= streams).all()
            assert (held <= capacity).all()
            for v in self.kernels:
                if self.ready[v] < middle < run.op_start_s[v]:
                    assert busy[self.home[v]] == streams[self.home[v]], "a ready operation waits for a free stream"
            for ready, start, _, channels in self.sends.values():
                if ready < middle < start:
                    assert (held[channels] == capacity[channels]).any(), "a ready transfer waits for free channels"

    def check_order(self, rank: NDArray[np.float64]) -> None:
        """An operation that starts while another has been waiting for longer than an instant comes before it."""
        for u in self.kernels:
            for v in self.kernels:
                start = self.run.op_start_s[u]
                if self.home[u] == self.home[v] and self.ready[v] < start < self.run.op_start_s[v]:
                    assert (rank[u], self.ready[u]) <= (rank[v], self.ready[v])

    def peak(self) -> NDArray[np.float64]:
        """Peak bytes from the lives of all allocations; exact where every task takes time."""
        graph, run = self.problem.graph, self.run
        lives: list[tuple[int, float, float, float]] = []  # device, from, to, bytes
        for s in range(graph.t):
            producer = int(graph.tensor_producer[s])
            if graph.tensor_storage[s] != s or not graph.kernel[producer]:
                continue
            end = float(run.op_end_s[producer])
            for x in np.flatnonzero(graph.tensor_storage == s).tolist():
                readers = [c for c in graph.consumers(x) if self.home[c] == self.home[producer]]
                end = max([end, *run.op_end_s[readers], *(e for (y, _), (_, e) in self.sent.items() if y == x)])
            lives.append((self.home[producer], run.op_start_s[producer], end, float(graph.tensor_bytes[s])))
        for (x, d), (start, _) in self.sent.items():
            end = max(float(run.op_end_s[c]) for c in graph.consumers(x) if self.home[c] == d)
            lives.append((d, start, end, float(graph.tensor_bytes[x])))
        base = np.zeros(self.problem.cluster.size)
        np.add.at(base, self.home, graph.persistent_bytes)
        peak = base.copy()
        for time in self.times:
            used = base.copy()
            for d, start, end, bytes_ in lives:
                used[d] += bytes_ * (start <= time < end)
            peak = np.maximum(peak, used)
        return peak


@settings(max_examples=150, deadline=None)
@given(case=problems(max_n=24, max_devices=5), priorities=st.booleans())
def test_nothing_waits_without_cause(case: Case, priorities: bool) -> None:
    problem = case.problem
    placements = random_placements(case.rng, problem, 2, priorities)
    reference = Reference(problem, Rules(use_priority=True))
    for i in range(len(placements)):
        device, priority = placements.one(i)
        checked = Checked(problem, device, reference.run(device, priority))
        checked.check()
        checked.check_order(np.zeros(problem.graph.n) if priority is None else -problem.expand(priority).astype(float))


@settings(max_examples=150, deadline=None)
@given(case=problems(max_n=24, max_devices=5), bulk=st.booleans())
def test_peak_memory_follows_from_the_events(case: Case, bulk: bool) -> None:
    problem = case.problem
    positive = np.where(problem.graph.kernel[:, None], problem.costs.op_s + 2.0**-10, 0.0)
    costs = type(problem.costs)(problem.costs.kinds, positive, problem.costs.measured)
    problem = Problem(problem.graph, problem.grouping, problem.cluster, costs)
    device, _ = random_placements(case.rng, problem, 1).one(0)
    run = Reference(problem, Rules(bulk=bulk)).run(device)
    if (run.copy_end_s > run.copy_start_s).all():
        np.testing.assert_array_equal(Checked(problem, device, run).peak(), run.peak_bytes)


@settings(max_examples=60, deadline=None)
@given(case=problems(max_n=24, max_devices=4))
def test_bulk_levels_do_not_overlap(case: Case) -> None:
    problem = case.problem
    graph = problem.graph
    device, _ = random_placements(case.rng, problem, 1).one(0)
    run = Reference(problem, Rules(bulk=True)).run(device)
    kernel, depth = graph.kernel, graph.depth
    level_end = (
        [run.op_end_s[kernel & (depth == i)].max() for i in range(depth[kernel].max() + 1)] if kernel.any() else []
    )
    for i, end in enumerate(level_end):
        assert (run.op_start_s[kernel & (depth > i)] >= end).all()
        sent_after = graph.kernel[graph.tensor_producer[run.copy_tensor]]
        mine = sent_after & (depth[graph.tensor_producer[run.copy_tensor]] == i)
        assert (run.copy_start_s[mine] >= end).all()
        assert (run.op_start_s[kernel & (depth > i)] >= run.copy_end_s[mine].max(initial=0.0)).all()
