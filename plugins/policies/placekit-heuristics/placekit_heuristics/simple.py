"""Placements that ignore dependencies: a single device, random, round robin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from placekit_core import (
    Checkpoint,
    ClusterError,
    NotApplicable,
    Options,
    Placement,
    Policy,
    Problem,
    ResumablePolicy,
    State,
    Task,
)
from placekit_heuristics import RandomOptions, SingleDeviceOptions
from placekit_heuristics.best_of import best_of
from placekit_heuristics.expert_options import FallbackOptions, SingleTypeOptions


class SingleDevice(Policy):
    """Everything on one device.

    Groups that may not run there (CPU operations) go to the allowed device that is fastest for all of them. Without option
    `device`, devices with memory for the persistent bytes are tried, the fastest first, until the placement fits. If no device
    has this memory, the fastest one is used, and the backend reports that the placement does not fit.
    """

    name = "single_device"
    options_class: ClassVar[type[Options]] = SingleDeviceOptions
    device_type: ClassVar[str] = ""
    """Type of the device, `cpu` or `gpu`; empty for any."""

    def place(self, task: Task, rng: Generator) -> Placement:
        """The placement; evaluates only the devices that it tries. Raises ClusterError if the device does not exist."""
        problem = task.problem
        if self.options.device is None:
            return _first_that_fits(task, devices_of(problem, self.device_type))
        index = problem.cluster.device_index(self.options.device)
        if self.device_type not in ("", problem.device_type(index)):
            names = [problem.cluster.device_names[d] for d in devices_of(problem, self.device_type)]
            raise ClusterError(
                f"{self.options.device!r} is not a {self.device_type}", f"choose one of: {', '.join(names)}"
            )
        return problem.placement(single(problem, index))


class _SingleOfType(SingleDevice):
    """`SingleDevice` among the devices of one type. Raises NotApplicable without such a device."""

    options_class = SingleTypeOptions

    def place(self, task: Task, rng: Generator) -> Placement:
        """As in `single_device`. Raises NotApplicable without a device of the type, ClusterError for a wrong name."""
        return or_single_device(task, self.options, lambda: super(_SingleOfType, self).place(task, rng))


class SingleGpu(_SingleOfType):
    """Everything on one GPU; "if an operation lacks GPU implementation, it will be placed on CPU" (Mirhoseini, 4.2)."""

    name = "single_gpu"
    device_type = "gpu"


class SingleCpu(_SingleOfType):
    """Everything on one CPU, except operations that only GPUs may run."""

    name = "single_cpu"
    device_type = "cpu"


def devices_of(problem: Problem, device_type: str) -> list[int]:
    """Indices of the devices of a type (empty: all). Raises NotApplicable if there are none."""
    cluster = problem.cluster
    found = [d for d in range(cluster.size) if device_type in ("", problem.device_type(d))]
    if not found:
        has = ", ".join(f"{name} ({problem.device_type(d)})" for d, name in enumerate(cluster.device_names))
        raise NotApplicable(
            f"cluster {cluster.name!r} has no {device_type}",
            f"devices: {has}; choose a cluster that has one, such as k80x4, or set policy.otherwise=single_device",
        )
    return found


def accelerators(problem: Problem) -> NDArray[np.bool_]:
    """[g, D] allowed devices, without CPUs for groups that may run on GPUs.

    Permissions depend on the type of the device, so a group has all GPUs of the cluster or all its CPUs.
    """
    gpu = np.asarray([problem.device_type(d) == "gpu" for d in range(problem.cluster.size)])
    on_gpu = problem.allowed & gpu
    return np.where(on_gpu.any(axis=1, keepdims=True), on_gpu, problem.allowed)


def or_single_device(task: Task, options: FallbackOptions, place: Callable[[], Placement]) -> Placement:
    """The result of `place()`. If the policy is not defined: everything on one device, or NotApplicable, as option `otherwise`
    says."""
    try:
        return place()
    except NotApplicable as e:
        if options.otherwise == "error":
            raise
        task.evaluate.note(f"{e.message}: everything was placed on one device")
        return task.problem.placement(fastest_single(task.problem, devices_of(task.problem, "")))


def fastest_single(problem: Problem, devices: Sequence[int]) -> NDArray[np.int16]:
    """[g] everything on the fastest of `devices`, if possible on one with memory for the persistent bytes."""
    return fastest_first(problem, devices)[0]


def _first_that_fits(task: Task, devices: Sequence[int]) -> Placement:
    """Everything on the fastest of `devices` on which it fits; the slowest one is not evaluated."""
    *others, last = [task.problem.placement(device) for device in fastest_first(task.problem, devices)]
    for placement in others:
        if task.evaluate.remaining <= 0 or task.evaluate(placement.batch()).fits[0]:
            return placement
    return last


def fastest_first(problem: Problem, devices: Sequence[int]) -> list[NDArray[np.int16]]:
    """Placements [g] of everything on one of `devices` with memory for the persistent bytes, the fastest first.

    Of devices with the same kind and memory, only the first counts. If no device has the memory, the fastest is the only one.
    """
    cluster = problem.cluster
    first_of_kind = {(cluster.device_kind[d], float(cluster.memory_bytes[d])): d for d in reversed(devices)}
    candidates = [single(problem, d) for d in sorted(first_of_kind.values(), key=list(devices).index)]
    rows, size = np.arange(problem.g), problem.cluster.size
    fits = [
        (np.bincount(c, problem.group_persistent_bytes, minlength=size) <= problem.cluster.memory_bytes).all()
        for c in candidates
    ]
    seconds = [problem.group_s[rows, c].sum() for c in candidates]
    order = sorted(range(len(candidates)), key=lambda i: (seconds[i], i))
    return [candidates[i] for i in order if fits[i]] or [candidates[order[0]]]


def single(problem: Problem, device: int) -> NDArray[np.int16]:
    """[g] `device` for the groups that may run there; the others are on the device that is fastest for them together."""
    return within_allowed(problem, np.full(problem.g, device, np.int16))


def within_allowed(problem: Problem, wanted: NDArray[np.int16]) -> NDArray[np.int16]:
    """[g] `wanted` for the groups that may run there; the others are on the device that is fastest for them together."""
    result = wanted.copy()
    left = ~problem.allowed[np.arange(problem.g), wanted]
    while left.any():  # at most once per device type
        able = problem.allowed[left]
        count, seconds = able.sum(axis=0), np.where(able, problem.group_s[left], 0.0).sum(axis=0)
        other = min(range(problem.cluster.size), key=lambda d: (-count[d], seconds[d], d))
        here = left & problem.allowed[:, other]
        result[here] = other
        left &= ~here
    return result


class Random(ResumablePolicy):
    """Every group on a random device among its allowed ones, with equal chances."""

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
    """Groups in topological order, one to each device in turn, skipping devices that may not run a group."""

    name = "round_robin"

    def place(self, task: Task, rng: Generator) -> Placement:
        """The placement; nothing is evaluated."""
        problem, size = task.problem, task.problem.cluster.size
        order = problem.grouped.topological_order
        turn = np.arange(problem.g) % size
        # number of devices to skip
        ahead = problem.allowed[order[:, None], (turn[:, None] + np.arange(size)) % size].argmax(axis=1)
        device = np.empty(problem.g, np.int16)
        device[order] = (turn + ahead) % size
        return problem.placement(device)
