"""Policy `annealing`: simulated annealing from the best list schedule (Kirkpatrick, Gelatt and Vecchi 1983)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import BaseModel

from placekit_core.interfaces import Checkpoint, Policy, State
from placekit_core.list_scheduling import RULES, ListScheduler, b_level, group_priority, warm_up
from placekit_core.measurement import Kernel, Measurements
from placekit_core.placement import Placement, Placements
from placekit_core.problem import Problem, Task
from placekit_search import AnnealingOptions
from placekit_search.moves import STEP, anneal, neighbourhood, propose, step, undo


class Annealing(Policy):
    """Starts from the best of several list schedules and of the single devices; moves operations, clusters, and pairs.

    The temperature falls geometrically over the budget, from `temperature_start` to `temperature_end` times the value of
    the start. Until a placement that fits is found, one over a device's memory is visited at a penalty in proportion to
    the excess; afterwards only placements that fit. The priorities are those of the start (b-levels) and do not change.
    With a budget of evaluations the result is the same to the last bit for the same seed; with a budget of seconds the
    temperature follows the clock.
    """

    name = "annealing"
    options_class = AnnealingOptions

    def __init__(self, options: BaseModel | None = None, **values: Any) -> None:
        super().__init__(options, **values)
        warm_up()

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        """The best placement seen. Resumes exactly from `state`."""
        problem, o = task.problem, self.options
        if state is None:
            state = self._start(task, rng)
        run = _Run(task, state)
        moves = neighbourhood(problem, o.swap_moves, o.cluster_moves, o.region_moves, o.neighbour_bias)
        kernel = task.evaluate.kernel()
        chunk = max(1, min(2000, 2_000_000 // max(problem.graph.n, 1)))
        while len(moves.movable) and task.evaluate.remaining > 0:
            count = int(min(chunk, task.evaluate.remaining)) if kernel is not None else 1
            temperature = run.temperature(task, count, o.temperature_start, o.temperature_end)
            if kernel is not None:
                run.compiled(task, kernel, moves, count, temperature)
            else:
                run.one(task, moves, temperature[0])
            if checkpoint is not None:
                checkpoint(run.state())
        return problem.placement(run.best, run.priority)

    def _start(self, task: Task, rng: Generator) -> dict[str, Any]:
        """Evaluate the starts in one batch, at most a quarter of what is left of the budget, and take the best."""
        limit = int(max(1, min(self.options.starts, task.evaluate.remaining / 4)))
        starts = list_schedules(task.problem, limit, rng)
        measurements = task.evaluate(starts)
        energy = _energy(measurements, task)
        row = int(np.argmin(np.where(measurements.fits.any() & ~measurements.fits, np.inf, energy)))
        device, priority = starts.one(row)
        return {
            "device": device.copy(),
            "best": device.copy(),
            "priority": np.zeros(0, np.float32) if priority is None else priority.copy(),
            "energy": np.array([energy[row], energy[row], float(measurements.fits[row])]),
            "start_s": float(energy[row]),
            "random": rng.integers(0, 2**64, 1, np.uint64),
        }


class _Run:
    """The state of one annealing."""

    def __init__(self, task: Task, state: State) -> None:
        self.device: NDArray[np.int16] = np.array(state["device"], np.int16)
        self.best: NDArray[np.int16] = np.array(state["best"], np.int16)
        self.priority: NDArray[np.float32] = np.array(state["priority"], np.float32)
        self.energy: NDArray[np.float64] = np.array(state["energy"], np.float64)
        self.random: NDArray[np.uint64] = np.array(state["random"], np.uint64)
        self.start_s = float(state["start_s"])
        self.penalty_s = task.evaluate.failing_signal_s

    def state(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "best": self.best,
            "priority": self.priority,
            "energy": self.energy,
            "random": self.random,
            "start_s": self.start_s,
        }

    def temperature(self, task: Task, count: int, first: float, last: float) -> NDArray[np.float64]:
        """[2] temperature now, seconds, and its factor per evaluation over the next `count`."""
        progress, ratio = task.evaluate.progress, last / first
        limit = task.evaluate.ledger.limit
        factor = ratio ** (1.0 / limit) if limit is not None else 1.0
        return np.array([max(self.start_s, 1e-300) * first * ratio**progress, factor])

    def compiled(self, task: Task, kernel: Kernel, moves: Any, count: int, temperature: NDArray[np.float64]) -> None:
        """`count` evaluations in one compiled loop, charged to the evaluator."""
        total = anneal(
            kernel.function, kernel.ints, kernel.floats, kernel.scratch_ints, kernel.scratch_floats, self.device,
            self.priority, self.best, self.energy, self.random, moves, task.problem.cluster.memory_bytes,
            self.penalty_s, count, temperature,
        )  # fmt: skip
        task.evaluate.charge(count, Placements.of(self.best, self._priorities()), total / count)

    def one(self, task: Task, moves: Any, temperature: float) -> None:
        """One evaluation through a backend that has no compiled evaluation."""
        changed, before = np.empty(max(len(self.device), 2), np.int32), np.empty(max(len(self.device), 2), np.int16)
        count = propose(self.random, self.device, moves, changed, before)
        measured = task.evaluate(Placements.of(self.device, self._priorities()))
        new = float(_energy(measured, task)[0])
        if not step(self.random, self.energy, new, bool(measured.fits[0]), temperature):
            undo(self.device, changed, before, count)
        elif self.energy[0] == self.energy[1]:
            self.best[:] = self.device

    def _priorities(self) -> NDArray[np.float32] | None:
        return self.priority if len(self.priority) else None


def _energy(measurements: Measurements, task: Task) -> NDArray[np.float64]:
    """[b] what annealing makes small, seconds: the value, plus a penalty for memory over capacity or a failure."""
    memory = task.problem.cluster.memory_bytes
    excess = measurements.peak_bytes / memory - 1.0
    over = np.where(excess > 0, STEP + excess, 0.0).sum(axis=1)
    energy = measurements.value_s + task.evaluate.failing_signal_s * over
    return np.where(np.isfinite(energy), energy, 10.0 * task.evaluate.failing_signal_s)


def list_schedules(problem: Problem, count: int, rng: Generator) -> Placements:
    """`count` starts with b-level priorities: list schedules by every rule in turn with random ties, single devices last.

    The first of each rule breaks ties by index. Single devices take at most a quarter of the places.
    """
    level = b_level(problem)
    priority = group_priority(problem, level)
    rows = []
    together = [d for d in np.argsort(problem.group_s.sum(axis=0), kind="stable") if problem.allowed[:, d].all()]
    singles = [np.full(problem.g, d, np.int16) for d in together[: math.ceil(count / 4) if count > 1 else 0]]
    scheduler = ListScheduler(problem)
    for i in range(count - len(singles)):
        rule = RULES[i % len(RULES)]
        scheduler.reset()
        seed = None if i < len(RULES) else int(rng.integers(2**62))
        rows.append(scheduler.run(rule, seed=seed).devices())
    device = np.stack([*rows, *singles])
    return Placements.of(device, np.broadcast_to(priority, device.shape))
