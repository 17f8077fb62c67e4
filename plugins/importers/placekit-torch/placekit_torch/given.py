"""Policy `given`: a placement of the user's own, from a device map or a placement file. Imports no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from placekit_core import NotApplicable, Placement, PlacementError, Policy, Problem, Task, load_placement, unknown
from placekit_torch.forms import Name, nearest
from placekit_torch.given_options import GivenOptions
from placekit_torch.hooks import Located, covering, locate
from placekit_torch.modules import above
from placekit_torch.stages import device_names

MAX_BYTES = 2**26
"""Limit of a file with a device map; placement files have their own."""
_SHOWN = 3  # number of modules that a message names


@dataclass(frozen=True, eq=False)
class OwnMap:
    """A device map, checked.

    Attributes:
        devices: the devices of modules and tensors, as numbers of GPUs or `cpu`.
        located: where accelerate runs each operation.
        placement: the placement that it means; a module on `cpu` is computed there.
        notes: sentences about keys that mean nothing, and operations that may not run where the map has them.
    """

    devices: Mapping[str, Name]
    located: Located
    placement: Placement
    notes: tuple[str, ...]


class Given(Policy):
    """The placement that a file or a map says."""

    name = "given"
    options_class: ClassVar[type[GivenOptions]] = GivenOptions
    level = "operation"

    def place(self, task: Task, rng: Generator) -> Placement:
        """The placement.

        Raises NotApplicable without one, and PlacementError that names what the map lacks, or what does not exist.
        """
        o: GivenOptions = self.options
        if o.path is None and o.map is None:
            raise NotApplicable("policy given has no placement", "give it policy.path=FILE, or policy.map={...}")
        own = (
            from_map(task.problem, o.map or {}, "policy.map")
            if o.path is None
            else from_file(task.problem, Path(o.path))
        )
        for note in own.notes if isinstance(own, OwnMap) else ():
            task.evaluate.note(note)
        return own.placement if isinstance(own, OwnMap) else own


def from_file(problem: Problem, path: Path) -> OwnMap | Placement:
    """The placement in a file: a device map, or what a run writes as placement.json. Raises PlacementError."""
    try:
        with path.expanduser().open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if b'"placekit-placement"' in text[:4096]:
            return load_placement(path.expanduser(), problem)
        if len(text) > MAX_BYTES:
            raise PlacementError(f"{path} is too large for a device map: above {MAX_BYTES:,} bytes")
        data = json.loads(text, object_pairs_hook=_once)
    except OSError as e:
        raise PlacementError(f"cannot read {path}: {e.strerror or e}", _WHAT) from None
    except (ValueError, RecursionError) as e:
        raise PlacementError(f"{path} is not JSON: {e}", _WHAT) from None
    if not isinstance(data, dict):
        raise PlacementError(f"{path} holds a {type(data).__name__}, not a device map", _WHAT)
    return from_map(problem, data, str(path))


_WHAT = 'give a device map, {"model.layers.0": 0, ..., "lm_head": "cpu"}, or the placement.json of a run'


def from_map(problem: Problem, data: Mapping[str, Any], source: str) -> OwnMap:
    """A checked device map. Raises PlacementError for devices and modules that do not exist, and for tensors without device.

    Args:
        problem: what is placed.
        data: devices by module or tensor: the number of a GPU, its name in the cluster or as `cuda:0`, or `cpu`.
        source: where the map is from, for messages.
    """
    if not data:
        raise PlacementError(f"{source} is empty", _WHAT)
    names = device_names(problem)
    known = {str(k): v for k, v in zip(problem.cluster.device_names, names, strict=True)}
    known |= {f"cuda:{name}" if isinstance(name, int) else name: name for name in names}
    devices = {str(key): _device(key, value, known, names, source) for key, value in data.items()}
    notes = _check_keys(problem, devices, source)
    located = locate(problem.graph, devices)
    placement, moved = _placed(problem, located, names)
    if moved:
        notes.append(
            f"{len(moved)} operations may not run where {source} has them, such as {moved[0]!r}: they are elsewhere"
        )
    return OwnMap(devices, located, placement, tuple(notes))


def _device(key: str, value: Any, known: Mapping[str, Name], names: Sequence[Name], source: str) -> Name:
    if isinstance(value, int) and not isinstance(value, bool) and value in names:
        return value
    if isinstance(value, str) and value in known:
        return known[value]
    if isinstance(value, str) and value.isdecimal() and int(value) in names:
        return int(value)
    if value in ("disk", "meta"):
        instead = (
            "put the module on 'cpu', from where its weights are streamed, too"
            if "cpu" in names
            else "give a machine with a CPU (cluster=NAME), put the module on 'cpu', and its weights are streamed from there"
        )
        raise PlacementError(
            f"{source} puts {key!r} on {value!r}, and a machine of placekit has none",
            f"the bandwidth of a disk is not described; {instead}",
        )
    choices = [str(name) for name in dict.fromkeys([*names, *known])]
    error = unknown("device", str(value), choices, PlacementError)
    raise PlacementError(f"{source} puts {key!r} on {value!r}, which is no device of the machine", error.hint)


def _check_keys(problem: Problem, devices: Mapping[str, Name], source: str) -> list[str]:
    """Notes on keys that the graph does not know. Raises PlacementError, with close names, if they may be mistakes."""
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
        raise PlacementError(f"{source} names {_some(wrong)}, which {graph.name!r} does not have", hint)
    if lacks:
        raise PlacementError(
            f"{source} gives no device to {_some(lacks)} of {graph.name!r}",
            "add them to the map; the key '' stands for all that no other key covers",
        )
    if not strange:
        return []
    return [f"{source} names {_some(strange)}: no module of {graph.name!r} that holds or computes anything; ignored"]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def _placed(problem: Problem, located: Located, names: Sequence[Name]) -> tuple[Placement, list[str]]:
    """The placement that a map means, and the operations that may not run where it has them."""
    index = {name: names.index(name) for name in reversed(names)}
    device: NDArray[np.int16] = np.asarray(
        [index[located.main if name is None else name] for name in located.home], np.int16
    )
    first = problem.allowed.argmax(axis=1).astype(np.int16)
    placement = nearest(problem, problem.placement(first), device)
    forbidden = ~problem.op_allowed[np.arange(problem.graph.n), device]
    return placement, [problem.graph.op_name[v] for v in np.flatnonzero(forbidden).tolist()]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ValueError(f"the key {next(k for k in keys if keys.count(k) > 1)!r} occurs twice")
    return dict(pairs)
