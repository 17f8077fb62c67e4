"""The interface of a runtime: its own rule for placing, its maps as text, and the cost of a map when the runtime runs it.

A runtime is one module with an instance of `Runtime`, which an entry point in the group `placekit.runtimes` names.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray
from placekit_layers import or_single_device

from placekit_core import ClusterError, NotApplicable, Placement, PlacementError, Policy, Problem, Task, units
from placekit_runtimes.options import RuleOptions

DeviceName = int | str
"""A device as a runtime names it: the number of a GPU, or `cpu`."""
_SHOWN = 3  # number of modules that a warning names
LEAST = 5e-4  # smaller shares of the time are not reported, because they print as 0.0%
_NO_WORK = 1e-15  # seconds counted for operations without work, so that they break ties only
_UNLIMITED_BYTES = 2**50  # larger memories are shown as unlimited


@dataclass(frozen=True)
class Conflict:
    """A module that a placement spreads over several devices, and a map puts on one device.

    Attributes:
        module: path of the module.
        device: device of the whole module in the map.
        elsewhere: share, in (0, 1], of the module's seconds that the placement puts on other devices.
        bytes: bytes of the module's parameters and other stored tensors that the placement puts on other devices.
    """

    module: str
    device: DeviceName
    elsewhere: float
    bytes: float = 0.0


@dataclass(frozen=True, eq=False)
class RuntimeMap:
    """A placement in the form that a runtime takes.

    Attributes:
        text: the map, such as flags or JSON, without a newline at the end.
        placement: the placement that the text describes; it can differ from the placement that was written.
        conflicts: modules with operations that the map moves to another device, the most seconds first.
        elsewhere: share of all seconds that the map moves to another device.
        notes: sentences for the user.
    """

    text: str
    placement: Placement
    conflicts: tuple[Conflict, ...] = ()
    elsewhere: float = 0.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class RuntimeCost:
    """The cost of a map when its runtime runs it.

    Attributes:
        value_s: seconds of a step; None if the runtime cannot run the map.
        peak_bytes: [D] highest memory in use on each device; empty if the runtime cannot run the map.
        error: why the runtime cannot run it, or which devices lack memory; empty if it runs.
        details: lines for the user about the parts of the seconds.
    """

    value_s: float | None
    peak_bytes: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    error: str = ""
    details: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The seconds, or "fails" or "does not fit"."""
        if self.value_s is None:
            return "fails"
        return "does not fit" if self.error else units.seconds(self.value_s)


class Rule(Policy):
    """A policy that divides a network as a runtime does, without evaluations or random numbers."""

    options_class: ClassVar[type[RuleOptions]] = RuleOptions
    level = "operation"

    def place(self, task: Task, rng: Generator) -> Placement:
        """Place as the runtime would.

        Raises NotApplicable if the runtime would refuse the network or the machine, unless `otherwise` is `single_device`;
        ClusterError for a device that does not exist; ConfigError for contradictory options.
        """
        return or_single_device(task, self.options.otherwise, lambda: self.rule(task.problem, task.evaluate.note))

    @abstractmethod
    def rule(self, problem: Problem, note: Callable[[str], None]) -> Placement:
        """The placement; `note` takes sentences for the user. Raises as `place`, but ignores `otherwise`."""

    def ranks(self, problem: Problem) -> tuple[int, ...]:
        """Devices by rank: those of option `devices`, else the GPUs, else all devices. Raises ClusterError."""
        names = self.options.devices
        if names is None:
            return tuple(gpus_or_all(problem))
        found = tuple(problem.cluster.device_index(name) for name in names)
        if len(set(found)) < len(found):
            twice = next(name for name in names if names.count(name) > 1)
            raise ClusterError(
                f"policy.devices names {twice!r} twice", "name each device once, in the order of the stages"
            )
        return found


class Runtime(ABC):
    """One runtime: its own rule for placing, its maps (reading and writing), and the cost of a map.

    Attributes:
        name: value of `placekit apply --format`.
        title: name of the runtime for messages.
        versions: public sources, with releases or commits, that the module was checked against.
        default_rule: how the runtime divides a network by default; None if it leaves that to users.
        runs: the steps that people run with it, whose pages show its map: `training`, `inference`, and `generation` of text
            by a language model (prefill or decode).
    """

    name: ClassVar[str]
    title: ClassVar[str]
    versions: ClassVar[tuple[str, ...]]
    default_rule: ClassVar[type[Rule] | None] = None
    runs: ClassVar[tuple[str, ...]] = ("training", "inference", "generation")

    def rule(self, problem: Problem) -> Placement:
        """The placement that the runtime itself would choose. Raises NotApplicable if it does not choose."""
        if self.default_rule is None:
            raise NotApplicable(
                f"{self.title} does not divide a network by itself", "place with a policy, and write the placement"
            )
        return self.default_rule().rule(problem, lambda _: None)

    @abstractmethod
    def write(self, problem: Problem, placement: Placement) -> RuntimeMap:
        """Write a placement for the runtime. Raises PlacementError that names the part that the runtime cannot express."""

    def read(self, problem: Problem, text: str, source: str) -> RuntimeMap:
        """Read a map of the runtime; `source` names its origin in messages. Raises PlacementError."""
        raise PlacementError(f"{source}: maps of {self.title} can only be written, not read", "give a device map")

    def cost(self, problem: Problem, made: RuntimeMap) -> RuntimeCost | None:
        """The cost of a map when the runtime runs it; None if the simulator's value is right."""
        return None


