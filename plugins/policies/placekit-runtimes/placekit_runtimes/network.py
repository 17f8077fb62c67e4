"""What a tool sees of a problem: its devices in order, the layers of the network, and what comes before and after them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray
from placekit_layers import Blocks, or_single_device, sequence

from placekit_core import ClusterError, NotApplicable, Placement, Policy, Problem, Task
from placekit_runtimes import RuleOptions


class Rule(Policy):
    """A policy that is the rule of a tool. It evaluates nothing and draws nothing."""

    options_class: ClassVar[type[RuleOptions]] = RuleOptions
    level = "operation"

    def place(self, task: Task, rng: Generator) -> Placement:
        """The placement of the rule.

        Raises NotApplicable where the tool would refuse the network or the machine, unless `otherwise` is `single_device`;
        ClusterError for a device that does not exist, ConfigError for options that contradict each other.
        """
        return or_single_device(task, self.options.otherwise, lambda: self.rule(task))

    @abstractmethod
    def rule(self, task: Task) -> Placement:
        """The placement of the rule. Raises as `place`, whatever `otherwise` says."""


@dataclass(frozen=True, eq=False)
class Network:
    """The blocks of a problem, and the devices that the tool uses.

    Attributes:
        blocks: the b blocks, in the order in which they run.
        devices: [p] devices in the order of the tool's ranks.
        of_layer: [layers] blocks that are repeated layers.
    """

    blocks: Blocks
    devices: tuple[int, ...]
    of_layer: NDArray[np.int64]

    @classmethod
    def of(cls, problem: Problem, options: RuleOptions) -> Network:
        """The blocks, and the devices that the option `devices` names: by default all GPUs, or all devices without GPUs."""
        blocks = sequence(problem)
        return cls(blocks, ranks(problem, options.devices), np.flatnonzero(blocks.layer))

    @property
    def problem(self) -> Problem:
        """The problem."""
        return self.blocks.problem

    def layers(self, tool: str) -> int:
        """The number of layers. Raises NotApplicable if the network has none."""
        if not len(self.of_layer):
            raise NotApplicable(
                f"{tool} counts layers, and graph {self.problem.graph.name!r} has no numbered list of modules",
                "decoders have one (`h.0`, `model.layers.3`); policy.otherwise=single_device places everything on one device",
            )
        return len(self.of_layer)

    def names(self, devices: Sequence[int]) -> str:
        """Names of devices, for a message."""
        return ", ".join(self.problem.cluster.device_names[d] for d in devices)

    def stages(self, counts: Sequence[int], devices: Sequence[int]) -> Placement:
        """The next `counts[s]` layers on `devices[s]`, for each stage s; the devices may repeat.

        What comes before the first layer is on the first stage, what comes after the last on the last stage, even if a
        stage has no layers: so do vLLM, torchtitan and exo. What is between layers goes with the layer before it.
        """
        return self.of_layers(np.repeat(devices, counts).tolist(), devices[0], devices[-1])

    def of_layers(self, device: Sequence[int], before: int, after: int) -> Placement:
        """Layer i on `device[i]`, what comes before the first layer on `before`, what comes after the last on `after`."""
        position = np.searchsorted(self.of_layer, np.arange(len(self.blocks)), side="right") - 1
        on = np.asarray([*device, before])[position]  # -1, the last element, before the first layer
        on[int(self.of_layer[-1]) + 1 :] = after
        return self.placed(on)

    def placed(self, device_of_block: ArrayLike) -> Placement:
        """Each block on its device; one that may not run there, on the first device that may run all of it.

        If there is none, only the operations that may not run on the block's device are elsewhere.
        """
        device, allowed = np.asarray(device_of_block), self.blocks.allowed
        moves = ~allowed[np.arange(len(device)), device] & allowed.any(axis=1)
        return self.placed_groups(np.where(moves, allowed.argmax(axis=1), device)[self.blocks.of_group])

    def placed_groups(self, device: NDArray[np.integer]) -> Placement:
        """Each group on its device [g], or on the first that may run it."""
        return _where_allowed(self.problem, device)


def ranks(problem: Problem, names: Sequence[str] | None) -> tuple[int, ...]:
    """The named devices; without names all GPUs, or all devices if there are none. Raises ClusterError."""
    cluster = problem.cluster
    if names is None:
        gpus = tuple(d for d in range(cluster.size) if problem.device_type(d) == "gpu")
        return gpus or tuple(range(cluster.size))
    found = tuple(cluster.device_index(name) for name in names)
    if len(set(found)) < len(found):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise ClusterError(f"policy.devices names {twice!r} twice", "name each device once, in the order of the stages")
    return found


def cpu_of(problem: Problem) -> int | None:
    """The first CPU of the machine."""
    return next((d for d in range(problem.cluster.size) if problem.device_type(d) == "cpu"), None)


def _where_allowed(problem: Problem, device: NDArray[np.integer]) -> Placement:
    """The placement of groups on `device` [g], where a device may not run a group on the first one that may."""
    allowed = problem.allowed[np.arange(problem.g), device]
    return problem.placement(np.where(allowed, device, problem.allowed.argmax(axis=1)).astype(np.int16))
