"""The compiled kernel against the second opinion, to the bit, and against an independent check of its events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_sim import MachineOptions, SimulatorOptions
from placekit_sim.events import Run
from placekit_sim.packing import pack
from placekit_sim.recording import record
from placekit_sim.rules import Rules
from placekit_sim.simulator import BulkSynchronous, Simulator, SimulatorSession
from placekit_testing import machine_model
from placekit_testing.second_opinion import ORDERS, Trial, differences, draw, tiny
from placekit_testing.strategies import Case, problems, random_graph, random_placements, random_problem

from placekit_core import (
    Backend,
    Cluster,
    CostTable,
    Measurements,
    Placement,
    Placements,
    Problem,
    Schedule,
    Session,
)


def build(name: str, options: dict[str, Any]) -> Backend:
    return {"simulator": Simulator, "bulk_synchronous": BulkSynchronous}[name](**options)


def agree(make: Callable[[Generator], Trial], seeds: range) -> None:
    """Kernel and second opinion say the same of a trial for each seed."""
    for seed in seeds:
        trial = make(np.random.default_rng(seed))
        assert differences(trial, build) == [], f"seed {seed}: {trial}"


def test_kernel_agrees_with_the_second_opinion() -> None:
    agree(draw, range(120))


def test_every_placement_of_tiny_problems_is_above_the_bound() -> None:
    agree(tiny, range(1000, 1050))


@pytest.mark.slow
def test_kernel_agrees_with_the_second_opinion_thousands_of_times() -> None:
    agree(draw, range(10_000, 11_000))
    agree(lambda rng: draw(rng, 60, 8), range(20_000, 20_040))
    agree(tiny, range(30_000, 30_100))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("bulk", [False, True])
def test_larger_graphs(order: str, bulk: bool) -> None:
    rng = np.random.default_rng(len(order))
    problem = random_problem(rng, 120, 8)
    rules = machine_model.Rules(ready_order=order, bulk=bulk)
    assert differences(Trial(problem, random_placements(rng, problem, 1, True), rules), build) == []


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("order", ["priority", "fifo", "arrival"])
def test_hundreds_of_pending_events(noise: float, order: str) -> None:
    """More than the sorted list of events has room for, many of them at the same time."""
    rng = np.random.default_rng(0)
    graph = random_graph(rng, 250)
    kind = {
        "type": "gpu",
        "flops_per_s": {"float32": 1e9},
        "memory_bytes": 2**40,
        "memory_bytes_per_s": 1e9,
        "streams": 200,
    }
    link = {"mesh": "a:*", "bytes_per_s": 1e9, "concurrent": "unlimited"}
    cluster = Cluster.parse({"kinds": {"a": kind}, "devices": [{"kind": "a", "count": 3}], "links": [link]})
    op_s = rng.integers(1, 9, (graph.n, 1)) * graph.kernel[:, None] * 0.125
    problem = Problem.of(graph, cluster, costs=CostTable(("a",), op_s, np.zeros((graph.n, 1), np.bool_)))
    rules = machine_model.Rules(ready_order=order, noise=noise)
    assert differences(Trial(problem, random_placements(rng, problem, 1, True), rules), build) == []


class WrongSession(SimulatorSession):
    """Sessions with an error: one value, one byte, the start of operations, the end of transfers, or a bound too high."""

    error = ""

    def evaluate(self, placements: Placements) -> Measurements:
        m = super().evaluate(placements)
        if self.error == "value":
            return replace(m, value_s=np.nextafter(m.value_s, np.inf))
        return replace(m, peak_bytes=m.peak_bytes + 1) if self.error == "bytes" else m

    def schedule(self, placement: Placement) -> Schedule:
        s = super().schedule(placement)
        if self.error == "operation":
            return replace(s, op_start_s=np.nextafter(s.op_start_s, np.inf))
        return replace(s, transfer_end_s=s.transfer_end_s + 1) if self.error == "transfer" else s

    def lower_bound(self) -> float | None:
        bound = super().lower_bound()
        return 2 * (bound or 0) + 1 if self.error == "bound" else bound


class Wrong(Simulator):
    """The simulator with such sessions."""

    def __init__(self, error: str, **options: Any) -> None:
        super().__init__(**options)
        self.error = error

    def open(self, problem: Problem, executable: Any = None) -> Session:
        session = WrongSession(problem, self.options, self.bulk)
        session.error = self.error
        return session


@pytest.mark.parametrize("error", ["value", "bytes", "operation", "transfer", "bound"])
def test_errors_are_found(error: str) -> None:
    trials = [draw(np.random.default_rng(seed)) for seed in range(12)]
    found = [differences(trial, lambda _, o: Wrong(error, **o)) for trial in trials if not trial.rules.bulk]
    assert any(found)


def execution(problem: Problem, options: MachineOptions, bulk: bool, device: NDArray[np.int16], priority: Any) -> Run:
    """What the kernel recorded."""
    return record(problem, pack(problem, Rules.of(problem, options, bulk), record=True), device, priority)


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
    for i in range(len(placements)):
        device, priority = placements.one(i)
        checked = Checked(problem, device, execution(problem, SimulatorOptions(), False, device, priority))
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
    run = execution(problem, MachineOptions(ready_order="fifo"), bulk, device, None)
    if (run.copy_end_s > run.copy_start_s).all():
        np.testing.assert_array_equal(Checked(problem, device, run).peak(), run.peak_bytes)


@settings(max_examples=60, deadline=None)
@given(case=problems(max_n=24, max_devices=4))
def test_bulk_levels_do_not_overlap(case: Case) -> None:
    problem = case.problem
    graph = problem.graph
    device, _ = random_placements(case.rng, problem, 1).one(0)
    run = execution(problem, MachineOptions(ready_order="fifo"), True, device, None)
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
