"""Placements that look at no dependencies: one device, chance, turns."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from placekit_core.interfaces import Checkpoint, Policy, State
from placekit_core.placement import Placement
from placekit_core.problem import Problem, Task
from placekit_heuristics import RandomOptions, RoundRobinOptions, SingleDeviceOptions
from placekit_heuristics.best_of import best_of


class SingleDevice(Policy):
    """Everything on one device.

    Groups that may not run there (CPU operations) go to the allowed device that is fastest for all of them. Without
    `device`: the device of least total time, among those whose memory holds the persistent bytes that would be there;
    if none does, the one of least total time all the same, and the backend will say that it does not fit.
    """

    name = "single_device"
    options_class = SingleDeviceOptions

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        """The placement; nothing is evaluated. Raises ClusterError if the device does not exist."""
        problem = task.problem
        if self.options.device is not None:
            return problem.placement(single(problem, problem.cluster.device_index(self.options.device)))
        candidates = [single(problem, d) for d in range(problem.cluster.size)]
        rows = np.arange(problem.g)
        fits = [
            (np.bincount(c, problem.group_persistent_bytes, minlength=problem.cluster.size)
             <= problem.cluster.memory_bytes).all()
            for c in candidates
        ]  # fmt: skip
        seconds = [problem.group_s[rows, c].sum() for c in candidates]
        best = min(range(len(candidates)), key=lambda d: (not fits[d], seconds[d], d))
        return problem.placement(candidates[best])


def single(problem: Problem, device: int) -> NDArray[np.int16]:
    """[g] `device` where it is allowed; elsewhere the device that is fastest for the other groups together."""
    result = np.full(problem.g, device, np.int16)
    left = ~problem.allowed[:, device]
    while left.any():  # once for each type of device, at most
        able = problem.allowed[left]
        count, seconds = able.sum(axis=0), np.where(able, problem.group_s[left], 0.0).sum(axis=0)
        other = min(range(problem.cluster.size), key=lambda d: (-count[d], seconds[d], d))
        here = left & problem.allowed[:, other]
        result[here] = other
        left &= ~here
    return result


class Random(Policy):
    """Every group on one of its allowed devices, each with the same probability."""

    name = "random"
    options_class = RandomOptions

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        """The best of `samples` placements."""
        problem = task.problem

        def draw(_: int) -> Placement:
            number = rng.random(problem.allowed.shape)
            return problem.placement(np.where(problem.allowed, number, -1.0).argmax(axis=1))

        return best_of(task, self.options.samples, draw, rng, state, checkpoint)


class RoundRobin(Policy):
    """Groups in topological order, `chunk` at a time to each device in turn; a device that may not run one is passed over."""

    name = "round_robin"
    options_class = RoundRobinOptions

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        """The placement; nothing is evaluated."""
        problem, size = task.problem, task.problem.cluster.size
        order = problem.grouped.topological_order
        turn = np.arange(problem.g) // self.options.chunk % size
        # how many devices further than whose turn it is: the first that is allowed
        ahead = problem.allowed[order[:, None], (turn[:, None] + np.arange(size)) % size].argmax(axis=1)
        device = np.empty(problem.g, np.int16)
        device[order] = (turn + ahead) % size
        return problem.placement(device)
