"""Placements that give every device one run of a network's layers, near the best placement that a search has found."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray
from placekit_layers.splits import LayerGroups, neighbours

from placekit_core import Placement, Placements, Task
from placekit_search.local_search import excess

LEAST = 8  # evaluations below which nothing is tried


def contiguous_near(
    task: Task, layers: LayerGroups, placement: Placement, evaluations: int
) -> tuple[Placement, float] | None:
    """The best contiguous placement found near `placement`, and its value; None if none fits. At most so many evaluations.

    It begins with the devices of `placement`, in the order of their layers and with as many of them, and every
    device alone. Then it moves borders, exchanges devices and gives one's layers to its neighbours, as long as that pays. Other
    groups stay where `placement` has them, or follow the layers.
    """
    seen: set[bytes] = set()
    best: tuple[bool, float, NDArray[np.int64], bool] | None = (
        None  # whether it is over capacity, its value or excess, the split
    )
    waiting = layers.contiguous_like(placement.device)
    while waiting and len(seen) < evaluations:
        rows: dict[bytes, tuple[NDArray[np.int64], bool, NDArray[np.int16]]] = {}
        for split, follow in product(waiting, (False, True)):
            if layers.may_be(split):
                device = layers.placed(placement.device, split, follow)
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
    device = layers.placed(placement.device, best[2], best[3])
    return task.problem.placement(device, placement.priority), best[1]


def _batch(rows: list[NDArray[np.int16]], placement: Placement) -> Placements:
    """Placements with the priorities of `placement`."""
    device = np.stack(rows)
    priority = placement.priority
    return Placements.of(device, None if priority is None else np.broadcast_to(priority, device.shape))
