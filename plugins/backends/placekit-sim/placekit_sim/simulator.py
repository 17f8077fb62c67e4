"""The backends `simulator` and `bulk_synchronous`, which run the compiled machine model."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import ClassVar

import numpy as np
from placekit_scheduling import ROUNDING, Kernel, makespan_bound, offload_bound
from placekit_scheduling.evaluation import evaluate_batch
from pydantic import BaseModel

from placekit_core import (
    Backend,
    BackendError,
    Executable,
    Measurements,
    Placement,
    Placements,
    Problem,
    Schedule,
    Session,
    usable_cores,
)
from placekit_sim import MachineOptions, SimulatorOptions
from placekit_sim.compiled_variants import compiled, variant
from placekit_sim.packing import Packed, pack
from placekit_sim.recording import record
from placekit_sim.rules import Rules


class Simulator(Backend):
    """Work-conserving machine: transfers overlap with computation, and every task starts as soon as it can."""

    name = "simulator"
    options_class: ClassVar[type[BaseModel]] = SimulatorOptions
    objective = "makespan"
    simulated = True
    deterministic = True
    parallel = True
    bulk = False

    @property
    def offloads(self) -> bool:
        return getattr(self.options, "prefetch", None) is not None

    def open(self, problem: Problem, executable: Executable | None = None) -> Session:
        if self.offloads and problem.cluster.multicast:
            raise BackendError(
                f"backend.prefetch is for machines without multicast, and {problem.cluster.name!r} has it",
                "leave backend.prefetch out, or choose a machine whose links have two ends",
            )
        return SimulatorSession(problem, self.options, self.bulk)


class BulkSynchronous(Simulator):
    """Level by level: all computations of a level, a barrier, all transfers of their outputs, a barrier."""

    name = "bulk_synchronous"
    options_class = MachineOptions
    bulk = True


class SimulatorSession(Session):
    """One problem on a simulated machine."""

    def __init__(self, problem: Problem, options: MachineOptions, bulk: bool) -> None:
        self.problem, self.options, self.bulk = problem, options, bulk
        self.prefetch = options.prefetch if isinstance(options, SimulatorOptions) else None
        self.priorities = options.ready_order == "priority"
        self.threads = options.threads or usable_cores()
        self.pool = ThreadPoolExecutor(self.threads, "placekit-sim") if self.threads > 1 else None
        flags = {
            "multicast": problem.cluster.multicast, "bulk": bulk, "noisy": options.noise > 0,
            "ahead": self.prefetch is not None, "arrival": options.ready_order == "arrival",
        }  # fmt: skip
        compiled(variant(flags))  # now, so that compiling takes no time from the budget of a search

    @property
    def repetitions(self) -> int:
        """Number of simulations per placement: one without noise, as all would be equal."""
        return self.options.noise_repeats if self.options.noise > 0 else 1

    @cached_property
    def packed(self) -> list[Packed]:
        """The problem as arrays for the kernel, one per repetition."""
        return [pack(self.problem, self._rules(i)) for i in range(self.repetitions)]

    def evaluate(self, placements: Placements) -> Measurements:
        """Simulate a batch.

        With several repetitions `value_s` is the mean, `spread_s` the standard deviation, and the peak the highest.
        """
        size = self.problem.cluster.size
        runs = [evaluate_batch(p.kernel(), placements, size, p.tasks, self.threads, self.pool) for p in self.packed]
        values, peaks = np.stack([v for v, _ in runs]), np.stack([p for _, p in runs]).max(axis=0)
        return Measurements(
            value_s=values.mean(axis=0),
            peak_bytes=peaks,
            fits=(peaks <= self.problem.cluster.memory_bytes).all(axis=1),
            error=(None,) * len(placements),
            spread_s=values.std(axis=0) if len(runs) > 1 else None,
        )

    def schedule(self, placement: Placement) -> Schedule:
        """The events of one run; with noise, of the first repetition. Sources have stream -1 and take no time.

        A multicast send appears once per destination.
        """
        return record(self.problem, pack(self.problem, self._rules(0)), placement)

    def lower_bound(self) -> float | None:
        """A lower bound on the makespan of every placement, seconds. None with noise, which may shorten operations.

        It also holds for bulk-synchronous runs, in which the same operations on the same streams only wait longer.
        """
        return None if self.options.noise > 0 else self._bound_s

    @cached_property
    def _bound_s(self) -> float:
        """The bound, cached because policies and reports ask for it several times."""
        if self.prefetch is None:
            return makespan_bound(self.problem)
        return max(makespan_bound(self.problem), offload_bound(self.problem) * (1 - ROUNDING))

    def kernel(self) -> Kernel | None:
        """The compiled evaluation of one placement; None if a value is the mean of several simulations."""
        if self.repetitions > 1:
            return None
        packed = pack(self.problem, self._rules(0))
        return packed.kernel(None if self.bulk else packed.trace)

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()
            self.pool = None

    def _rules(self, repetition: int) -> Rules:
        return Rules.of(self.problem, self.options, self.bulk, repetition)
