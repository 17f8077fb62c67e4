"""Placements: which device runs which group, and in which order of preference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placekit_core.contracts.errors import PlacementError


@dataclass(frozen=True, eq=False)
class Placements:
    """A batch of b placements of g groups.

    Attributes:
        device: [b, g] int16 device of each group.
        priority: [b, g] float32, or None for no preference. Among ready tasks the higher priority runs first, on backends
            with ready order `priority`.
    """

    device: NDArray[np.int16]
    priority: NDArray[np.float32] | None = None

    @classmethod
    def of(cls, device: ArrayLike, priority: ArrayLike | None = None) -> Placements:
        """A batch from anything array-like; one row becomes a batch of one."""
        try:
            rows = np.atleast_2d(np.asarray(device))
            weights = None if priority is None else np.atleast_2d(np.asarray(priority, np.float32))
        except (TypeError, ValueError) as e:
            raise PlacementError(f"devices and priorities are arrays of numbers: {e}") from None
        if rows.dtype.kind not in "iu":
            raise PlacementError(f"devices are integers, not {rows.dtype}")
        int16 = np.iinfo(np.int16)
        wide = rows[(rows < int16.min) | (rows > int16.max)]
        if len(wide):  # would wrap to another device
            raise PlacementError(f"there is no device {wide[0]}")
        if rows.ndim != 2:
            raise PlacementError(f"a batch of placements has 2 dimensions, not {rows.ndim}")
        if weights is not None and weights.shape != rows.shape:
            raise PlacementError(f"priorities have shape {weights.shape}, devices {rows.shape}")
        return cls(np.ascontiguousarray(rows, np.int16), None if weights is None else np.ascontiguousarray(weights))

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
        graph, cluster: fingerprints of its graph and cluster.
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
