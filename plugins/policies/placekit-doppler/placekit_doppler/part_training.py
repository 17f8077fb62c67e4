"""Learning on parts of a placement: one chain of placements per problem. This is ours, not the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_learn.optimisers import Optimiser, clipped
from placekit_learn.policy_gradient import between
from placekit_scheduling import RULES, ListScheduler, b_level, group_priority
from placekit_scheduling.tracing import run_traced

from placekit_core import LearnablePolicy, Placement, Placements, Problem, Task
from placekit_doppler import ThreeStageOptions
from placekit_doppler.part_policy import Changes, Seen

Floats = NDArray[np.float64]
SAME = 1e-12  # relative difference of values that count as equal
GAIN = 1e-3  # relative gain from which a change has the full reward, 1
DECAY = 0.8  # of the baseline: share of the old average in the new one


class InParts(Protocol):
    """A policy that changes parts of a placement."""

    def see(self, problem: Problem, placement: Placement, traced: Any) -> Seen:
        """A placement, as the policy sees it, by the trace of its run."""
        ...

    def change(self, at: Seen, n: int, rng: Generator) -> Changes:
        """n changes of a placement, each by itself."""
        ...

    def change_gradients(
        self, changes: list[Changes], weight: list[Floats], entropy_weight: float
    ) -> dict[str, NDArray[Any]]:
        """Gradient, by parameter, of the sum of weighted log-probabilities."""
        ...

    def apply(self, steps: Mapping[str, NDArray[Any]]) -> None:
        """Add `steps` to the parameters of the same names."""
        ...


def in_parts(policy: LearnablePolicy | InParts) -> TypeGuard[InParts]:
    """Whether the policy changes parts of a placement."""
    return hasattr(policy, "change")


def is_traced(task: Task) -> bool:
    """Whether the backend's objective is a makespan and its compiled evaluation says when everything ran."""
    kernel = task.evaluate.kernel() if task.evaluate.objective in (None, "makespan") else None
    return kernel is not None and kernel.trace is not None


def list_schedules(problem: Problem) -> Placements:
    """A list schedule by every rule, and the single devices that may run everything; priorities are b-levels."""
    scheduler, level = ListScheduler(problem), b_level(problem)
    rows = []
    for rule in RULES:
        scheduler.reset()
        rows.append(scheduler.run(rule).devices())
    rows += [np.full(problem.g, d, np.int16) for d in np.flatnonzero(problem.allowed.all(axis=0))]
    return Placements.of(np.stack(rows), np.tile(group_priority(problem, level), (len(rows), 1)))


class PartChain:
    """A placement that is changed part by part, and what its problem's changes were worth.

    Every round draws `part_round` changes of the current placement and evaluates them. The best of those that are better
    becomes the current placement; if none is, one that is not worse by more than Metropolis' rule allows (the temperature
    falls over the budget). A change is worth its relative gain over `GAIN`, at most 1, and 0 if it is no gain: the advantage
    is relative to the current placement, and changes that do nothing are worth no more than bad ones.

    Attributes:
        device, priority: [g] the current placement; None before the first update.
        value_s: its value, seconds.
        baseline: moving average of what changes were worth.
    """

    def __init__(self, options: ThreeStageOptions) -> None:
        self.options = options
        self.device: NDArray[np.int16] | None = None
        self.priority: NDArray[np.float32] | None = None
        self.value_s, self.baseline = np.inf, 0.0

    def update(self, policy: InParts, task: Task, rng: Generator, optimiser: Optimiser, progress: float) -> None:
        """`part_samples` changes and one step of the optimiser. `progress`: share of the stage, in [0, 1]."""
        o, made, worth = self.options, list[Changes](), list[Floats]()
        at = self._begin(policy, task)
        while sum(len(w) for w in worth) < o.part_samples:
            n = int(max(1, min(o.part_round, task.evaluate.remaining)))
            changes = policy.change(at, n, rng)
            measured = task.evaluate(changes.placements)
            found = np.where(measured.fits, measured.value_s, np.inf)
            made.append(changes)
            worth.append(np.clip((self.value_s - found) / self.value_s / GAIN, 0.0, 1.0))
            if self._step(changes.placements, found, progress, rng):
                at = self._see(policy, task)
        if o.part_learning_rate:
            rate = between(o.part_learning_rate, 0.0, progress)
            found_gradients = policy.change_gradients(made, self._weights(worth), o.part_entropy_weight)
            policy.apply(optimiser.steps(clipped(found_gradients, o.max_gradient_norm), rate))

    def _begin(self, policy: InParts, task: Task) -> Seen:
        best = task.evaluate.best
        assert best is not None
        if self.device is None:
            level = group_priority(task.problem, b_level(task.problem))
            self.device, self.value_s = best.placement.device.astype(np.int16), best.value_s
            self.priority = (level if best.placement.priority is None else best.placement.priority).astype(np.float32)
        return self._see(policy, task)

    def _see(self, policy: InParts, task: Task) -> Seen:
        assert self.device is not None
        assert self.priority is not None
        kernel = task.evaluate.kernel()
        assert kernel is not None
        traced = run_traced(kernel, task.problem, self.device, self.priority)
        return policy.see(task.problem, task.problem.placement(self.device, self.priority), traced)

    def _step(self, placements: Placements, value_s: Floats, progress: float, rng: Generator) -> bool:
        """Go to one of the placements, or stay; returns whether the current placement is another one now."""
        o = self.options
        share = o.part_temperature * (o.part_temperature_end / o.part_temperature) ** progress
        limit = self.value_s * (1 + SAME - share * np.log(1 - rng.random(len(value_s))))
        better = value_s < self.value_s * (1 - SAME)
        if better.any():
            row = int(np.argmin(value_s))
        elif (value_s <= limit).any():
            row = int(np.flatnonzero(value_s <= limit)[0])
        else:
            return False
        device, priority = placements.one(row)
        assert priority is not None
        self.device, self.priority, self.value_s = device.copy(), priority.copy(), float(value_s[row])
        return True

    def _weights(self, worth: list[Floats]) -> list[Floats]:
        """Advantages over the baseline, in standard deviations of the batch, over the number of changes."""
        every = np.concatenate(worth)
        mean, deviation = float(every.mean()), float(every.std()) or 1.0
        weights = [(w - self.baseline) / deviation / len(every) for w in worth]
        self.baseline = DECAY * self.baseline + (1 - DECAY) * mean
        return weights

    def state(self) -> dict[str, Any]:
        """What `restore` needs."""
        found = {"value_s": self.value_s, "baseline": self.baseline}
        return found if self.device is None else {**found, "device": self.device, "priority": self.priority}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`."""
        self.value_s, self.baseline = float(state["value_s"]), float(state["baseline"])
        if "device" in state:
            self.device, self.priority = np.array(state["device"], np.int16), np.array(state["priority"], np.float32)
