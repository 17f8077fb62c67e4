"""Finds the device on which accelerate runs each operation under a device map, and the operations that it cannot run.

Follows huggingface/accelerate 1.15, src/accelerate/big_modeling.py (`dispatch_model`) and hooks.py (`AlignDevicesHook`); the
code is our own. A hook moves the inputs of each module in the map to the module's device. The root's hook moves the inputs
of the network to the main device, which is the GPU with the lowest number in the map. Nothing else moves: an operation of a
module that is not in the map runs where its inputs are. The weights of modules on `cpu` are copied to the main device just
before each leaf module runs, and dropped after it; the main device computes, unless the map has no GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placekit_core import PHASES, Graph
from placekit_runtimes.interface import DeviceName
from placekit_runtimes.modules import above, is_loss

CPU = "cpu"


@dataclass(frozen=True)
class Break:
    """An operation that accelerate cannot run, and the reason as a clause for messages."""

    op: int
    why: str


@dataclass(frozen=True, eq=False)
class Located:
    """The operations of a graph under a device map.

    Attributes:
        main: the main device.
        key: [n] entry of the map that covers an operation, or None.
        home: [n] device that the map gives an operation; without an entry, that of its inputs; for inputs of the network, that
            of their first reader; None if unknown.
        runs: [n] device on which accelerate runs a kernel, or reads a source. Differs from `home` e.g. for modules on the CPU.
        breaks: operations that accelerate cannot run, in the order of the run.
    """

    main: DeviceName
    key: Sequence[str | None]
    home: Sequence[DeviceName | None]
    runs: Sequence[DeviceName | None]
    breaks: tuple[Break, ...]


def main_device(devices: Mapping[str, DeviceName]) -> DeviceName:
    """The device that runs modules that are on no GPU: the GPU with the lowest number, or the CPU."""
    return min((name for name in devices.values() if isinstance(name, int)), default=CPU)


def covering(path: str, devices: Mapping[str, DeviceName]) -> str | None:
    """The entry of the map that a module or tensor belongs to."""
    return next((m for m in (path, *above(path), "") if m in devices), None)


def locate(graph: Graph, devices: Mapping[str, DeviceName]) -> Located:
    """Find where the operations of a graph run under a map from modules and tensors to devices.

    Inputs start on the main device. But if there are several, an input that only one module of the map reads, such as the
    cache of a layer, starts on that module's device, unless it is the first module.
    """
    walk = _Walk(graph, devices)
    walk.weights_and_inputs()
    order = graph.topological_order
    forward = graph.kernel & (graph.phase == PHASES.index("forward"))
    for v in order[forward[order]].tolist():
        walk.forward(v)
    for v in order[(graph.kernel & ~forward)[order]].tolist():
        walk.backward_or_update(v)
    walk.remaining_sources()
    return Located(walk.main, walk.key, walk.home, walk.runs, tuple(walk.breaks))


class _Walk:
    """Fills `home` and `runs`, one operation after the other."""

    def __init__(self, graph: Graph, devices: Mapping[str, DeviceName]) -> None:
        self.graph, self.devices, self.main = graph, devices, main_device(devices)
        self.kinds = graph.op_type.tolist()
        self.modules = graph.module.tolist()
        of_module = {m: None if is_loss(m) else covering(m, devices) for m in graph.module.vocabulary}
        self.key = [of_module[m] for m in self.modules]
        self.home: list[DeviceName | None] = [None] * graph.n
        self.runs: list[DeviceName | None] = [None] * graph.n
        self.breaks: list[Break] = []
        column = graph.columns.get("forward_of")
        self.forward_of = column.tolist() if isinstance(column, np.ndarray) else [-1] * graph.n

    def weights_and_inputs(self) -> None:
        """Place parameters and buffers as their entry says, and inputs on the main device or as `_caches` says."""
        only = self._caches()
        for v in np.flatnonzero(~self.graph.kernel).tolist():
            if self.kinds[v] == "input":
                self.runs[v] = only.get(v, self.main)
                continue
            name = self.graph.op_name[v]
            self.key[v] = name if name in self.devices else self.key[v]
            if (key := self.key[v]) is not None and self.kinds[v] != "state":
                self.home[v] = self.devices[key]
                if not self.modules[v] or (self.kinds[v] == "buffer" and self.home[v] == CPU):
                    self.home[v] = self.main  # the root's hook moves its tensors; `offload_buffers` is off by default
                self.runs[v] = self._computing(self.home[v])

    def _caches(self) -> dict[int, DeviceName]:
        graph, found = self.graph, dict[int, DeviceName]()
        inputs = [v for v in np.flatnonzero(~graph.kernel).tolist() if self.kinds[v] == "input"]
        first = next((k for v, k in enumerate(self.key) if graph.kernel[v] and k is not None), None)
        for v in inputs if len(inputs) > 1 else ():
            keys = {self.key[r] for t in graph.outputs(v) for r in graph.consumers(t).tolist()}
            if len(keys) == 1 and (key := keys.pop()) not in (None, first, ""):
                found[v] = self._computing(self.devices[str(key)])
        return found

    def _computing(self, name: DeviceName | None) -> DeviceName:
        return self.main if name is None or name == CPU else name

    def forward(self, v: int) -> None:
        """Place an operation of the forward pass: on its module's device, else with its inputs; the loss on the main device."""
        key, read = self.key[v], self.graph.tensor_producer[self.graph.inputs(v)].tolist()
        if key is not None:
            self.home[v], self.runs[v] = self.devices[key], self._computing(self.devices[key])
            for u in read:
                if self._is_weight(u) and self.runs[u] not in (None, self.runs[v]):
                    self._break(v, f"reads {self.graph.op_name[u]!r}, which is on {shown(self.runs[u])}")
            return
        homes = [self.home[u] for u in read if self.home[u] is not None]
        self.home[v] = next(iter(homes), None)
        if is_loss(self.modules[v]):
            self.runs[v] = self.main
            return
        there = {self.runs[u]: u for u in reversed(read) if self.runs[u] is not None}
        offloaded = [u for u in read if self._is_weight(u) and self.home[u] == CPU != self.main]
        if len(there) > 1:
            names = " and ".join(f"{self.graph.op_name[u]!r} on {shown(name)}" for name, u in reversed(there.items()))
            self._break(v, f"reads {names}, and accelerate moves neither")
        elif offloaded:
            self._break(v, f"reads {self.graph.op_name[offloaded[0]]!r}, whose module is on cpu and never called")
        self.runs[v] = next(iter([self.runs[u] for u in read if self.runs[u] is not None]), None)

    def backward_or_update(self, v: int) -> None:
        """Place a gradient where its forward operation runs, and an update where its parameter is."""
        u = self.forward_of[v]
        if u < 0 and self.key[v] is None:
            read = self.graph.tensor_producer[self.graph.inputs(v)].tolist()
            u = next((r for r in read if self.runs[r] is not None), -1)
        if u >= 0:
            self.home[v], self.runs[v] = self.home[u], self.runs[u]
        elif self.key[v] is not None:
            self.home[v], self.runs[v] = self.devices[str(self.key[v])], self._computing(self.devices[str(self.key[v])])
        if self.main != CPU and self.key[v] is not None and self.devices[str(self.key[v])] == CPU and not self.breaks:
            self._break(v, "belongs to a module on cpu, whose weights accelerate drops after the forward pass")

    def remaining_sources(self) -> None:
        """Place what is left: the optimiser's state with its module, inputs and all others with their first reader."""
        for v in np.flatnonzero(~self.graph.kernel).tolist():
            if self.home[v] is None:
                key = self.key[v]
                readers = [r for t in self.graph.outputs(v) for r in self.graph.consumers(t).tolist()]
                known = self.devices[key] if key is not None else next((self.home[r] for r in readers), None)
                self.home[v] = known
                self.runs[v] = self._computing(known) if self.runs[v] is None else self.runs[v]

    def _is_weight(self, v: int) -> bool:
        return self.kinds[v] in ("parameter", "buffer")

    def _break(self, v: int, why: str) -> None:
        module = self.modules[v]
        self.breaks.append(Break(v, f"{f'module {module!r}' if module else 'the network'} {why}"))


def shown(name: DeviceName | None) -> str:
    """A device of a map, for a message."""
    return f"GPU {name}" if isinstance(name, int) else str(name)