def gpus_or_all(problem: Problem) -> list[int]:
    """The GPUs; all devices of a machine without GPUs."""
    every = range(problem.cluster.size)
    return [d for d in every if problem.device_type(d) == "gpu"] or list(every)


def cpu_of(problem: Problem) -> int | None:
    """The first CPU of the machine, or None."""
    return next((d for d in range(problem.cluster.size) if problem.device_type(d) == "cpu"), None)


def devices_of(problem: Problem, placement: Placement) -> NDArray[np.int16]:
    """[n] device of each operation. Raises PlacementError if the placement is for another graph or machine."""
    if placement.graph != problem.graph.fingerprint or placement.cluster != problem.cluster.fingerprint:
        raise PlacementError(f"the placement is not for {problem.graph.name!r} on {problem.cluster.name!r}")
    return problem.expand(placement.device)


def seconds_by_device(problem: Problem, part: NDArray[np.integer], device: NDArray[np.integer]) -> NDArray[np.float64]:
    """[p, D] seconds on each device by part: operation v is in part `part[v]` and on device `device[v]`."""
    graph = problem.graph
    seconds = problem.op_s[np.arange(graph.n), device] * graph.kernel + _NO_WORK
    total = np.zeros((int(part.max(initial=-1)) + 1, problem.cluster.size))
    np.add.at(total, (part, device), seconds)
    return total


def nearest(problem: Problem, placement: Placement, device: ArrayLike) -> Placement:
    """Move each group to the allowed device that has most of its seconds when operation v is on `device[v]`.

    A group that may run on none of these devices stays where `placement` has it.
    """
    total = seconds_by_device(problem, problem.grouping.group_of, np.asarray(device))
    total[~problem.allowed] = 0.0
    chosen = np.where(total.max(axis=1) > 0, total.argmax(axis=1), placement.device)
    return problem.placement(chosen.astype(np.int16), placement.priority)


def lacking_memory(problem: Problem, peak_bytes: NDArray[np.float64]) -> str:
    """A message with the devices that have less memory than `peak_bytes` [D]; empty if everything fits."""
    memory = problem.cluster.memory_bytes
    return "; ".join(
        f"{problem.cluster.device_names[d]} needs {peak_bytes[d]:,.0f} bytes and has {memory[d]:,.0f}"
        for d in np.flatnonzero(peak_bytes > memory).tolist()
    )


def memory_text(problem: Problem, peak_bytes: NDArray[np.float64]) -> str:
    """The peak memory of each device in use, and its size."""
    return ", ".join(
        f"{d} {units.mebibytes(used)}" + (f" of {units.mebibytes(room)}" if room < _UNLIMITED_BYTES else "")
        for d, used, room in zip(problem.cluster.device_names, peak_bytes, problem.cluster.memory_bytes, strict=True)
        if used > 0
    )


def listed(names: Sequence[str], limit: int = 3) -> str:
    """The first names, quoted, and how many more there are."""
    shown = ", ".join(map(repr, names[:limit]))
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


def warn_of(name: str, made: RuntimeMap) -> None:
    """Warn of modules that a map moves, and print the map's notes as warnings."""
    for note in notes_of(name, made):
        warnings.warn(note, stacklevel=1)


def notes_of(name: str, made: RuntimeMap) -> list[str]:
    """Sentences for the user: the modules that a map moves, and the map's own notes."""
    conflicts = [c for c in made.conflicts if c.elsewhere > LEAST]
    if hardly := made.elsewhere < LEAST:  # an embedding may have many bytes, and hardly any time
        conflicts = [c for c in conflicts if c.bytes or c.elsewhere == 1]
    if not conflicts:
        return [*made.notes]
    shown = ", ".join(map(_conflict, conflicts[:_SHOWN]))
    more = f", and {len(conflicts) - _SHOWN} more" if len(conflicts) > _SHOWN else ""
    number = "a module" if len(conflicts) == 1 else f"{len(conflicts)} modules"
    splits = all(c.elsewhere < 1 for c in conflicts)
    title = f"a {name}" if name in ("device_map", "pipeline") else name
    what = f"the placement splits {number}, which {title} cannot" if splits else f"{title} moves {number}"
    share = f"less than {units.percent(2 * LEAST)}" if hardly else units.percent(made.elsewhere)
    moved = f"{what}: {share} of the step's time moves to other devices ({shown}{more})"
    return [moved, *made.notes]


def _conflict(conflict: Conflict) -> str:
    device = f"GPU {conflict.device}" if isinstance(conflict.device, int) else conflict.device
    module = repr(conflict.module) if conflict.module else "the network"
    return f"{units.percent(conflict.elsewhere)} of {module} to {device}"
