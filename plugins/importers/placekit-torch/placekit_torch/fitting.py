"""A device map changed so that it fits where accelerate runs it: streamed weights need room on the main device, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from placekit_core import Problem
from placekit_torch.export import DeviceMap
from placekit_torch.forms import Name, nearest
from placekit_torch.hooks import CPU, covering, locate, shown
from placekit_torch.one_thread import OneThread, as_accelerate
from placekit_torch.stages import device_names

_EDGE = 2  # modules at each end of a device's run that are tried


@dataclass(frozen=True, eq=False)
class Fitted:
    """A device map that fits, or the map as it was.

    Attributes:
        devices: the map.
        moved: texts about the modules that are elsewhere than in the map as it was.
    """

    devices: Mapping[str, Name]
    moved: tuple[str, ...]


def fitted(problem: Problem, devices: Mapping[str, Name]) -> Fitted:
    """The map with as few modules moved as a greedy search needs; unchanged if it fits, cannot be run, or nothing helps.

    Each move is the one after which the step is fastest among those that make it fit, or else that leaves the least too much.
    """
    search = _Search(problem, dict(devices))
    now, moved = search.run(search.devices), []
    while now is not None and (over := search.over(now)) > 0:
        found: list[tuple[float, float, str, Name]] = []
        for key, target in search.moves(now):
            after = search.run({**search.devices, key: target})
            if after is not None and search.over(after) < over:
                found.append((search.over(after), after.value_s, key, target))
        if not found:
            return Fitted(devices, ())
        _, _, key, target = min(found, key=lambda f: f[:2])
        moved.append(f"{key!r} is on {shown(target)} instead of {shown(search.devices[key])}")
        search.devices[key] = target
        now = search.run(search.devices)
    return Fitted(search.devices, tuple(moved))


def fitting_map(problem: Problem, made: DeviceMap) -> tuple[DeviceMap, tuple[str, ...]]:
    """A device map that fits, if `fitted` finds one, with the texts about what was moved."""
    fit = fitted(problem, made.devices)
    if not fit.moved:
        return made, ()
    located, device = locate(problem.graph, fit.devices), problem.expand(made.placement.device)
    names = device_names(problem)
    for v, (now, before) in enumerate(zip(located.home, made.located.home, strict=True)):
        if now != before and now is not None:
            device[v] = names.index(now)
    placement = nearest(problem, made.placement, device)
    return replace(made, devices=dict(fit.devices), located=located, placement=placement), fit.moved


class _Search:
    """The present map, and how much the modules in it weigh."""

    def __init__(self, problem: Problem, devices: dict[str, Name]) -> None:
        self.problem, self.devices = problem, devices
        self.names = device_names(problem)
        graph = problem.graph
        self.bytes_: dict[str, float] = dict.fromkeys(devices, 0.0)
        for v in np.flatnonzero(graph.persistent_bytes).tolist():
            key = covering(graph.op_name[v], devices) or covering(graph.module[v], devices)
            if key is not None and graph.op_type[v] != "input":
                self.bytes_[key] += float(graph.persistent_bytes[v])

    def run(self, devices: Mapping[str, Name]) -> OneThread | None:
        """The map as accelerate runs it; None if it cannot."""
        located = locate(self.problem.graph, devices)
        return None if located.breaks else as_accelerate(self.problem, located)

    def excess(self, run: OneThread) -> NDArray[np.float64]:
        """[D] bytes above the memory of each device."""
        return np.maximum(run.peak_bytes - self.problem.cluster.memory_bytes, 0.0)

    def over(self, run: OneThread) -> float:
        """Bytes above the memory of all devices together."""
        return float(self.excess(run).sum())

    def moves(self, run: OneThread) -> Iterator[tuple[str, Name]]:
        """Modules from the CPU to GPUs with room for them, and from both ends of each full device to the others."""
        room = self.problem.cluster.memory_bytes - run.peak_bytes
        full = {self.names[d] for d in np.flatnonzero(self.excess(run)).tolist()}
        keys = {name: [k for k, d in self.devices.items() if d == name and k] for name in self.names}
        for name, own in keys.items():
            if name == CPU:
                tried = own
            else:
                tried = list(dict.fromkeys([*own[:_EDGE], *own[-_EDGE:]])) if name in full else []
            for key in tried:
                for d, target in enumerate(self.names):
                    if target != name and room[d] >= self.bytes_[key]:
                        yield key, target
