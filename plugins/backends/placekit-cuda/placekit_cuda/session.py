"""Measures the placements of one program on a machine."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from placekit_sim.simulator import Simulator

from placekit_core import Executable, Measurements, Placement, Placements, Problem, Schedule, Session
from placekit_cuda import MeasuringOptions
from placekit_cuda.engine import Engine, MemoryExceeded, Step, Tensors
from placekit_cuda.machine import Machine
from placekit_cuda.plan import Plan, plan, priorities

Row = tuple[float, float, NDArray[np.float64], str | None]
"""Mean and standard deviation in seconds, peaks [D] in bytes, and the error or None."""


class MeasuredSession(Session):
    """One program, to be run under any placement.

    Args:
        make_machine: the devices; called again after a hang or a failure.
    """

    def __init__(
        self, problem: Problem, executable: Executable, options: MeasuringOptions, make_machine: Callable[[], Machine]
    ) -> None:
        self.problem, self.executable, self.options = problem, executable, options
        self._make_machine = make_machine
        self._machine: Machine | None = None

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
    def machine(self) -> Machine:
        """The devices; new ones after a hang."""
        if self._machine is None:
            self._machine = self._make_machine()
        return self._machine

    def evaluate(self, placements: Placements) -> Measurements:
        """Measure a batch, one placement after the other.

        A value is the mean over `steps`; `peak_bytes` counts the tensors that a step keeps, without the memory that kernels
        use internally while they run.
        """
        rows = [self._measure(self.problem.row(placements, i)) for i in range(len(placements))]
        return joined(rows, self.problem.cluster.size)

    def _measure(self, placement: Placement) -> Row:
        o, peak, seconds, error = self.options, np.zeros(self.problem.cluster.size), list[float](), None
        engine = self.engine(placement)  # an error in the program ends the run: it is not a measurement
        try:
            sources = engine.place(self.initial)
            for i in range(o.warm_up + o.steps):
                step = engine.run(sources, i, o.schedule, o.timeout_s)
                seconds.append(step.seconds)
                peak = np.maximum(peak, step.peak_bytes)
                del step  # with its values: the next step needs the memory
        except Exception as e:  # the error of a step is part of the measurement
            error = "; ".join([f"{type(e).__name__}: {e}", *getattr(e, "__notes__", ())])
            # otherwise the memory that it would have taken is unknown
            peak = np.maximum(peak, e.peak_bytes) if isinstance(e, MemoryExceeded) else np.full(len(peak), np.nan)
        if error is not None:
            del engine
            sources = []
            gc.collect()  # the exception and the values of its step refer to each other
            self._abandon()
            return np.nan, np.nan, peak, error
        timed = np.array(seconds[o.warm_up :])
        return float(timed.mean()), float(timed.std()), peak, None

    def schedule(self, placement: Placement) -> Schedule:
        """The schedule of one step in which every operation is launched by itself."""
        engine = self.engine(placement, fuse=False)
        sources = engine.place(self.initial)
        for i in range(1 + self.options.warm_up):
            last = i == self.options.warm_up
            step = engine.run(sources, i, self.options.schedule, self.options.timeout_s, timed=last)
        return _schedule(self.problem, engine.plan, step, placement.device)

    def engine(self, placement: Placement, fuse: bool | None = None) -> Engine:
        """`placement`, ready to run; with `fuse` False, each operation is launched by itself, else as the options say."""
        problem, order, level = self.problem, self.order, None
        way, device = self.options.schedule, problem.expand(placement.device)
        if way == "static":
            order = order[np.argsort(self.simulation.schedule(placement).op_start_s[order], kind="stable")]
        elif way == "bulk_synchronous":
            level = problem.graph.depth
            order = order[np.argsort(level[order], kind="stable")]
        made = plan(
            problem.graph, self.executable, device, problem.cluster.size, order.tolist(),
            self.options.fuse if fuse is None else fuse, way == "static", self.executable.results.values(), level,
        )  # fmt: skip
        rank = None
        if placement.priority is not None:
            rank = priorities(made, problem.graph, problem.expand(placement.priority))
        limit = problem.cluster.memory_bytes.tolist()
        return Engine(made, self.executable, self.machine, rank, limit, self.options.ahead)

    def _abandon(self) -> None:
        """Give up the machine, on which something hangs, and free its memory."""
        if self._machine is not None:
            self._machine.close()
            self._machine = None

    def close(self) -> None:
        self._abandon()
        self.__dict__.pop("initial", None)


def joined(rows: list[Row], size: int) -> Measurements:
    """Measurements of single placements, joined to a batch on `size` devices."""
    return Measurements(
        np.array([value for value, *_ in rows], np.float64),
        np.array([peak for _, _, peak, _ in rows], np.float64).reshape(len(rows), size),
        np.array([error is None for *_, error in rows], np.bool_),
        tuple(error for *_, error in rows),
        np.array([spread for _, spread, *_ in rows], np.float64),
    )


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
