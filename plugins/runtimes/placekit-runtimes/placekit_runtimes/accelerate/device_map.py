"""Device maps: a device for each module, as Hugging Face's transformers and accelerate take them (`device_map=`).

A device map is coarser than a placement: a module goes to the device with most of its work, in seconds of its operations where
they are placed. A `Conflict` names a module that the placement splits.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placekit_core import Placement, Problem
from placekit_runtimes.accelerate.hooks import CPU, Located, covering, locate
from placekit_runtimes.accelerate.joining import JoinedModules
from placekit_runtimes.interface import DeviceName, RuntimeMap, nearest
from placekit_runtimes.layers import device_numbers
from placekit_runtimes.modules import PlacedModules, above


@dataclass(frozen=True, eq=False, kw_only=True)
class DeviceMap(RuntimeMap):
    """Devices by the path of modules.

    Attributes:
        devices: the shortest prefixes below which everything is on one device; `""` is the whole network. Parameters and
            buffers of the root have entries of their own if the network is on several devices.
        located: where accelerate runs each operation.

    `placement` has all operations of a module on its device, a CPU included; but the operations of modules whose weights the
    original placement streams from a CPU are on the main device.
    """

    devices: Mapping[str, DeviceName]
    located: Located


def as_json(devices: Mapping[str, DeviceName]) -> str:
    """The text of a device map."""
    return json.dumps(devices, indent=1)


def device_map(problem: Problem, placement: Placement, whole: Collection[str] = ()) -> DeviceMap:
    """The device map of a placement: each module without submodules is on the device with most of its seconds.

    In a tie, it is on the device of its parameters. A module whose weights are all on a CPU, but which another device computes,
    is on `cpu`: accelerate streams the weights.

    accelerate moves the inputs of modules in the map, and nothing else. So a whole module is on one device if its own
    operations would otherwise read from several devices. For operations of the root, or of a module with most of the work,
    the modules that they read from share a device instead. Modules that share a parameter are together (`JoinedModules`).

    Args:
        problem, placement: the placement and its problem.
        whole: paths of modules that must not be split, besides those in a transformers model's `_no_split_modules`.

    The map covers all parameters and buffers of the graph, and the leaves that compute something without any. If a tensor
    has several names, the graph knows only the first, and the modules that read the tensor.

    Raises PlacementError if the graph has no modules, or the placement is for another graph.
    """
    names = device_numbers(problem)
    placed = PlacedModules(problem, placement, "a device_map places modules")
    streamed = _put_offloaded_on_cpu(placed)
    joined = JoinedModules(placed, names, {*whole, *problem.graph.attributes.get("unsplit", ())})
    found = locate(problem.graph, joined.devices)
    entry = [joined.devices[key] if (key := covering(m, joined.devices)) is not None else None for m in placed.modules]
    conflicts, elsewhere = placed.conflicts(names, entry)
    meant = placed.moved(names, entry, found.home)
    if streamed.any() and found.main != CPU:
        device = problem.expand(meant.device)
        device[streamed & (device == placed.device)] = names.index(found.main)
        meant = nearest(problem, meant, device)
    notes = tuple(_notes(problem, joined.loose))
    text = as_json(joined.devices)
    return DeviceMap(text, meant, conflicts, elsewhere, notes, devices=joined.devices, located=found)


def _notes(problem: Problem, loose: Sequence[str]) -> list[str]:
    """Notes for the user about a map; `loose` are tensors beside split modules."""
    notes = []
    cpus = [n for n, d in zip(problem.cluster.device_names, device_numbers(problem), strict=True) if d == CPU]
    if len(cpus) > 1:
        notes.append(f"a device_map has only one 'cpu', which stands for {', '.join(cpus)}")
    if loose:
        notes.append(
            f"accelerate.dispatch_model does not move {loose[0]!r}, which belongs to a split module; use from_pretrained"
        )
    return notes


def _put_offloaded_on_cpu(placed: PlacedModules) -> NDArray[np.bool_]:
    """Put all operations of offloaded modules where their weights are; [n] whether an operation was moved.

    accelerate keeps the weights of a module on `cpu` in the host's memory, copies them to the main device when the module
    runs, and drops them after. So `cpu` is the entry for modules which a placement streams (`backend.prefetch`), not the
    device that computes. A module is offloaded if all parameters and buffers of it and of all modules in it are on CPUs.
    Then accelerate computes what is in it on the main device, modules without weights included.
    """
    problem, graph = placed.problem, placed.graph
    on_cpu = np.asarray([problem.device_type(d) == "cpu" for d in range(problem.cluster.size)], np.bool_)
    home: dict[str, int] = {}  # modules with weights -> the device of the first, -1 if some are on no CPU
    for module, tensors in placed.own_tensors.items():
        devices = [int(placed.device[v]) for v in tensors]
        own = devices[0] if on_cpu[devices].all() else -1
        for path in (module, *above(module)):
            home[path] = -1 if home.get(path, own) < 0 else home.get(path, own) if own >= 0 else -1
    target = [
        next((home[p] for p in (module, *above(module)) if home.get(p, -1) >= 0), -1) if module else -1
        for module in placed.modules
    ]
    to = np.asarray(target, np.int16)[graph.module.codes]
    moved = graph.kernel & (to >= 0) & ~on_cpu[placed.device]
    placed.device[moved] = to[moved]
    placed.seconds = problem.op_s[np.arange(graph.n), placed.device] * graph.kernel
    return moved
