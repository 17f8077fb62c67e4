"""Policy `genetic`: a biased random-key genetic algorithm over devices and priorities (Goncalves and Resende 2011)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from placekit_core import Checkpoint, Placement, Placements, ResumablePolicy, State, Task
from placekit_search.chain import excess
from placekit_search.genetic_options import GeneticOptions
from placekit_search.starts import list_schedules, simplest

Devices = NDArray[np.int16]
Keys = NDArray[np.float32]


class Genetic(ResumablePolicy):
    """The genetic algorithm of REGAL (Paliwal et al. 2020), without the network that biases it.

    A chromosome has two genes per group: its device, and a priority in [0, 1). The first generation is list schedules
    and random placements. Every further one is the elite of the one before, random mutants, and children of one parent of
    the elite and one of the rest. The new chromosomes of a generation are evaluated in one batch. Placements that do not fit
    in memory rank behind all that do, and among themselves by value plus a penalty in proportion to the excess. The same
    seed gives the same result to the last bit; a budget of seconds decides only how far the search gets.
    """

    name = "genetic"
    options_class = GeneticOptions

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        """The best placement seen. Resumes exactly from `state`."""
        evolution = _Evolution(task, self.options, rng)
        if state is None:
            evolution.begin()
        else:
            evolution.restore(state)
        while True:
            if checkpoint is not None:
                checkpoint(evolution.state())
            if task.evaluate.remaining <= 0:
                return task.problem.placement(evolution.device[0], evolution.priority[0])
            evolution.step()


class _Evolution:
    """One evolution. Its population is in order, the best first; chromosomes that repeat another's value come last.

    Attributes:
        device, priority: [p, g] genes.
        energy: [p] values with penalties, seconds; `fits`: [p].
        size: p from the second generation on.
    """

    def __init__(self, task: Task, options: GeneticOptions, rng: Generator) -> None:
        self.task, self.problem, self.options, self.rng = task, task.problem, options, rng
        g, allowed = self.problem.g, self.problem.allowed
        self.choices = allowed.sum(axis=1)
        self.choice = np.argsort(~allowed, axis=1, kind="stable").astype(
            np.int16
        )  # [g, D] devices, the allowed ones first
        self.position = np.empty(g, np.int64)
        self.position[self.problem.grouped.topological_order] = np.arange(g)
        self.device: Devices = np.empty((0, g), np.int16)
        self.priority: Keys = np.empty((0, g), np.float32)
        self.energy, self.fits = np.empty(0), np.empty(0, np.bool_)
        left = task.evaluate.remaining
        self.size = options.population or (200 if math.isinf(left) else min(max(math.isqrt(int(left)), 20), 1000))

    def state(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "priority": self.priority,
            "energy": self.energy,
            "fits": self.fits,
            "size": self.size,
        }

    def restore(self, state: State) -> None:
        self.device, self.priority = np.array(state["device"], np.int16), np.array(state["priority"], np.float32)
        self.energy, self.fits = np.array(state["energy"], np.float64), np.array(state["fits"], np.bool_)
        self.size = int(state["size"])

    def begin(self) -> None:
        """The first generation, of at most half of the budget."""
        simplest(self.task)
        size = int(max(1, min(self.size, self.task.evaluate.remaining / 2)))
        scheduled = math.ceil(self.options.scheduled * size)
        starts = list_schedules(self.problem, scheduled, self.rng) if scheduled else None
        device, priority = self._drawn(size - scheduled)
        if starts is not None:
            keys = np.zeros(starts.device.shape) if starts.priority is None else starts.priority.astype(np.float64)
            noise = self.rng.standard_normal(keys.shape)
            noise[: max(1, scheduled // 2)] = 0.0
            device = np.concatenate([starts.device, device])
            priority = np.concatenate([_keys(keys * np.exp(self.options.perturbation * noise)), priority])
        self._take(0, device, priority)

    def step(self) -> None:
        """One generation."""
        o, rng, size = self.options, self.rng, self.size
        elite = min(max(1, round(o.elite * size)), len(self.energy))
        mutants = round(o.mutants * size)
        children = max(1, size - elite - mutants)
        first = rng.integers(elite, size=children)
        second = rng.integers(min(elite, len(self.energy) - 1), len(self.energy), children)
        device, priority = self._cross(first, second)
        chance = self._drawn(children)
        for genes, new in ((device, chance[0]), (priority, chance[1])):
            mutated = rng.random(genes.shape) < o.mutation / max(self.problem.g, 1)
            genes[mutated] = new[mutated]
        others = self._drawn(mutants)
        self._take(elite, np.concatenate([device, others[0]]), np.concatenate([priority, others[1]]))

    def _cross(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> tuple[Devices, Keys]:
        """Children of elite parents `first` and others `second`."""
        o, g, shape = self.options, self.problem.g, (len(first), self.problem.g)
        if o.crossover == "uniform":
            elite = [self.rng.random(shape) < o.elite_bias for _ in range(2)]
        else:
            length = 1 + self.rng.random(len(first)) * 2 * (1 - o.elite_bias) * g
            begin = self.rng.integers(max(g, 1), size=len(first))
            elite = [(self.position - begin[:, None]) % max(g, 1) >= length[:, None]] * 2
        device = np.where(elite[0], self.device[first], self.device[second])
        return device, np.where(elite[1], self.priority[first], self.priority[second])

    def _drawn(self, count: int) -> tuple[Devices, Keys]:
        """Random chromosomes."""
        shape = (count, self.problem.g)
        index = (self.rng.random(shape) * self.choices).astype(np.int64)
        device = self.choice[np.arange(self.problem.g), index]
        return device, self.rng.random(shape, np.float32)

    def _take(self, kept: int, device: Devices, priority: Keys) -> None:
        """Evaluate as many as the budget allows; these and the first `kept` become the population."""
        count = max(
            1, int(min(len(device), self.task.evaluate.remaining))
        )  # if none is left, the evaluator raises an error
        measured = self.task.evaluate(Placements.of(device[:count], priority[:count]))
        # of equal values the newer one goes first: on plateaus the elite drifts
        self.device = np.concatenate([device[:count], self.device[:kept]])
        self.priority = np.concatenate([priority[:count], self.priority[:kept]])
        value, over = excess(measured, self.task)
        energy = value + self.task.evaluate.failing_signal_s * over
        self.energy = np.concatenate([energy, self.energy[:kept]])
        self.fits = np.concatenate([measured.fits, self.fits[:kept]])
        order = np.lexsort((self.energy, ~self.fits))
        again = np.zeros(len(order), np.bool_)
        again[1:] = np.diff(self.energy[order]) == 0  # otherwise the elite would soon be copies of one chromosome
        order = order[np.argsort(again, kind="stable")]
        self.device, self.priority = self.device[order], self.priority[order]
        self.energy, self.fits = self.energy[order], self.fits[order]


def _keys(values: NDArray[np.float64]) -> Keys:
    """[b, g] ranks of the values of each row, in (0, 1)."""
    rank = np.argsort(np.argsort(values, axis=1, kind="stable"), axis=1)
    return np.asarray((rank + 0.5) / values.shape[1], np.float32)
