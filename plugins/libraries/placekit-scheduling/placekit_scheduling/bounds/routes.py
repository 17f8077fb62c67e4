"""What the routes between two sets of devices have in common: the least time of a transfer, and the channels that limit it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placekit_core import Routes

Pairs = Sequence[tuple[Any, Any]] | NDArray[np.int64]
"""Pairs (source, destination) of devices."""


def least_transfer_s(routes: Routes, pairs: Pairs, bytes_: NDArray[np.float64]) -> NDArray[np.float64]:
    """[t] seconds of sending tensors of `bytes_` [t] over the fastest of the routes; inf without pairs."""
    source, destination = np.asarray(pairs, np.int64).reshape(-1, 2).T
    routes_s = np.column_stack([routes.latency_s[source, destination], routes.s_per_byte[source, destination]])
    least = np.full(len(bytes_), np.inf)
    for latency_s, s_per_byte in np.unique(routes_s, axis=0):
        least = np.minimum(least, latency_s + bytes_ * s_per_byte)
    return least


def channels_of(routes: Routes, pairs: Pairs) -> list[list[int]]:
    """The channels of limited capacity on the route of each pair, from source to destination."""
    size = len(routes.latency_s)
    return [routes.channel[routes.ptr[a * size + b] : routes.ptr[a * size + b + 1]].tolist() for a, b in pairs]


def concurrent_transfers(routes: Routes, pairs: Pairs, ends: Sequence[int]) -> float:
    """An upper limit on how many transfers between these pairs can run at the same time; inf if a route has no limit.

    A channel that all routes share is such a limit, and so is the sum over the channels at one end of the routes: index 0
    in `ends` is the end of the source, -1 that of the destination.
    """
    rows = channels_of(routes, pairs)
    if not rows or not all(rows):
        return float(np.inf)
    cuts = [{channel} for channel in set.intersection(*map(set, rows))] + [{row[end] for row in rows} for end in ends]
    return min(float(sum(int(routes.capacity[channel]) for channel in cut)) for cut in cuts)
