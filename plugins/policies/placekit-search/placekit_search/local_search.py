"""A chain of simulated annealing: its position, and the steps that continue it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling import Kernel

from placekit_core import Measurements, Placement, Placements, State, Task
from placekit_search.move_kinds import KINDS, ORDERING
from placekit_search.moves import DEVICES, PRIORITIES, new_log, propose, undo
from placekit_search.neighbourhood import Flow, Neighbourhood, flow
from placekit_search.walk import (
    BEST,
    FAILURE,
    FITS,
    STEP,
    TRIES,
    Arguments,
    Position,
    Rules,
    go_back,
    lost,
    step,
    walk,
)

CHUNK_S = 0.25  # longest compiled loop if seconds are limited
TEMPERATURE_END = 2.5e-5  # last temperature, as a fraction of the start's value
LEAST_AT_ONCE = 4  # evaluations in a loop that takes longer: it begins and ends with one that does not count
FIRST = 16  # evaluations in the first loop, when their time is not known yet


class SearchContext:
    """The parts that all chains of a task share: the compiled evaluation, the graph, and how often each kind of move is made."""

    def __init__(self, task: Task, share: Mapping[str, float]) -> None:
        self.task = task
        self.kernel: Kernel | None = task.evaluate.kernel()
        self.flow: Flow = flow(task.problem, self.kernel, task.evaluate.session.prefetch is not None)
        weight = np.asarray([share[kind] for kind in KINDS], np.float64)
        self.shares = np.cumsum(weight / weight.sum())
        self.shares[-1] = 1.0
        cluster = task.problem.cluster
        self.ordered = any(share[kind] > 0 for kind in ORDERING)
        self.concurrent = cluster.size > 1 or bool((cluster.streams > 1).any())
        self.evaluation_s: float | None = None  # recent seconds per evaluation, over all chains

    def chunk(self) -> int:
        """Evaluations for one compiled loop: few enough to check the clock and to write checkpoints in time."""
        count = max(1, min(2000, 2_000_000 // max(self.task.problem.graph.n, 1)))
        ledger = self.task.evaluate.ledger
        if ledger.limit_s is None:
            return count
        if self.evaluation_s is None:
            return min(count, FIRST)
        left_s = min(max(CHUNK_S, LEAST_AT_ONCE * self.evaluation_s), ledger.limit_s - ledger.seconds)
        return max(1, min(count, int(left_s / max(self.evaluation_s, 1e-9))))


class LocalSearch:
    """Simulated annealing that changes a placement move by move.

    Attributes:
        at: current position.
        start_s: value of the start in seconds; temperatures are fractions of it.
    """

    def __init__(self, context: SearchContext, state: State) -> None:
        self.context = context
        self.at = Position(
            device=np.array(state["device"], np.int16),
            priority=np.array(state["priority"], np.float32),
            best_device=np.array(state["best_device"], np.int16),
            best_priority=np.array(state["best_priority"], np.float32),
            energy=np.array(state["energy"], np.float64),
            random=np.array(state["random"], np.uint64),
        )
        self.start_s = float(state["start_s"])
        cluster = context.task.problem.cluster
        self.rules = Rules(
            shares=context.shares,
            memory_bytes=cluster.memory_bytes.astype(np.float64),
            failing_s=context.task.evaluate.failing_signal_s,
        )

    @staticmethod
    def begin(
        device: NDArray[np.int16],
        priority: NDArray[np.float32] | None,
        value_s: float,
        over: float,
        price_s: float,
        random: NDArray[np.uint64],
    ) -> dict[str, Any]:
        """The first state of a chain. `value_s`, `over`, `price_s`: see `penalised`; `random` is [1]."""
        order = np.zeros(0, np.float32) if priority is None else priority
        energy, price = penalised(value_s, over, price_s), value_s if over == 0 else price_s
        at = Position(
            device=device.copy(),
            priority=order.copy(),
            best_device=device.copy(),
            best_priority=order.copy(),
            energy=np.array([energy, energy, over == 0, over, price], np.float64),
            random=random.copy(),
        )
        return {**at._asdict(), "start_s": float(value_s)}

    def state(self) -> dict[str, Any]:
        """The state from which a chain can continue."""
        return {**self.at._asdict(), "start_s": self.start_s}

    def walk(self, hood: Neighbourhood, count: int, temperature: float, factor: float) -> float:
        """Make `count` evaluations in one compiled loop. Returns the sum of their scores. The caller must charge them.

        `temperature` is in seconds; it is multiplied by `factor` after each evaluation.
        """
        kernel, flow_ = self.context.kernel, self.context.flow
        assert kernel is not None
        log = new_log(len(hood.allowed), len(self.at.device), flow_.tasks, len(flow_.group_of))
        arguments = Arguments(kernel.ints, kernel.floats, kernel.scratch_ints, kernel.scratch_floats)
        return float(
            walk(kernel.function, arguments, self.at, hood, flow_, log, self.rules, count, temperature, factor)
        )

    def advance(self, hood: Neighbourhood, temperature: float, factor: float) -> None:
        """Continue for a while (`SearchContext.chunk`) within the budget, and charge the evaluations to it."""
        if self.context.kernel is None:
            self.step_once(hood, temperature)
            return
        # at least one, because the budget of seconds may just have ended
        count = max(1, int(min(self.context.chunk(), self.context.task.evaluate.remaining)))
        walk_all([(self, hood, temperature, factor)], count)

    def can_move(self, hood: Neighbourhood) -> bool:
        """Whether another device for some unit, or another order, may give a better placement.

        If one device runs all operations one by one, their order changes only the memory: it matters until they fit.
        """
        if len(hood.movable):
            return True
        return (
            self.context.ordered and len(self.at.priority) > 0 and (self.context.concurrent or not self.at.energy[FITS])
        )

    def placement(self) -> Placement:
        """The best placement visited."""
        device, priority = self.placements(best=True).one(0)
        return self.context.task.problem.placement(device, priority)

    def step_once(self, hood: Neighbourhood, temperature: float) -> None:
        """Propose one unguided move, and evaluate it by the evaluator: for backends without a compiled evaluation."""
        at, rules, evaluate = self.at, self.rules, self.context.task.evaluate
        log = new_log(len(hood.allowed), len(at.device), 0, len(self.context.flow.group_of))
        for _ in range(TRIES):
            propose(at.random, at.device, at.priority, hood, self.context.flow, rules.shares, log)
            if log.counts[DEVICES] + log.counts[PRIORITIES]:
                break
        [value], [over] = excess(evaluate(self.placements()), self.context.task)
        before, fitted = at.energy[BEST], at.energy[FITS]
        if step(at.random, at.energy, value, over, temperature):
            if at.energy[BEST] < before or at.energy[FITS] != fitted:
                at.best_device[:], at.best_priority[:] = at.device, at.priority
        else:
            undo(at.device, at.priority, log)
        if lost(at.energy, temperature):
            go_back(at)

    def placements(self, best: bool = False) -> Placements:
        """The current or the best placement, as a batch of one."""
        at = self.at
        device, priority = (at.best_device, at.best_priority) if best else (at.device, at.priority)
        return Placements.of(device, priority if len(priority) else None)


def walk_all(
    walks: Sequence[tuple[LocalSearch, Neighbourhood, float, float]], count: int, pool: Executor | None = None
) -> None:
    """Run `LocalSearch.walk` for each (chain, neighbourhood, temperature, factor), and charge the evaluations."""
    context, began = walks[0][0].context, time.perf_counter()
    if pool is None:
        total = sum(chain.walk(hood, count, *temperature) for chain, hood, *temperature in walks)
    else:
        jobs = [pool.submit(chain.walk, hood, count, *temperature) for chain, hood, *temperature in walks]
        total = sum(job.result() for job in jobs)
    evaluations = count * len(walks)
    context.evaluation_s = (time.perf_counter() - began) / evaluations
    best = min((chain for chain, *_ in walks), key=rank)
    context.task.evaluate.charge(evaluations, best.placements(best=True), total / evaluations)


def rank(chain: LocalSearch) -> tuple[bool, float]:
    """Sort key: chains whose best placement fits come first, then chains with better placements."""
    return not chain.at.energy[FITS], float(chain.at.energy[BEST])


def excess(measurements: Measurements, task: Task) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[b] values in seconds, and excess over capacity: share of each device's memory, plus `STEP`; `FAILURE` if it failed."""
    over = measurements.peak_bytes / task.problem.cluster.memory_bytes - 1.0
    over = np.where(over > 0, STEP + over, 0.0).sum(axis=1)
    failed = ~np.isfinite(measurements.value_s)
    return np.where(failed, task.evaluate.failing_signal_s, measurements.value_s), np.where(failed, FAILURE, over)


def penalised(value_s: Any, over: Any, price_s: Any) -> Any:
    """The seconds that searches minimize until a placement fits. `value_s`, `over`: see `excess`; `price_s`: price of `over`."""
    return value_s + price_s * over
