"""Placements: which device runs which group, and in which order of preference."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placekit_core.errors import PlacementError
from placekit_core.graph_file import write_atomically

if TYPE_CHECKING:
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
    try:
        data = json.loads(Path(path).read_text())
        fingerprints, assignment = data["fingerprints"], data["assignment"]
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as e:
        raise PlacementError(
            f"{path} is not a readable placement: {e!r}", "placekit writes them as placement.json"
        ) from None
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise PlacementError(f"{path} is not a {FORMAT} of version {VERSION}")
    for what, own in (("graph", problem.graph.fingerprint), ("cluster", problem.cluster.fingerprint)):
        if fingerprints.get(what) != own:
            raise PlacementError(
                f"{path} was made for another {what} ({data.get(what)!r}, fingerprint {fingerprints.get(what)})",
                f"this one has fingerprint {own}",
            )
    missing = [o for o in problem.graph.op_name if o not in assignment]
    if missing:
        raise PlacementError(f"{path} does not place operation {missing[0]!r} (and {len(missing) - 1} more)")
    order = data.get("priority")
    device = np.asarray([problem.cluster.device_index(assignment[o]) for o in problem.graph.op_name], np.int16)
    priority = None if order is None else np.asarray([order[o] for o in problem.graph.op_name], np.float32)
    return problem.placement(*problem.collapse(device, priority, str(path)))
