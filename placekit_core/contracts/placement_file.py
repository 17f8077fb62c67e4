"""Placements in files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from placekit_core.contracts.cluster import MAX_DEVICES
from placekit_core.contracts.errors import PlacementError, unknown
from placekit_core.contracts.files import FileModel, read_json, write_atomically
from placekit_core.contracts.graph import Graph
from placekit_core.contracts.placement import Placement
from placekit_core.contracts.problem import Problem

PLACEMENT_FILE = "placement.json"
"""Name of the placement file of a run, in the folder of each program."""

MAX_BYTES = 2**30
"""The largest placement file that is read: a graph has up to 4 million operations, each with a device and a priority."""


def _unique(names: list[str]) -> list[str]:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"device {twice!r} occurs twice")
    return names


class PlacementFile(FileModel):
    """A placement file. Programs that measure the placement may add the last three fields."""

    format: Literal["placekit-placement"]
    version: Literal[1]
    graph: str = ""
    cluster: str = ""
    fingerprints: dict[str, str]
    devices: Annotated[list[str], Field(max_length=MAX_DEVICES), AfterValidator(_unique)] = Field(default=[])
    assignment: dict[str, str]
    priority: dict[str, float] | None = None
    objective: str | None = None
    simulated: bool | None = None
    value_s: float | None = None


@dataclass(frozen=True, eq=False)
class Assignment:
    """A placement of the n operations of a graph, without its machine.

    Attributes:
        device: [n] int16 index into `devices`.
        priority: [n] float32 or None; higher first.
        devices: names of all devices of the machine.
    """

    device: NDArray[np.int16]
    priority: NDArray[np.float32] | None
    devices: tuple[str, ...]


def save_placement(placement: Placement, problem: Problem, path: str | Path) -> Path:
    """Write `placement` as JSON: operation name to device name, priorities, fingerprints. Atomic."""
    device = problem.expand(placement.device)
    data: dict[str, Any] = {
        "format": "placekit-placement",
        "version": 1,
        "graph": problem.graph.name,
        "cluster": problem.cluster.name,
        "fingerprints": {"graph": placement.graph, "cluster": placement.cluster},
        "devices": list(problem.cluster.device_names),
        "assignment": {o: problem.cluster.device_names[d] for o, d in zip(problem.graph.op_name, device, strict=True)},
        "priority": None,
    }
    if placement.priority is not None:
        order = problem.expand(placement.priority)
        data["priority"] = {o: float(p) for o, p in zip(problem.graph.op_name, order, strict=True)}
    target = Path(path)
    write_atomically(target, (json.dumps(data, indent=1) + "\n").encode())
    return target


def load_placement(path: str | Path, problem: Problem) -> Placement:
    """Read a placement of `problem`. Raises PlacementError if it is for another graph or cluster, or not valid."""
    file = read_placement(path)
    _check_same(path, "graph", file.graph, file.fingerprints, problem.graph.fingerprint)
    _check_same(path, "cluster", file.cluster, file.fingerprints, problem.cluster.fingerprint)
    device, priority = _by_operation(path, file, problem.graph, problem.cluster.device_names)
    group = problem.grouping.group_of
    _, first = np.unique(group, return_index=True)
    torn = np.flatnonzero(device != device[first][group])
    if len(torn):
        names = (problem.graph.op_name[v] for v in (torn[0], first[group[torn[0]]]))
        raise PlacementError(
            f"{path} puts {' and '.join(map(repr, names))} on different devices",
            "they belong to one group here; use the grouping that it was made with",
        )
    return problem.placement(device[first], None if priority is None else priority[first])


def load_assignment(path: str | Path, graph: Graph) -> Assignment:
    """Read a placement of `graph`, on any machine. Raises PlacementError as `load_placement` does."""
    file = read_placement(path)
    _check_same(path, "graph", file.graph, file.fingerprints, graph.fingerprint)
    return Assignment(*_by_operation(path, file, graph, tuple(file.devices)), tuple(file.devices))


def read_placement(path: str | Path) -> PlacementFile:
    """The content of a placement file. Raises PlacementError if the file is not one."""
    hint = "a run that found a placement writes it as placement.json"
    return read_json(Path(path), PlacementFile, error=PlacementError, what="placement", hint=hint, limit=MAX_BYTES)


def _check_same(path: str | Path, what: str, name: str, fingerprints: Mapping[str, str], own: str) -> None:
    if fingerprints.get(what) != own:
        raise PlacementError(
            f"{path} was made for another {what} ({name!r}, fingerprint {fingerprints.get(what)})",
            f"this one has fingerprint {own}",
        )


def _by_operation(
    path: str | Path, file: PlacementFile, graph: Graph, devices: Sequence[str]
) -> tuple[NDArray[np.int16], NDArray[np.float32] | None]:
    """[n] devices and priorities of the operations."""
    operations = graph.op_name
    for values, does in ((file.assignment, "place"), (file.priority, "give the priority of")):
        missing = [] if values is None else [o for o in operations if o not in values]
        if missing:
            raise PlacementError(f"{path} does not {does} operation {missing[0]!r} (and {len(missing) - 1} more)")
    index = {name: i for i, name in enumerate(devices)}
    for name in file.assignment.values():
        if name not in index:
            raise unknown("device", name, index, PlacementError)
    device = np.asarray([index[file.assignment[o]] for o in operations], np.int16)
    if file.priority is None:
        return device, None
    with np.errstate(over="ignore"):  # too large for float32 becomes infinite, which a priority may be
        return device, np.asarray([file.priority[o] for o in operations]).astype(np.float32)
