"""Reads users' device maps: checks their keys and devices, and finds the placement that they describe."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placekit_core import Placement, PlacementError, Problem, unknown
from placekit_runtimes.accelerate.device_map import DeviceMap, as_json
from placekit_runtimes.accelerate.hooks import Located, covering, locate
from placekit_runtimes.interface import DeviceName, listed, nearest
from placekit_runtimes.layers import device_numbers
from placekit_runtimes.modules import above

HINT = 'give a device map, {"model.layers.0": 0, ..., "lm_head": "cpu"}, or the placement.json of a run'


def parse_map(problem: Problem, text: str, source: str) -> DeviceMap:
    """Read a map from JSON, as `check_map` does."""
    try:
        data = json.loads(text, object_pairs_hook=_without_repeated_keys)
    except (ValueError, RecursionError) as e:
        raise PlacementError(f"{source} is not JSON: {e}", HINT) from None
    if not isinstance(data, dict):
        raise PlacementError(f"{source} holds a {type(data).__name__}, not a device map", HINT)
    return check_map(problem, data, source)


def check_map(problem: Problem, data: Mapping[str, Any], source: str) -> DeviceMap:
    """Check a device map. Raises PlacementError for unknown devices and modules, and for tensors that no key covers.

    Args:
        problem: the graph and the machine.
        data: devices by module or tensor. A device is the number of a GPU, its name in the cluster, `cuda:N`, or `cpu`.
        source: name of the map's origin, for messages.
    """
    if not data:
        raise PlacementError(f"{source} is empty", HINT)
    names = device_numbers(problem)
    known = {str(k): v for k, v in zip(problem.cluster.device_names, names, strict=True)}
    known |= {f"cuda:{name}" if isinstance(name, int) else name: name for name in names}
    devices = {str(key): _device(key, value, known, names, source) for key, value in data.items()}
    notes = _check_keys(problem, devices, source)
    located = locate(problem.graph, devices)
    placement, moved = _placed(problem, located, names)
    if moved:
        notes.append(
            f"{len(moved)} operations may not run where {source} puts them, such as {moved[0]!r}; they are on other devices"
        )
    return DeviceMap(as_json(devices), placement, notes=tuple(notes), devices=devices, located=located)


def _device(
    key: str, value: Any, known: Mapping[str, DeviceName], names: Sequence[DeviceName], source: str
) -> DeviceName:
    if isinstance(value, int) and not isinstance(value, bool) and value in names:
        return value
    if isinstance(value, str) and value in known:
        return known[value]
    if isinstance(value, str) and value.isdecimal() and int(value) in names:
        return int(value)
    if value in ("disk", "meta"):
        instead = (
            "put the module on 'cpu': its weights are then streamed from host memory"
            if "cpu" in names
            else "give a machine with a CPU (cluster=NAME) and put the module on 'cpu': its weights are then streamed"
        )
        raise PlacementError(
            f"{source} puts {key!r} on {value!r}, but placekit's machines have no disk",
            instead,
        )
    choices = [str(name) for name in dict.fromkeys([*names, *known])]
    error = unknown("device", str(value), choices, PlacementError)
    raise PlacementError(f"{source} puts {key!r} on {value!r}, which is not a device of the machine", error.hint)


def _check_keys(problem: Problem, devices: Mapping[str, DeviceName], source: str) -> list[str]:
    """Return notes on keys that the graph lacks. Raises PlacementError, with close names, if such a key may be a mistake."""
    graph = problem.graph
    weights = np.flatnonzero(~graph.kernel & np.isin(graph.op_type.tolist(), ("parameter", "buffer"))).tolist()
    modules = dict.fromkeys(m for path in graph.module.vocabulary for m in (path, *above(path)))
    exist = {"": None, **modules, **dict.fromkeys(graph.op_name[v] for v in weights)}
    strange = [key for key in devices if key not in exist]
    named = [v for v in weights if graph.module[v] or "" in devices or not modules]  # constants in code have no module
    lacks = list(dict.fromkeys(
        graph.module[v] or graph.op_name[v] for v in named
        if covering(graph.op_name[v], devices) is None and covering(graph.module[v], devices) is None
    ))  # fmt: skip
    wrong = [key for key in strange if lacks or key.rpartition(".")[0] not in exist or re.search(r"(^|\.)\d+$", key)]
    if wrong:
        hint = unknown("module", wrong[0], [key for key in exist if key], PlacementError).hint
        if len(strange) == len(devices):  # the map is of another model
            hint = f"name the model of the map, e.g. model=hf:NAME or model=FILE.py:FACTORY; {hint}"
        raise PlacementError(f"{source} names {listed(wrong)}, which {graph.name!r} does not have", hint)
    if lacks:
        raise PlacementError(
            f"{source} gives no device to {listed(lacks)} of {graph.name!r}",
            "add them to the map; the key '' stands for everything that no other key covers",
        )
    if not strange:
        return []
    return [
        f"{source} names {listed(strange)}: ignored, because no module of {graph.name!r} there holds or computes anything"
    ]


def _placed(problem: Problem, located: Located, names: Sequence[DeviceName]) -> tuple[Placement, list[str]]:
    """The placement that a map describes, and the operations that are not allowed on the device that it gives them."""
    index = {name: names.index(name) for name in reversed(names)}
    device: NDArray[np.int16] = np.asarray(
        [index[located.main if name is None else name] for name in located.home], np.int16
    )
    first = problem.allowed.argmax(axis=1).astype(np.int16)
    placement = nearest(problem, problem.placement(first), device)
    forbidden = ~problem.op_allowed[np.arange(problem.graph.n), device]
    return placement, [problem.graph.op_name[v] for v in np.flatnonzero(forbidden).tolist()]


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ValueError(f"the key {next(k for k in keys if keys.count(k) > 1)!r} occurs twice")
    return dict(pairs)
