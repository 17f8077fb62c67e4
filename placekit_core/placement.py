"""Placements: which device runs which group, and in which order of preference."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from placekit_core.errors import PlacementError, unknown
from placekit_core.graph_file import write_atomically

if TYPE_CHECKING:
    from placekit_core.graph import Graph
    from placekit_core.problem import Problem

FORMAT, VERSION = "placekit-placement", 1


@dataclass(frozen=True, eq=False)
class Placements:
    """A batch of b placements of g groups.

    Attributes:
        device: [b, g] int16 device of each group.
        priority: [b, g] float32 or None. Among ready tasks the higher priority runs first, under backends whose ready
            order is `priority`; None means that the placement has no opinion.
    """

    device: NDArray[np.int16]
    priority: NDArray[np.float32] | None = None

    @classmethod
    def of(cls, device: ArrayLike, priority: ArrayLike | None = None) -> Placements:
        """A batch from anything array-like; one row becomes a batch of one."""
        rows = np.atleast_2d(np.asarray(device))
        if rows.dtype.kind not in "iu":
            raise PlacementError(f"devices are integers, not {rows.dtype}")
        int16 = np.iinfo(np.int16)
        wide = rows[(rows < int16.min) | (rows > int16.max)]
        if len(wide):  # would wrap to another device
            raise PlacementError(f"there is no device {wide[0]}", f"devices are 0..{int16.max}")
        if rows.ndim != 2:
            raise PlacementError(f"a batch of placements has 2 dimensions, not {rows.ndim}")
        weights = None if priority is None else np.ascontiguousarray(np.atleast_2d(np.asarray(priority, np.float32)))
        if weights is not None and weights.shape != rows.shape:
            raise PlacementError(f"priorities have shape {weights.shape}, devices {rows.shape}")
        return cls(np.ascontiguousarray(rows, np.int16), weights)

    def __len__(self) -> int:
        return len(self.device)

    def __getitem__(self, rows: slice) -> Placements:
        return Placements(self.device[rows], None if self.priority is None else self.priority[rows])

    def one(self, row: int) -> tuple[NDArray[np.int16], NDArray[np.float32] | None]:
        """Devices [g] and priorities [g] of one placement."""
        return self.device[row], None if self.priority is None else self.priority[row]


@dataclass(frozen=True, eq=False)
class Placement:
    """One placement, bound to its problem.

    Attributes:
        device: [g] int16 device of each group.
        priority: [g] float32 or None; higher first.
        graph, cluster: fingerprints of the graph and the cluster that it is for.
    """

    device: NDArray[np.int16]
    priority: NDArray[np.float32] | None
    graph: str
    cluster: str

    def batch(self) -> Placements:
        """A batch of one."""
        return Placements.of(self.device, self.priority)

    def same_as(self, other: Placement) -> bool:
        """Equal devices and priorities."""
        if (self.priority is None) != (other.priority is None):
            return False
        equal = np.array_equal(self.device, other.device)
        return equal and (self.priority is None or np.array_equal(self.priority, other.priority))  # type: ignore[arg-type]


class _File(BaseModel):
    """What is used of a placement file."""

    model_config = ConfigDict(strict=True)
    graph: str = ""
    cluster: str = ""
    fingerprints: dict[str, str]
    devices: list[str] = []
    assignment: dict[str, str]
    priority: dict[str, float] | None = None


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
        "format": FORMAT,
        "version": VERSION,
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
    _, file = _read(path)
    _check_same(path, "graph", file.graph, file.fingerprints, problem.graph.fingerprint)
    _check_same(path, "cluster", file.cluster, file.fingerprints, problem.cluster.fingerprint)
    device, priority = _by_operation(path, file, problem.graph, problem.cluster.device_names)
    return problem.placement(*problem.collapse(device, priority, str(path)))


def load_assignment(path: str | Path, graph: Graph) -> Assignment:
    """Read a placement of `graph`, on whatever machine. Raises PlacementError as `load_placement` does."""
    _, file = _read(path)
    _check_same(path, "graph", file.graph, file.fingerprints, graph.fingerprint)
    return Assignment(*_by_operation(path, file, graph, tuple(file.devices)), tuple(file.devices))


def read_placement(path: str | Path) -> dict[str, Any]:
    """What a placement file holds. Raises PlacementError if it is none."""
    return _read(path)[0]


def _read(path: str | Path) -> tuple[dict[str, Any], _File]:
    try:
        data = json.loads(Path(path).read_text())
        if isinstance(data, dict) and (data.get("format"), data.get("version")) != (FORMAT, VERSION):
            raise PlacementError(f"{path} is not a {FORMAT} of version {VERSION}")
        return data, _File.model_validate(data)
    except ValidationError as e:
        first: Any = e.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise PlacementError(
            f"{path} is not a readable placement: {where + ': ' if where else ''}{first['msg']}",
            "placekit writes them as placement.json",
        ) from None
    except OSError as e:
        raise PlacementError(
            f"{path} cannot be read: {e.strerror or e}", "a run that found a placement writes it as placement.json"
        ) from None
    except (ValueError, RecursionError) as e:  # not UTF-8, not JSON
        raise PlacementError(
            f"{path} is not a readable placement: {e!r}", "placekit writes them as placement.json"
        ) from None


def _check_same(path: str | Path, what: str, name: str, fingerprints: Mapping[str, str], own: str) -> None:
    if fingerprints.get(what) != own:
        raise PlacementError(
            f"{path} was made for another {what} ({name!r}, fingerprint {fingerprints.get(what)})",
            f"this one has fingerprint {own}",
        )


def _by_operation(
    path: str | Path, file: _File, graph: Graph, devices: Sequence[str]
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
    with np.errstate(over="ignore"):  # beyond float32 is infinite, and a priority may be
        return device, np.asarray([file.priority[o] for o in operations]).astype(np.float32)
