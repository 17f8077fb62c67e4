"""A placement in the forms that other code needs: a map from modules to devices, or the stages of a pipeline.

Both are coarser than a placement: a module goes to the device with most of its work, in seconds of its operations where they
are placed. `Conflict` reports what a form cannot hold; PlacementError is raised if no sensible form
exists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placekit_core import Placement, PlacementError, Problem
from placekit_torch.forms import Conflict as Conflict, Name as Name, nearest
from placekit_torch.hooks import CPU, Located, covering, locate
from placekit_torch.joined import Joined
from placekit_torch.modules import Placed, above
from placekit_torch.offloaded import as_if_on_cpu
from placekit_torch.stages import device_names as device_names


@dataclass(frozen=True)
class DeviceMap:
    """Devices by the path of modules, as Hugging Face's transformers and accelerate take them (`device_map=`).

    Attributes:
        devices: the shortest prefixes below which everything is on one device; `""` is the whole network. Parameters and
            buffers of the root have entries of their own if the network is on several devices.
        conflicts: modules with operations that the map puts elsewhere than the placement, the most seconds first.
        elsewhere: share of the seconds of all operations that the map puts elsewhere.
        loose: parameters and buffers of split modules that are too large to be on one device; `accelerate.dispatch_model` does
            not move these, `from_pretrained` does.
        located: where accelerate runs each operation.
        placement: the placement that the map means: all of a module's operations on its device, also on a CPU; those of a
            module that the original streams from there on the main device.
    """

    devices: dict[str, Name]
    conflicts: tuple[Conflict, ...]
    elsewhere: float
    loose: tuple[str, ...]
    located: Located
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


def device_map(problem: Problem, placement: Placement, whole: Collection[str] = ()) -> DeviceMap:
    """Each leaf of the tree of modules on the device with most of its seconds; ties go to the device of its parameters.

    Where all weights are on a CPU, and another device computes, that is `cpu`: accelerate streams them.

    accelerate moves the inputs of modules in the map, and nothing else. So a module is on one device as a whole if its own
    operations would otherwise read from several; operations of the root, or of a module with most of the work, have all
    modules that they read from on one device. Modules that share a parameter are together (`Joined`).

    Args:
        problem, placement: what is placed, and how.
        whole: paths of modules that are not split, such as those of the classes in a transformers model's
            `_no_split_modules`.

    The map covers all parameters and buffers of the graph, and the leaves that compute something without any. If a tensor
    has several names, the graph knows only the first, and the modules that read the tensor.

    Raises PlacementError if the graph has no modules, or the placement is for another graph.
    """
    names = device_names(problem)
    placed = Placed(problem, placement, "a device_map places modules")
    streamed = as_if_on_cpu(placed)
    joined = Joined(placed, names, whole)
    found = locate(problem.graph, joined.devices)
    entry = [joined.devices[key] if (key := covering(m, joined.devices)) is not None else None for m in placed.modules]
    conflicts, elsewhere = placed.conflicts(names, entry)
    meant = placed.moved(names, entry, found.home)
    if streamed.any() and found.main != CPU:
        device = problem.expand(meant.device)
        device[streamed & (device == placed.device)] = names.index(found.main)
        meant = nearest(problem, meant, device)
    return DeviceMap(joined.devices, conflicts, elsewhere, joined.loose, found, meant)


def pipeline(problem: Problem, placement: Placement) -> Pipeline:
    """The stages of a placement that is a chain: each device runs one part of the forward pass, and sends to the next only.

    A module is on the device with most of its seconds, as in `device_map`. Other operations of the forward pass, and the
    loss, belong to the stage in which they come.

    Raises PlacementError that names the module that breaks the chain.
    """
    placed = Placed(problem, placement, "a pipeline is a chain of modules")
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


def _runs(placed: Placed) -> Iterator[tuple[int, int]]:
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


def _beginning(placed: Placed, op: int, device: int) -> str:
    """The module with the call that begins a stage; `op` is the first operation of a leaf in the stage.

    It is the outermost module that begins there and that the forward pass calls exactly once. A module that only holds
    others, like a ModuleList, may never be called; torch.distributed.pipelining would split nothing there.
    """
    leaf, graph = placed.module_of(op), placed.graph
    before = placed.forward[: int(np.flatnonzero(placed.forward == op)[0])]
    mine = np.asarray([m in placed.leaves for m in placed.modules], np.bool_)[graph.module.codes]
    calls = 0
    for module in [*reversed(list(above(leaf))), leaf]:
        own = placed.forward[graph.module.is_value(module)[placed.forward]]
        calls = len(np.unique(graph.call[own]))
        if calls == 1 and not (placed.below(module) & mine)[before].any():
            return module
    name = placed.problem.cluster.device_names[device]
    raise _no_chain(f"the stage on {name} begins with module {leaf!r}, which is called {max(calls, 2)} times")


def _check_chain(placed: Placed, stage: NDArray[np.int_]) -> None:
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
