"""Finds a device for every module so that accelerate can run the network: modules that belong together share a device.

A placement may put the parts of a module on devices between which no hook moves tensors (see `hooks`). Then either the whole
module goes to one device, or the modules whose outputs it combines do.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from placekit_core import PHASES
from placekit_runtimes.accelerate.hooks import CPU, covering, locate
from placekit_runtimes.interface import DeviceName
from placekit_runtimes.modules import PlacedModules, above

_MAIN = "\0main"  # stands for the main device where a module's path is expected
_LARGE = 0.75  # a module with a larger share of all seconds is never put on one device as a whole


class JoinedModules:
    """Modules and tensors with their devices, made coarser until accelerate can run them.

    Attributes:
        devices: the device map; its keys are the shortest prefixes below which everything is on one device.
        loose: tensors of modules that are split over devices; `dispatch_model` does not move these tensors.
        whole: modules that stay on one device.
        pairs: modules that must share a device.
    """

    def __init__(self, placed: PlacedModules, names: Sequence[DeviceName], whole: Collection[str]) -> None:
        self.placed, self.names = placed, names
        self.whole = {m for m in whole if m}
        self.pairs = set(self._shared())
        graph = placed.graph
        self.seconds = np.zeros((len(placed.modules), len(names)))  # [modules, D]
        np.add.at(self.seconds, (graph.module.codes, placed.device), placed.seconds)
        while True:
            self.devices = self._map()
            before = len(self.whole), len(self.pairs)
            self._join_more()
            if before == (len(self.whole), len(self.pairs)):
                break
        self.loose = tuple(name for name in self.devices if name in placed.tensors and "." in name)

    def _shared(self) -> Iterator[tuple[str, str]]:
        """Pairs of modules that share weights, such as a tied head; and pairs of the root's tensors and the main device."""
        placed, graph = self.placed, self.placed.graph
        for v in placed.own_tensors.get("", ()):
            yield graph.op_name[v], _MAIN
        reads = graph.kernel[graph.edge_op] & (graph.phase[graph.edge_op] == PHASES.index("forward"))
        producer = graph.tensor_producer[graph.input_tensor]
        reads &= np.isin(placed.kinds, ("parameter", "buffer"))[producer]
        for u, v in {*zip(producer[reads].tolist(), graph.edge_op[reads].tolist(), strict=True)}:
            owner, reader = placed.module_of(u), placed.module_of(v)
            if owner != reader and owner in placed.leaves and reader in placed.leaves:
                yield owner, reader

    def _map(self) -> dict[str, DeviceName]:
        """The map in which connected `pairs`, and the modules in `whole`, are on the device with most of their seconds."""
        placed = self.placed
        own = placed.leaves | placed.tensors
        root: dict[str, str] = {}

        def find(path: str) -> str:
            path = self._node(path)
            while root.setdefault(path, path) != path:
                path = root[path]
            return path

        for a, b in sorted(self.pairs):
            root[find(a)] = find(b)
        total: dict[str, np.ndarray] = {}
        for i, module in enumerate(placed.modules):
            if module in placed.leaves or self._node(module) in self.whole:
                total[find(module)] = total.get(find(module), 0.0) + self.seconds[i]
        sizes: dict[str, set[str]] = {}
        for key in own:
            sizes.setdefault(find(key), set()).add(self._node(key))
        device, first = {}, dict[str, int]()
        for key, d in own.items():
            c = find(key)
            together = len(sizes[c]) > 1 or sizes[c] & self.whole
            none = first.setdefault(c, d)
            device[key] = (int(np.argmax(total[c])) if c in total and total[c].any() else none) if together else d
        gpus = [name for d in device.values() if isinstance(name := self.names[d], int)]
        for key, d in device.items():
            if gpus and find(key) == find(_MAIN) and self.names[d] != CPU:
                device[key] = self.names.index(min(gpus))
        return dict(_collapsed("", [(key.split("."), self.names[d]) for key, d in device.items()]))

    def _node(self, path: str) -> str:
        """The outermost module around `path` that stays whole, or `path`."""
        return next((m for m in reversed([path, *above(path)]) if m in self.whole), path)

    def _join_more(self) -> None:
        """Add to `whole` or `pairs` for each operation that accelerate cannot run with the current map."""
        placed, before = self.placed, len(self.whole)
        for module in placed.own_tensors:
            if (
                module
                and module not in placed.leaves
                and covering(module, self.devices) is None
                and not self._large(module)
            ):
                self.whole.add(module)
        found, pairs = locate(placed.graph, self.devices), set[tuple[str, str]]()
        for broken in found.breaks:
            v, module = broken.op, placed.module_of(broken.op)
            if placed.graph.phase[v] != PHASES.index("forward"):
                continue  # a training step with modules on the CPU: no map can be run
            read = placed.graph.tensor_producer[placed.graph.inputs(v)].tolist()
            if found.key[v] is not None:  # it reads a tensor of another module
                read = [v, *(u for u in read if placed.kinds[u] in ("parameter", "buffer"))]
            elif module and not self._large(module) and any(not _inside(placed.module_of(u), module) for u in read):
                self.whole.add(module)
                continue
            nodes = sorted({n for u in read for n in self._nodes(u, found.key)})
            pairs |= set(itertools.pairwise(nodes))
        if len(self.whole) == before:  # the new whole modules may settle these pairs
            self.pairs |= pairs

    def _nodes(self, op: int, key: Sequence[str | None]) -> set[str]:
        """The modules, tensors or main device whose place decides where the value of an operation is."""
        placed, found, todo, seen = self.placed, set[str](), [op], set[int]()
        while todo:
            v = todo.pop()
            module = placed.module_of(v)
            if v in seen:
                continue
            seen.add(v)
            if placed.kinds[v] == "input" or (not module and placed.kinds[v] in ("parameter", "buffer")):
                found.add(_MAIN)
            elif module in placed.leaves:
                found.add(module)
            elif not placed.graph.kernel[v] and placed.graph.op_name[v] in placed.tensors:
                found.add(placed.graph.op_name[v])
            elif module and key[v] is not None and not self._large(module):
                self.whole.add(module)
                found.add(module)
            else:
                todo += placed.graph.tensor_producer[placed.graph.inputs(v)].tolist()
        return found

    def _large(self, module: str) -> bool:
        inside = [_inside(m, module) for m in self.placed.modules]
        return float(self.seconds[inside].sum()) > _LARGE * float(self.seconds.sum())


def _inside(path: str, module: str) -> bool:
    return path == module or path.startswith(f"{module}.")


def _collapsed(prefix: str, own: Sequence[tuple[list[str], DeviceName]]) -> Iterator[tuple[str, DeviceName]]:
    """The shortest prefixes below which all devices are equal; `own` has the rest of each path after `prefix`."""
    if len({name for _, name in own}) == 1:
        yield prefix, own[0][1]
        return
    parts: dict[str, list[tuple[list[str], DeviceName]]] = {}
    for path, name in own:
        parts.setdefault(path[0], []).append((path[1:], name))
    for part, below in parts.items():
        yield from _collapsed(f"{prefix}.{part}" if prefix else part, below)
