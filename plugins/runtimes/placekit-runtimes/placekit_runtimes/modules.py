"""Placements seen by modules: the tree of modules, the seconds of their operations, and their tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placekit_core import PHASES, Placement, PlacementError, Problem
from placekit_runtimes.interface import Conflict, DeviceName, devices_of, nearest

_LOSS = "loss"  # where the importer of torch modules puts operations outside of the module


class PlacedModules:
    """A placement seen by modules. `form` begins the message of the PlacementError for graphs without modules.

    Attributes:
        device: [n] device of each operation.
        seconds: [n] seconds of each operation there.
        modules: paths of modules, the vocabulary of `graph.module`.
        forward: kernels of the forward pass without the loss, in the order in which they run.
    """

    def __init__(self, problem: Problem, placement: Placement, form: str) -> None:
        graph = self.graph = problem.graph
        self.problem, self.placement, self.device = problem, placement, devices_of(problem, placement)
        self.seconds = problem.op_s[np.arange(graph.n), self.device] * graph.kernel
        self.modules = graph.module.vocabulary
        self.kinds = graph.op_type.tolist()
        loss = np.asarray([is_loss(m) for m in self.modules], np.bool_)[graph.module.codes]
        order = graph.topological_order
        self.forward = order[(graph.kernel & (graph.phase == PHASES.index("forward")) & ~loss)[order]]
        if all(not m or is_loss(m) for m in self.modules):
            raise PlacementError(
                f"{form}, but the operations of {graph.name!r} belong to no modules",
                "`placekit apply RUN_DIR --format json` has the device of every operation",
            )

    def module_of(self, op: int) -> str:
        """Path of the operation's module."""
        return self.graph.module[op]

    def below(self, module: str) -> NDArray[np.bool_]:
        """[n] whether an operation belongs to the module, or to a module in it."""
        inside = [m == module or m.startswith(f"{module}.") for m in self.modules]
        return np.asarray(inside, np.bool_)[self.graph.module.codes]

    @cached_property
    def own_tensors(self) -> dict[str, list[int]]:
        """Parameters and buffers by their module."""
        found: dict[str, list[int]] = {}
        by_file = self.graph.attributes.get("program") == "decoder"  # parameters have the names of a file
        for v in np.flatnonzero(~self.graph.kernel).tolist():
            module = self.module_of(v)
            # a constant in a module's code has no name in the module
            named = self.graph.op_name[v].rpartition(".")[0] == module or (by_file and self.kinds[v] == "parameter")
            if self.kinds[v] in ("parameter", "buffer") and named:
                found.setdefault(module, []).append(v)
        return found

    @cached_property
    def leaves(self) -> dict[str, int]:
        """Device of each module without submodules, in the order of the forward pass; the loss only if it has tensors."""
        inner = {part for m in self.modules for part in above(m)}
        called = [self.module_of(v) for v in self.forward.tolist()]
        return {
            m: self._majority(self.modules.index(m), m)
            for m in dict.fromkeys([*called, *self.modules])
            if m and m not in inner and (m in self.own_tensors or not is_loss(m))
        }

    @cached_property
    def tensors(self) -> dict[str, int]:
        """Device of each parameter and buffer of a module with submodules."""
        inner = [ops for m, ops in self.own_tensors.items() if m not in self.leaves]
        return {self.graph.op_name[v]: int(self.device[v]) for ops in inner for v in ops}

    def _majority(self, code: int, module: str) -> int:
        own = self.graph.module.codes == code
        if (block := self._idle_block(module)) is not None:
            inside = self.below(block)
            return int(np.bincount(self.device[inside], self.graph.persistent_bytes[inside]).argmax())
        total = np.bincount(self.device[own], self.seconds[own], minlength=self.problem.cluster.size)
        most = np.flatnonzero(total >= total.max() * (1 - 1e-9))  # sums in different orders differ in the last bits
        homes = [int(self.device[v]) for v in self.own_tensors.get(module, ())]
        return next((d for d in homes if d in most), int(most[0]))

    def _idle_block(self, module: str) -> str | None:
        """The layer around a module, if the layer runs nothing in this program, as an encoder's does in decode; else None.

        A policy may put each of its tensors anywhere. The runtime runs the layer in another step, so it stays whole.
        """
        around = [m for m in (module, *above(module)) if m.rpartition(".")[2].isdigit()]
        return next((m for m in reversed(around) if m not in self._busy), None)

    @cached_property
    def _busy(self) -> set[str]:
        """Modules that run something, and the modules around them."""
        own = {self.modules[code] for code in np.unique(self.graph.module.codes[self.seconds > 0])}
        return own.union(*map(above, own))

    def conflicts(
        self, names: Sequence[DeviceName], entry: Sequence[DeviceName | None]
    ) -> tuple[tuple[Conflict, ...], float]:
        """The modules with work on other devices than `entry` [modules], the most seconds first; and their share of all work."""
        found = []
        for i, module in enumerate(self.modules):
            device = entry[i]
            if device is not None:
                own = self.graph.module.codes == i
                away = own & np.asarray([name != device for name in names], np.bool_)[self.device]
                lost, all_ = float(self.seconds[away].sum()), float(self.seconds[own].sum())
                if lost > 0:
                    bytes_ = float(self.graph.persistent_bytes[away].sum())
                    found.append((lost, Conflict(module, device, lost / all_, bytes_)))
        found.sort(key=lambda x: -x[0])
        return tuple(c for _, c in found), sum(lost for lost, _ in found) / max(float(self.seconds.sum()), 1e-300)

    def moved(
        self, names: Sequence[DeviceName], entry: Sequence[DeviceName | None], runs: Sequence[DeviceName | None]
    ) -> Placement:
        """The placement with whole modules on `entry` [modules], and other forward operations on `runs` [n].

        Other backward operations follow their forward operation, other sources their first reader; the rest stays. Devices
        are elements of `names` [D]; if several devices share a name, it means the first of them.
        """
        graph, device = self.graph, self.device.copy()
        asked = [entry[c] if entry[c] is not None else runs[v] for v, c in enumerate(graph.module.codes.tolist())]
        for v, name in enumerate(asked):
            if name is not None and names[device[v]] != name:
                device[v] = names.index(name)
        free = np.asarray([name is None for name in asked], np.bool_)
        forward_of = graph.columns.get("forward_of")
        if isinstance(forward_of, np.ndarray):
            follows = np.flatnonzero(free & (forward_of >= 0))
            device[follows] = device[forward_of[follows]]
        first: dict[int, int] = {}
        for v in self.forward.tolist():
            for u in graph.tensor_producer[graph.inputs(v)].tolist():
                first.setdefault(u, v)
        for u in np.flatnonzero(free & ~graph.kernel).tolist():
            device[u] = device[first.get(u, u)]
        return nearest(self.problem, self.placement, device)


def is_loss(module: str) -> bool:
    return module == _LOSS or module.startswith(f"{_LOSS}.")


def above(module: str) -> Iterator[str]:
    """Paths of the modules that contain a module, without the root."""
    while module := module.rpartition(".")[0]:
        yield module
