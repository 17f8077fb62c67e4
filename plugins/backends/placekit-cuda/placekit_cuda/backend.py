"""The backend `cpu`: placements are worth what they take."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from placekit_sim.simulator import Simulator

from placekit_core.cluster import Cluster
from placekit_core.cores import usable_cores
from placekit_core.errors import BackendError
from placekit_core.interfaces import Backend, Executable, Session
from placekit_core.measurement import Measurements, Schedule
from placekit_core.placement import Placement, Placements
from placekit_core.problem import Problem
from placekit_cuda import CPUOptions
from placekit_cuda.engine import Engine, MemoryExceeded, Step, Tensors
from placekit_cuda.machine import CPUMachine
from placekit_cuda.plan import Plan, plan

# of one core: float32 operations and bytes per second, nominal; `auto` must give the same machine each time
_FLOPS_PER_S, _BYTES_PER_S, _OVERHEAD_S = 3e10, 1e10, 3e-6


class CPUBackend(Backend):
    """Each device is a thread of this process with `threads` torch threads, and memory of its own that is counted."""

    name = "cpu"
    options_class = CPUOptions
    options: CPUOptions
    simulated = False
    deterministic = False

    def devices(self) -> Cluster:
        """As many devices as the cores allow, or option `devices`, of equal parts of the memory, at nominal rates."""
        threads = self.options.threads
        count = self.options.devices or max(1, usable_cores() // threads)
        memory = self.options.memory_bytes
        if memory is None:
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // count // 2**20 * 2**20
        kind = {
            "type": "cpu",
            "flops_per_s": {"float32": threads * _FLOPS_PER_S},
            "memory_bytes": memory,
            "memory_bytes_per_s": _BYTES_PER_S,
            "launch_overhead_s": _OVERHEAD_S,
        }
        link = {"mesh": "cpu:*", "bytes_per_s": _BYTES_PER_S, "latency_s": 2e-5}
        return Cluster.parse(
            {"name": f"cpu{count}", "kinds": {"cpu": kind}, "devices": [{"kind": "cpu", "count": count}],
             "links": [link] if count > 1 else []}
        )  # fmt: skip

    def open(self, problem: Problem, executable: Executable | None = None) -> Session:
        if executable is None:
            raise BackendError(
                f"backend {self.name!r} runs programs, and {problem.graph.name!r} is a graph of numbers",
                "use an importer whose programs can be run (such as `torch` or `einsum`), or backend=simulator",
            )
        return CPUSession(problem, executable, self.options)


class CPUSession(Session):
    """One program, to be run under any placement."""

    def __init__(self, problem: Problem, executable: Executable, options: CPUOptions) -> None:
        self.problem, self.executable, self.options = problem, executable, options
        self._machine: CPUMachine | None = None

    @cached_property
    def initial(self) -> Tensors:
        """The sources' values."""
        return self.executable.initial()

    @cached_property
    def order(self) -> NDArray[np.int32]:
        """Kernels in the order of the program."""
        graph = self.problem.graph
        return graph.topological_order[graph.kernel[graph.topological_order]]

    @cached_property
    def simulation(self) -> Session:
        """The simulated machine, whose schedule is the order of `static` runs."""
        return Simulator().open(self.problem)

    @property
    def machine(self) -> CPUMachine:
        """The devices; new ones after a hang."""
        if self._machine is None:
            size, link_s = self.problem.cluster.size, self._link_s() if self.options.links == "cluster" else None
            self._machine = CPUMachine(size, self.options.threads, link_s)
        return self._machine

    def evaluate(self, placements: Placements) -> Measurements:
        """Measure a batch, one placement after the other.

        A value is the mean of `steps`; `peak_bytes` counts the tensors that a step keeps, without what kernels take for
        themselves while they run.
        """
        self.problem.check(placements)
        rows = [self._measure(self.problem.placement(*placements.one(i))) for i in range(len(placements))]
        shape = (len(rows), self.problem.cluster.size)
        return Measurements(
            np.array([value for value, *_ in rows], np.float64),
            np.array([peak for _, _, peak, _ in rows], np.float64).reshape(shape),
            np.array([error is None for *_, error in rows], np.bool_),
            tuple(error for *_, error in rows),
            np.array([spread for _, spread, *_ in rows], np.float64),
        )

    def _measure(self, placement: Placement) -> tuple[float, float, NDArray[np.float64], str | None]:
        """Mean, standard deviation, peaks, and what went wrong."""
        o, peak, seconds = self.options, np.zeros(self.problem.cluster.size), list[float]()
        engine = self.engine(placement)  # what is wrong with the program is no measurement: it ends the run
        sources = engine.place(self.initial)
        try:
            for i in range(o.warm_up + o.steps):
                step = engine.run(sources, i, o.schedule == "dynamic", o.timeout_s)
                seconds.append(step.seconds)
                peak = np.maximum(peak, step.peak_bytes)
        except Exception as e:  # what a step does is a value of the measurement
            self._abandon()
            if isinstance(e, MemoryExceeded):
                peak = np.maximum(peak, e.peak_bytes)
            return np.nan, np.nan, peak, f"{type(e).__name__}: {e}"
        timed = np.array(seconds[o.warm_up :])
        return float(timed.mean()), float(timed.std()), peak, None

    def schedule(self, placement: Placement) -> Schedule:
        """One step with every operation launched by itself, and when each began and ended."""
        self.problem.check(placement.batch())
        engine = self.engine(placement, fuse=False)
        sources = engine.place(self.initial)
        for i in range(1 + self.options.warm_up):
            step = engine.run(sources, i, self.options.schedule == "dynamic", self.options.timeout_s)
        return _schedule(self.problem, engine.plan, step, placement.device)

    def engine(self, placement: Placement, fuse: bool | None = None) -> Engine:
        """`placement`, ready to run; each operation by itself with `fuse` False, else as the options say."""
        problem, order, fixed = self.problem, self.order, self.options.schedule == "static"
        if fixed:
            order = order[np.argsort(self.simulation.schedule(placement).op_start_s[order], kind="stable")]
        made = plan(
            problem.graph, self.executable, problem.expand(placement.device), problem.cluster.size, order.tolist(),
            self.options.fuse if fuse is None else fuse, fixed, self.executable.results.values(),
        )  # fmt: skip
        rank = None
        if placement.priority is not None:
            of_op, producer = problem.expand(placement.priority), problem.graph.tensor_producer
            rank = [float(of_op[n.ops[0] if n.ops else producer[n.tensor]]) for n in made.nodes]
        return Engine(made, self.executable, self.machine, rank, problem.cluster.memory_bytes.tolist())

    def _link_s(self) -> Callable[[int, int, int], float]:
        routes = self.problem.cluster.routes

        def seconds(src: int, dst: int, nbytes: int) -> float:
            return float(routes.latency_s[src, dst] + nbytes * routes.s_per_byte[src, dst])

        return seconds

    def _abandon(self) -> None:
        """Leave the machine to what hangs on it."""
        if self._machine is not None:
            self._machine.close()
            self._machine = None

    def close(self) -> None:
        self._abandon()


def _schedule(problem: Problem, made: Plan, step: Step, device: NDArray[np.int16]) -> Schedule:
    n = problem.graph.n
    start, end = np.zeros(n), np.zeros(n)
    sent = [(node, times) for node, times in zip(made.nodes, step.times, strict=True) if node.transfers]
    for node, times in zip(made.nodes, step.times, strict=True):
        if not node.transfers:
            start[node.ops[0]], end[node.ops[0]] = times
    return Schedule(
        op_device=problem.expand(device),
        op_stream=np.where(problem.graph.kernel, 0, -1).astype(np.int32),
        op_start_s=start,
        op_end_s=end,
        transfer_tensor=np.array([node.tensor for node, _ in sent], np.int32),
        transfer_src=np.array([node.src for node, _ in sent], np.int16),
        transfer_dst=np.array([node.device for node, _ in sent], np.int16),
        transfer_start_s=np.array([times[0] for _, times in sent], np.float64),
        transfer_end_s=np.array([times[1] for _, times in sent], np.float64),
        value_s=step.seconds,
    )
