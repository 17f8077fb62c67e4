"""Placements on fewer devices that are hardly slower than the best one of a search."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placekit_core import Placement, Placements, Task

MOST = 256
"""Moves that are tried at once."""


def on_fewer_devices(task: Task, limit_s: float) -> Placement | None:
    """A placement on fewer devices than the best one, whose value is at most `limit_s`; None without one.

    This is the fastest single device, if it is fast enough. Else, as long as the value stays within the limit, the operations of
    one device go to another; of several such moves, the one of the lowest value. If there are more than `MOST`, those from the
    devices with least to do are tried. These evaluations are not counted.
    """
    best, problem = task.evaluate.best, task.problem
    if best is None:
        return None
    now = best.placement
    count = len(_used(task, now.device))
    alone = [np.full(problem.g, d, np.int16) for d in range(problem.cluster.size)] if count > 1 else []
    single = _fastest(task, alone, now)
    if single is not None and single[1] <= limit_s:
        return single[0]
    while len(used := _used(task, now.device)) > 2:
        work = np.bincount(now.device, problem.group_s[np.arange(problem.g), now.device], problem.cluster.size)
        few = sorted(used, key=lambda d: (work[d], d))[: max(MOST // (len(used) - 1), 1)]
        moves = [(a, b) for a in sorted(few) for b in used if a != b]
        merged = [np.where(now.device == a, b, now.device).astype(np.int16) for a, b in moves]
        found = _fastest(task, merged, now)
        if found is None or found[1] > limit_s:
            break
        now = found[0]
    return now if len(_used(task, now.device)) < count else None


def _used(task: Task, device: NDArray[np.int16]) -> list[int]:
    """The devices that run kernels."""
    graph = task.problem.graph
    used: list[int] = np.unique(task.problem.expand(device)[graph.kernel]).tolist()
    return used


def _fastest(task: Task, devices: list[NDArray[np.int16]], like: Placement) -> tuple[Placement, float] | None:
    """The fastest of these placements that is allowed and fits, with the priorities of `like`, and its value."""
    problem = task.problem
    rows = [d for d in devices if problem.allowed[np.arange(problem.g), d].all()]
    if not rows:
        return None
    priority = None if like.priority is None else np.repeat(like.priority[None], len(rows), axis=0)
    batch = Placements.of(np.stack(rows), priority)
    measured = task.evaluate.session.evaluate(batch)
    value_s = np.where(measured.fits & np.isfinite(measured.value_s), measured.value_s, np.inf)
    i = int(value_s.argmin())
    return (problem.row(batch, i), float(value_s[i])) if np.isfinite(value_s[i]) else None
