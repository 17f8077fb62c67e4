"""A placement in the forms that other code needs: a map from modules to devices, or the stages of a pipeline.

Both are coarser than a placement: a module goes to the device with most of its work, in seconds of its operations where they
are placed. `Conflict` and `DeviceMap.mixed` report what a form cannot hold; PlacementError is raised if no sensible form
exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placekit_core import PHASES, Placement, PlacementError, Problem
from placekit_torch.forms import Conflict as Conflict, Name as Name, devices_of, nearest
from placekit_torch.stages import device_names as device_names

_LOSS = "loss"  # where the importer of torch modules puts operations outside of the module


@dataclass(frozen=True)
class DeviceMap:
    """Devices by the path of modules, as Hugging Face's transformers and accelerate take them (`device_map=`).

    Attributes:
        devices: the shortest prefixes below which everything is on one device; `""` is the whole network. If a module has
            parameters or buffers besides other modules, they have entries of their own, unless the whole module is on one
            device.
        conflicts: modules with operations that the map puts elsewhere than the placement, the most seconds first.
        elsewhere: share of the seconds of all operations that the map puts elsewhere.
        mixed: split modules with operations of their own that read from several devices. accelerate moves only the inputs of
            modules in the map, so such a module fails there unless it is placed as a whole.
        placement: the placement that the map means: all of a module's operations on its device.
    """

    devices: dict[str, Name]
    conflicts: tuple[Conflict, ...]
    elsewhere: float
    mixed: tuple[str, ...]
    placement: Placement


@dataclass(frozen=True)
class Stage:
    """One stage of a pipeline: its device, and the module whose first call begins it."""

    device: str
    begins: str


@dataclass(frozen=True)
class Pipeline:
    """The stages of a chain of modules, in the order of the forward pass; for the other attributes see `DeviceMap`."""

    stages: tuple[Stage, ...]
    conflicts: tuple[Conflict, ...]
    elsewhere: float
    placement: Placement

    @property
    def split_spec(self) -> dict[str, str]:
        """The `split_spec` of `torch.distributed.pipelining.pipeline`, with the names of `SplitPoint` as text."""
        return {stage.begins: "SplitPoint.BEGINNING" for stage in self.stages[1:]}


def device_map(problem: Problem, placement: Placement) -> DeviceMap:
    """Each leaf of the tree of modules on the device with most of its seconds; ties go to the device of its parameters.

    The map covers all parameters and buffers of the graph, and the leaves that compute something without any. If a tensor
    has several names, the graph knows only the first, and the modules that read the tensor.

    Raises PlacementError if the graph has no modules, or the placement is for another graph.
    """
    names = device_names(problem)
    placed = _Placed(problem, placement, "a device_map places modules")
    own = {key: names[d] for key, d in (placed.leaves | placed.tensors).items()}
    whole = dict(_collapsed("", [(key.split("."), name) for key, name in own.items()]))
    entry = [_covering(module, whole) for module in placed.modules]
    conflicts, elsewhere = placed.conflicts(names, entry)
    runs, mixed = _where_run(placed, whole, entry)
    meant = placed.moved(names, entry, [runs.get(v) for v in range(placed.graph.n)])
    return DeviceMap(whole, conflicts, elsewhere, tuple(mixed), meant)


def pipeline(problem: Problem, placement: Placement) -> Pipeline:
    """The stages of a placement that is a chain: each device runs one part of the forward pass, and sends to the next only.

    A module is on the device with most of its seconds, as in `device_map`. Other operations of the forward pass, and the
    loss, belong to the stage in which they come.

    Raises PlacementError that names the module that breaks the chain.
    """
    placed = _Placed(problem, placement, "a pipeline is a chain of modules")
    runs = list(_runs(placed))
    begins = [placed.module_of(runs[0][1]), *(_beginning(placed, op, d) for d, op in runs[1:])]
    first = [0, *(int(np.flatnonzero(placed.below(m)[placed.forward])[0]) for m in begins[1:])]
    stage = np.full(placed.graph.n, -1)
    stage[placed.forward] = np.searchsorted(first, np.arange(len(placed.forward)), side="right") - 1
    _check_chain(placed, stage)
    names = problem.cluster.device_names
    entry = [names[placed.leaves[m]] if m in placed.leaves else None for m in placed.modules]
    conflicts, elsewhere = placed.conflicts(names, entry)
    stages = tuple(Stage(names[d], module) for (d, _), module in zip(runs, begins, strict=True))
    meant = placed.moved(names, entry, [names[runs[s][0]] if s >= 0 else None for s in stage.tolist()])
    return Pipeline(stages, conflicts, elsewhere, meant)


class _Placed:
    """A placement by modules.

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
        loss = np.asarray([_is_loss(m) for m in self.modules], np.bool_)[graph.module.codes]
        order = graph.topological_order
        self.forward = order[(graph.kernel & (graph.phase == PHASES.index("forward")) & ~loss)[order]]
        if all(not m or _is_loss(m) for m in self.modules):
            raise PlacementError(
                f"{form}, and the operations of {graph.name!r} belong to none",
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
        """Sources that are parameters and buffers, by the module that they belong to."""
        found: dict[str, list[int]] = {}
        for v in np.flatnonzero(~self.graph.kernel).tolist():
            module = self.module_of(v)
            # a constant in a module's code has no name in the module
            if self.kinds[v] in ("parameter", "buffer") and self.graph.op_name[v].rpartition(".")[0] == module:
                found.setdefault(module, []).append(v)
        return found

    @cached_property
    def leaves(self) -> dict[str, int]:
        """Device of each module without submodules, in the order of the forward pass; the loss only if it has tensors."""
        inner = {part for m in self.modules for part in _above(m)}
        called = [self.module_of(v) for v in self.forward.tolist()]
        return {
            m: self._majority(self.modules.index(m), m)
            for m in dict.fromkeys([*called, *self.modules])
            if m and m not in inner and (m in self.own_tensors or not _is_loss(m))
        }

    @cached_property
    def tensors(self) -> dict[str, int]:
        """Device of each parameter and buffer of a module that is no leaf."""
        inner = [ops for m, ops in self.own_tensors.items() if m not in self.leaves]
        return {self.graph.op_name[v]: int(self.device[v]) for ops in inner for v in ops}

    def _majority(self, code: int, module: str) -> int:
        own = self.graph.module.codes == code
        total = np.bincount(self.device[own], self.seconds[own], minlength=self.problem.cluster.size)
        most = np.flatnonzero(total >= total.max() * (1 - 1e-9))  # sums in different orders differ in the last bits
        homes = [int(self.device[v]) for v in self.own_tensors.get(module, ())]
        return next((d for d in homes if d in most), int(most[0]))

    def conflicts(self, names: Sequence[Name], entry: Sequence[Name | None]) -> tuple[tuple[Conflict, ...], float]:
        """The modules with work elsewhere than on `entry` [modules], the most seconds first; and that work's share of all."""
        found = []
        for i, module in enumerate(self.modules):
            device = entry[i]
            if device is not None:
                own = self.graph.module.codes == i
                away = own & np.asarray([name != device for name in names], np.bool_)[self.device]
                lost, all_ = float(self.seconds[away].sum()), float(self.seconds[own].sum())
                if lost > 0:
                    found.append((lost, Conflict(module, device, lost / all_)))
        found.sort(key=lambda x: -x[0])
        return tuple(c for _, c in found), sum(lost for lost, _ in found) / max(float(self.seconds.sum()), 1e-300)

    def moved(self, names: Sequence[Name], entry: Sequence[Name | None], runs: Sequence[Name | None]) -> Placement:
        """The placement with whole modules on `entry` [modules], and other forward operations where `runs` [n] says.

        Of what is left, a backward operation goes with its forward operation, a source with the first that reads it, and
        anything else stays. A device is an element of `names` [D]; one that several devices share is the first of them.
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


def _is_loss(module: str) -> bool:
    return module == _LOSS or module.startswith(f"{_LOSS}.")


def _above(module: str) -> Iterator[str]:
    """Paths of the modules that contain a module, without the root."""
    while module := module.rpartition(".")[0]:
        yield module


def _collapsed(prefix: str, own: Sequence[tuple[list[str], Name]]) -> Iterator[tuple[str, Name]]:
    """The shortest prefixes below which all devices are equal; `own` has the rest of each path after `prefix`."""
    if len({name for _, name in own}) == 1:
        yield prefix, own[0][1]
        return
    parts: dict[str, list[tuple[list[str], Name]]] = {}
    for path, name in own:
        parts.setdefault(path[0], []).append((path[1:], name))
    for part, below in parts.items():
        yield from _collapsed(f"{prefix}.{part}" if prefix else part, below)


def _covering(module: str, devices: Mapping[str, Name]) -> Name | None:
    """The device of a module in the map; None if the module is split."""
    return next((devices[m] for m in (module, *_above(module), "") if m in devices), None)


def _where_run(
    placed: _Placed, devices: Mapping[str, Name], entry: Sequence[Name | None]
) -> tuple[dict[int, Name | None], list[str]]:
    """Device of each forward operation and source when modules run, and get their inputs, as mapped.

    Also returns the split modules with operations of their own that read from several devices.
    """
    graph, mixed = placed.graph, dict[str, None]()
    runs: dict[int, Name | None] = {}
    for v in np.flatnonzero(~graph.kernel).tolist():
        code = int(graph.module.codes[v])
        runs[v] = None if placed.kinds[v] == "input" else devices.get(graph.op_name[v], entry[code])
    for v in placed.forward.tolist():
        runs[v] = entry[int(graph.module.codes[v])]
        if runs[v] is None:
            read = [runs.get(int(u)) for u in graph.tensor_producer[graph.inputs(v)]]
            there = list(dict.fromkeys(d for d in read if d is not None))
            runs[v] = there[0] if there else None
            if len(there) > 1:
                mixed[placed.module_of(v)] = None
    return runs, list(mixed)


def _runs(placed: _Placed) -> Iterator[tuple[int, int]]:
    """(device, first operation) of each part of the forward pass. Raises PlacementError if a device has several."""
    last: dict[int, str] = {}  # the last module on each device so far; the current device comes last
    for op in placed.forward.tolist():
        module = placed.module_of(op)
        if module not in placed.leaves:
            continue
        device = placed.leaves[module]
        if device in last and next(reversed(last)) != device:
            names, other = placed.problem.cluster.device_names, next(reversed(last))
            raise _no_chain(
                f"module {module!r} goes back to {names[device]}, where {last[device]!r} is, after {last[other]!r} on"
                f" {names[other]}"
            )
        if device not in last:
            yield device, op
        last[device] = module


def _beginning(placed: _Placed, op: int, device: int) -> str:
    """The module with the call that begins a stage; `op` is the first operation of a leaf in the stage.

    It is the outermost module that begins there and that the forward pass calls exactly once. A module that only holds
    others, like a ModuleList, may never be called; torch.distributed.pipelining would split nothing there.
    """
    leaf, graph = placed.module_of(op), placed.graph
    before = placed.forward[: int(np.flatnonzero(placed.forward == op)[0])]
    mine = np.asarray([m in placed.leaves for m in placed.modules], np.bool_)[graph.module.codes]
    calls = 0
    for module in [*reversed(list(_above(leaf))), leaf]:
        own = placed.forward[graph.module.is_value(module)[placed.forward]]
        calls = len(np.unique(graph.call[own]))
        if calls == 1 and not (placed.below(module) & mine)[before].any():
            return module
    name = placed.problem.cluster.device_names[device]
    raise _no_chain(f"the stage on {name} begins with module {leaf!r}, which is called {max(calls, 2)} times")


def _check_chain(placed: _Placed, stage: NDArray[np.int_]) -> None:
    """Raise PlacementError unless operations read only from their own stage and the one before, and inputs in the first."""
    graph, reader = placed.graph, dict[int, int]()
    for v in placed.forward.tolist():
        here = int(stage[v])
        what = f"module {placed.module_of(v)!r} in stage {here}" if placed.module_of(v) else f"stage {here}"
        for t in graph.inputs(v).tolist():
            u = int(graph.tensor_producer[t])
            if graph.kernel[u]:
                if stage[u] not in (here, here - 1):
                    raise _no_chain(
                        f"{what} reads {graph.op_name[u]!r} of stage {stage[u]}, which is not the one before"
                    )
            elif placed.kinds[u] == "input" and here > 0:
                raise _no_chain(f"{what} reads {graph.op_name[u]!r}, which enters in stage 0")
            elif placed.kinds[u] == "parameter" and reader.setdefault(u, here) != here:
                raise _no_chain(f"{what} reads parameter {graph.op_name[u]!r}, which stage {reader[u]} reads, too")


def _no_chain(why: str) -> PlacementError:
    return PlacementError(
        f"the placement is no chain of modules: {why}",
        "`--format device_map` holds any placement; grouper=module places modules as a whole, which gives chains more often",
    )
