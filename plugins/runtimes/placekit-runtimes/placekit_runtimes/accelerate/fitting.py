"""Changes a device map so that it fits under accelerate, where streamed weights need room on the main device, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placekit_core import Problem
from placekit_runtimes.accelerate.device_map import DeviceMap, as_json
from placekit_runtimes.accelerate.hooks import CPU, covering, locate, shown
from placekit_runtimes.accelerate.simulation import OneThread, run_by_accelerate
from placekit_runtimes.interface import DeviceName, nearest
from placekit_runtimes.layers import device_numbers

_EDGE = 2  # modules at each end of a device's run that are tried
_SHOWN = 3  # moved modules that the note names


def fitted(problem: Problem, made: DeviceMap) -> DeviceMap:
    """Move modules greedily until the map fits; return it unchanged if it fits, cannot be run, or no moves help.

    Each move leaves the fewest missing bytes; of several moves that make the map fit, it is the fastest one.
    """
    search, moved = _Search(problem, dict(made.devices)), []
    now = search.run(search.devices)
    while now is not None and (over := search.over(now)) > 0:
        found: list[tuple[float, float, str, DeviceName]] = []
        for key, target in search.moves(now):
            after = search.run({**search.devices, key: target})
            if after is not None and search.over(after) < over:
                found.append((search.over(after), after.value_s, key, target))
        if not found:
            return made
        _, _, key, target = min(found, key=lambda f: f[:2])
        moved.append(f"{key!r} is on {shown(target)} instead of {shown(search.devices[key])}")
        search.devices[key] = target
        now = search.run(search.devices)
    return _with_devices(problem, made, search.devices, moved) if moved else made


def _with_devices(problem: Problem, made: DeviceMap, devices: dict[str, DeviceName], moved: Sequence[str]) -> DeviceMap:
    """The map with other devices, and a note about the modules that were moved."""
    located, device = locate(problem.graph, devices), problem.expand(made.placement.device)
    names = device_numbers(problem)
    for v, (now, before) in enumerate(zip(located.home, made.located.home, strict=True)):
        if now != before and now is not None:
            device[v] = names.index(now)
    text = "; ".join(moved[:_SHOWN]) + (f"; and {len(moved) - _SHOWN} more" if len(moved) > _SHOWN else "")
    note = f"moved so that the map fits, because accelerate streams weights through the main device: {text}"
    placement = nearest(problem, made.placement, device)
    return replace(
        made,
        text=as_json(devices),
        placement=placement,
        notes=(note, *made.notes),
        devices=dict(devices),
        located=located,
    )


class _Search:
    """The current map, and the bytes of its modules."""

    def __init__(self, problem: Problem, devices: dict[str, DeviceName]) -> None:
        self.problem, self.devices = problem, devices
        self.names = device_numbers(problem)
        graph = problem.graph
        self.bytes_: dict[str, float] = dict.fromkeys(devices, 0.0)
        for v in np.flatnonzero(graph.persistent_bytes).tolist():
            key = covering(graph.op_name[v], devices) or covering(graph.module[v], devices)
            if key is not None and graph.op_type[v] != "input":
                self.bytes_[key] += float(graph.persistent_bytes[v])

    def run(self, devices: Mapping[str, DeviceName]) -> OneThread | None:
        """The map as accelerate runs it; None if it cannot."""
        located = locate(self.problem.graph, devices)
        return None if located.breaks else run_by_accelerate(self.problem, located)

    def excess(self, run: OneThread) -> NDArray[np.float64]:
        """[D] bytes above the memory of each device."""
        return np.maximum(run.peak_bytes - self.problem.cluster.memory_bytes, 0.0)

    def over(self, run: OneThread) -> float:
        """Missing bytes on all devices together."""
        return float(self.excess(run).sum())

    def moves(self, run: OneThread) -> Iterator[tuple[str, DeviceName]]:
        """Moves of modules from the CPU to GPUs with room, and from both ends of each full device to other devices."""
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
