"""What a picture of a schedule can show: lanes of blocks. Events that are too short to be seen are merged into one block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placekit_core import Problem
from placekit_report.timeline import Items

PAIRS = 12
"""Pairs of devices that have a lane of their own. If more pairs send, each device has one lane for all that it sends."""
GROWTH = 1.5


@dataclass(frozen=True, eq=False)
class Lane:
    """What goes on one after another: on a stream of a device, or from one device to another.

    Attributes:
        name: such as `gpu:0`, `gpu:0 stream 1`, `gpu:0 → gpu:1`, `gpu:0 sends`.
        link: whether these are transfers.
        items: indices into `Items`, by their start.
    """

    name: str
    link: bool
    items: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Block:
    """Events of one lane that are drawn as one.

    Attributes:
        items: indices into `Items`, by their start.
        start_s, end_s: of all of them.
        busy_s: seconds in which at least one of them goes on.
        colour, phase: those of the items that take most of the time; -1 is the colour of transfers.
    """

    items: list[int]
    start_s: float
    end_s: float
    busy_s: float
    colour: int
    phase: int


def lanes(problem: Problem, items: Items) -> list[Lane]:
    """The lanes of all devices and of the streams that ran something, then those of transfers, in the cluster's order."""
    names, size = problem.cluster.device_names, problem.cluster.size
    order = np.argsort(items.start_s, kind="stable")
    order = order[items.shown[order]]
    device, to, stream = items.device[order], items.to[order], items.stream[order]
    found = []
    for d, name in enumerate(names):
        own = (device == d) & (to < 0)
        for s in sorted({0, *stream[own].tolist()}):
            found.append(Lane(name + (f" stream {s}" if s else ""), False, order[own & (stream == s)]))
    pair = np.where(to >= 0, device * size + to, -1)
    used = np.unique(pair[pair >= 0]).tolist()
    if len(used) <= PAIRS:
        return found + [Lane(f"{names[p // size]} → {names[p % size]}", True, order[pair == p]) for p in used]
    senders = sorted({p // size for p in used})
    return found + [Lane(f"{names[d]} sends", True, order[(device == d) & (to >= 0)]) for d in senders]


def blocks(items: Items, found: Sequence[Lane], tolerance_s: float, limit: int) -> list[list[Block]]:
    """The blocks of each lane, at most `limit` in all.

    Events are merged if less than `tolerance_s` is between them, and if both are short and alike, or overlap, or are
    together no longer than two tolerances. The tolerance grows until there are few enough blocks.
    """
    while True:
        merged = [_merged(items, lane.items, tolerance_s) for lane in found]
        if sum(map(len, merged)) <= max(limit, len(found)) or tolerance_s <= 0:
            return merged
        tolerance_s *= GROWTH


def _merged(items: Items, order: NDArray[np.int64], tolerance_s: float) -> list[Block]:
    """The blocks of one lane."""
    start, end = items.start_s[order].tolist(), items.end_s[order].tolist()
    kind = list(zip(items.colour[order].tolist(), items.phase[order].tolist(), strict=True))
    first, until, runs = 0, 0.0, []
    for i in range(len(order)):
        alike = (
            i > 0 and kind[i] == kind[i - 1] and max(end[i] - start[i], end[i - 1] - start[i - 1]) <= 2 * tolerance_s
        )
        near = i > 0 and start[i] - until <= tolerance_s
        together = (
            alike or start[i] < until - 1e-3 * tolerance_s or max(end[i], until) - start[first] <= 2 * tolerance_s
        )
        if i > 0 and not (near and together):
            runs.append(slice(first, i))
            first, until = i, 0.0
        until = max(until, end[i])
    runs += [slice(first, len(order))] if len(order) else []
    return [_block(order[r].tolist(), start[r], end[r], kind[r]) for r in runs]


def _block(rows: list[int], start: list[float], end: list[float], kind: list[tuple[int, int]]) -> Block:
    """The block of these items."""
    until, busy, seconds = start[0], 0.0, dict[tuple[int, int], float]()
    for a, b, k in zip(start, end, kind, strict=True):
        busy += max(0.0, b - max(a, until))
        until = max(until, b)
        seconds[k] = seconds.get(k, 0.0) + b - a
    colour, phase = max(seconds, key=lambda k: (seconds[k], k))
    return Block(rows, start[0], until, busy, colour, phase)
