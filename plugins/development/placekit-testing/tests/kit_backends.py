"""Backends that keep the contract, one that simulates and one that measures: for the conformance kit's own tests."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
from kit_step import Execution, a_step
from numpy.typing import NDArray
from placekit_scheduling import ROUNDING, Kernel, Trace
from placekit_testing import BackendContract
from placekit_testing.contract import Make
from placekit_testing.strategies import machine

from placekit_core import (
    Backend,
    BackendError,
    Cluster,
    Executable,
    Measurements,
    Options,
    Placement,
    Placements,
    Problem,
    Schedule,
    Session,
)


class RightSession(Session):
    """Nothing overlaps: operations in topological order, each after the transfers that it is the first to need."""

    priorities = False

    def __init__(self, problem: Problem) -> None:
        self.problem, self.evaluated = problem, 0

    def evaluate(self, placements: Placements) -> Measurements:
        """A batch; memory is never freed."""
        p, graph, size = self.problem, self.problem.graph, self.problem.cluster.size
        self.evaluated += len(placements)
        bytes_ = graph.persistent_bytes + np.bincount(graph.tensor_producer, graph.owned_bytes, minlength=graph.n)
        value, peak = np.zeros(len(placements)), np.zeros((len(placements), size))
        for row, device in enumerate(placements.device):
            run = self.run(device)
            received = np.bincount(run.transfer_dst, graph.tensor_bytes[run.transfer_tensor], minlength=size)
            value[row] = run.value_s
            peak[row] = np.bincount(run.op_device, bytes_, minlength=size) + received
        fits = np.asarray((peak <= p.cluster.memory_bytes).all(axis=1))
        return Measurements(value, peak, fits, (None,) * len(placements))

    def run(self, device: NDArray[np.int16]) -> Schedule:
        """The events of the placement `device` [g]."""
        graph, routes, home = self.problem.graph, self.problem.cluster.routes, self.problem.expand(device)
        now, start, end = 0.0, np.zeros(graph.n), np.zeros(graph.n)
        sent: dict[tuple[int, int], tuple[int, float, float]] = {}
        for v in graph.topological_order[graph.kernel[graph.topological_order]].tolist():
            for t in graph.inputs(v).tolist():
                way = int(home[graph.tensor_producer[t]]), int(home[v])
                if way[0] != way[1] and (t, way[1]) not in sent:
                    before, now = now, now + routes.latency_s[way] + graph.tensor_bytes[t] * routes.s_per_byte[way]
                    sent[t, way[1]] = way[0], before, now
            start[v], now = now, now + self.problem.op_s[v, home[v]]
            end[v] = now
        events = np.asarray([(t, src, dst, a, b) for (t, dst), (src, a, b) in sent.items()]).reshape(-1, 5)
        tensor, src, dst, begins, ends = events.T
        return Schedule(
            home, np.where(graph.kernel, 0, -1).astype(np.int32), start, end,
            tensor.astype(np.int32), src.astype(np.int16), dst.astype(np.int16), begins, ends, now,
        )  # fmt: skip

    def schedule(self, placement: Placement) -> Schedule:
        return self.run(placement.device)

    def lower_bound(self) -> float:
        """Every group where it is fastest, and no transfers."""
        seconds = np.where(self.problem.allowed, self.problem.group_s, np.inf).min(axis=1)
        return float(seconds.sum()) * (1 - ROUNDING)

    def kernel(self) -> Kernel | None:
        """The same in plain Python: what is called is what counts here. It leaves no trace of a multicast."""
        n, copies = self.problem.graph.n, self.problem.graph.t * self.problem.cluster.size
        tasks = n + copies
        trace = Trace(tasks, 0, 0, tasks, tasks + 1, tasks + 2, tasks + 2 + copies)

        def function(
            device: NDArray[np.int16], priority: Any, ints: Any, floats: Any, a: Any, b: Any, peak: Any
        ) -> float:
            result = self.evaluate(Placements.of(device))
            peak[:] = result.peak_bytes[0]
            leave_trace(self.run(device), self.problem.graph.kernel, trace, a, b)
            return float(result.value_s[0])

        offered = None if self.problem.cluster.multicast else trace
        return Kernel(function, np.empty(0, np.int32), np.empty(0), tasks + 2 + 2 * copies, 2 * tasks, offered)


def leave_trace(
    run: Schedule, kernel: NDArray[np.bool_], trace: Trace, ints: NDArray[np.int32], floats: NDArray[np.float64]
) -> None:
    """One task after another: the cause of each is the one before."""
    n, copies = len(kernel), len(run.transfer_tensor)
    times = floats[trace.times : trace.times + 2 * trace.tasks].reshape(2, trace.tasks)[:, : n + copies]
    times[0] = np.concatenate([run.op_start_s, run.transfer_start_s])
    times[1] = np.concatenate([run.op_end_s, run.transfer_end_s])
    ran = np.concatenate([np.flatnonzero(kernel), n + np.arange(copies)])
    ran = ran[np.lexsort((times[1, ran], times[0, ran]))]
    before = [-1, *ran.tolist()]
    ints[trace.cause + ran], ints[trace.last], ints[trace.copies] = before[:-1], before[-1], copies
    ints[trace.copy_tensor : trace.copy_tensor + copies] = run.transfer_tensor
    ints[trace.copy_dst : trace.copy_dst + copies] = run.transfer_dst


class Right(Backend):
    """A simulator."""

    name = "right"
    options_class = Options
    simulated = True
    deterministic = True
    parallel = True
    session: ClassVar[type[RightSession]] = RightSession

    def open(self, problem: Problem, executable: Executable | None = None) -> RightSession:
        return self.session(problem)


class MeasuringSession(Session):
    """Runs the program on arrays, one dict of them for each device, and looks at the clock."""

    def __init__(self, problem: Problem, executable: Executable) -> None:
        self.problem, self.executable = problem, executable
        self.kernels = {v: executable.compile([v]) for v in np.flatnonzero(problem.graph.kernel).tolist()}

    def evaluate(self, placements: Placements) -> Measurements:
        """The mean of two runs."""
        runs = [[self.run(device) for _ in range(2)] for device in placements.device]
        shape = len(placements), self.problem.cluster.size
        seconds = np.asarray([[s.value_s for s, _ in pair] for pair in runs]).reshape(-1, 2)
        peak = np.asarray([pair[0][1] for pair in runs]).reshape(shape)
        fits = np.asarray((peak <= self.problem.cluster.memory_bytes).all(axis=1))
        error = tuple(None if ok else "out of memory" for ok in fits)
        return Measurements(np.where(fits, seconds.mean(axis=1), np.nan), peak, fits, error, seconds.std(axis=1))

    def schedule(self, placement: Placement) -> Schedule:
        return self.run(placement.device)[0]

    def run(self, device: NDArray[np.int16]) -> tuple[Schedule, list[float]]:
        """The events, by clocks that differ by up to a microsecond, and the bytes that each device holds at the end."""
        graph, executable, home = self.problem.graph, self.executable, self.problem.expand(device)
        held: list[dict[int, Any]] = [{} for _ in range(self.problem.cluster.size)]
        for tensor, value in executable.initial().items():
            held[home[graph.tensor_producer[tensor]]][tensor] = value
        start, end = np.zeros(graph.n), np.zeros(graph.n)
        sent: list[tuple[int, int, int, float, float]] = []
        zero, late = time.perf_counter(), np.random.default_rng().uniform(0, 1e-6, len(held))

        def now(d: int) -> float:
            return time.perf_counter() - zero + float(late[d])

        for v in graph.topological_order[graph.kernel[graph.topological_order]].tolist():
            here = int(home[v])
            for tensor in graph.inputs(v).tolist():
                base, src = executable.views.get(tensor, tensor), int(home[graph.tensor_producer[tensor]])
                if not {tensor, base} & held[here].keys():
                    begins = now(src)
                    view = executable.view(tensor)(held[src][base]) if base != tensor else held[src][tensor]
                    held[here][tensor] = view.copy()
                    sent.append((tensor, src, here, begins, now(here)))
            start[v] = now(here)
            held[here] |= self.kernels[v](held[here])
            end[v] = now(here)
        tensor, src, dst, begins, ends = np.asarray(sent).reshape(-1, 5).T
        value_s = float(time.perf_counter() - zero)
        schedule = Schedule(
            home, np.where(graph.kernel, 0, -1).astype(np.int32), start, end,
            tensor.astype(np.int32), src.astype(np.int16), dst.astype(np.int16), begins, ends, value_s,
        )  # fmt: skip
        return schedule, [float(sum(value.nbytes for value in values.values())) for values in held]


class Measuring(Backend):
    """Measures what it runs, on two devices that are a dict each."""

    name = "measuring"
    simulated = False
    deterministic = False

    def devices(self) -> Cluster:
        return machine(("gpu",), devices=2, memory_bytes=2**20)

    def open(self, problem: Problem, executable: Executable | None = None) -> MeasuringSession:
        if executable is None:
            raise BackendError("there is nothing to run", "take an importer whose programs can be executed")
        return MeasuringSession(problem, executable)


class Measured(BackendContract):
    """The contract, with a program that can be run."""

    clock_s = 1e-6

    def problems(self, make: Make) -> Iterable[tuple[Problem, Executable | None]]:
        yield Problem.of(a_step(), make().devices()), Execution("")

    def too_large(self, make: Make) -> tuple[Problem, Executable | None]:
        return Problem.of(a_step(), machine(("gpu",), devices=2, memory_bytes=40)), Execution("")
