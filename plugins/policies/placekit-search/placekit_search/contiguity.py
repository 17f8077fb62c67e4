"""Placements with one run of a network's layers per device, near the best placement of a search."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray
from placekit_layers.splits import LayerGroups, neighbours

from placekit_core import Placement, Placements, Task
from placekit_search.local_search import excess

LEAST = 8  # evaluations that a search needs to try anything


def contiguous_near(
    task: Task, layers: LayerGroups, placement: Placement, evaluations: int
) -> tuple[Placement, float] | None:
    """The best contiguous placement found near `placement`, and its value. None if no such placement fits.

    The search begins with the devices of `placement`, in the order of their layers and with as many layers each, and with
    each device alone. While that helps, it moves borders, exchanges devices and gives a device's layers to its neighbours. Other
    groups stay where `placement` has them, or follow the layers. It makes at most `evaluations` evaluations.
    """
    seen: set[bytes] = set()
    best: tuple[bool, float, NDArray[np.int64], bool] | None = None  # is over capacity, excess or value, split, follow
    waiting = layers.contiguous_like(placement.device)
    while waiting and len(seen) < evaluations:
        rows: dict[bytes, tuple[NDArray[np.int64], bool, NDArray[np.int16]]] = {}
        for split, follow in product(waiting, (False, True)):
            if layers.allows(split):
                device = layers.with_split(placement.device, split, follow)
                if device.tobytes() not in seen:
                    rows.setdefault(device.tobytes(), (split, follow, device))
        some = list(rows.values())[: evaluations - len(seen)]
        if not some:
            break
        value, over = excess(task.evaluate(_batch([row[2] for row in some], placement)), task)
        seen |= {row[2].tobytes() for row in some}
        i = int(np.lexsort((np.where(over > 0, over, value), over > 0))[0])
        rank = bool(over[i] > 0), float(over[i] if over[i] > 0 else value[i])
        if best is not None and rank >= best[:2]:
            break
        best = *rank, some[i][0], some[i][1]
        waiting = list(neighbours(some[i][0], task.problem.cluster.size))
    if best is None or best[0]:
        return None
    device = layers.with_split(placement.device, best[2], best[3])
    return task.problem.placement(device, placement.priority), best[1]


def _batch(rows: list[NDArray[np.int16]], placement: Placement) -> Placements:
    """Placements with the priorities of `placement`."""
    device = np.stack(rows)
    priority = placement.priority
    return Placements.of(device, None if priority is None else np.broadcast_to(priority, device.shape))
