"""Whole ticks: where all durations are short decimal numbers, times are computed without rounding (docs/machine-model.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

DECIMALS = 12
"""Decimals of the shortest tick in seconds."""
_ROUNDING, _ROUNDING_S = 1e-15, 1e-18
_EXACT = 2.0**53
"""Whole numbers up to this are exact, and so are their sums."""
_TIMES = ("s_per_byte", "op_s", "latency_s", "launch_s")
_CHUNK = 4096  # a duration without whole ticks is mostly among the first ones

Arrays = Mapping[str, NDArray[Any]]


def in_ticks(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """The arrays of the kernel with all durations in ticks, and `ticks_per_s` [1].

    Durations stay in seconds, with one tick per second, if no tick is short enough, or if there is noise.
    """
    for per_s in [] if len(arrays["noise"]) else [10.0**decimals for decimals in range(DECIMALS + 1)]:
        if all(_whole(arrays[name], per_s) for name in _TIMES):
            ticks = {**arrays, **{name: np.rint(arrays[name] * per_s) for name in _TIMES}}
            if _exact(ticks):
                return {**ticks, "ticks_per_s": np.asarray([per_s])}
    return {**arrays, "ticks_per_s": np.ones(1)}


def _whole(durations: NDArray[np.float64], per_s: float) -> bool:
    """Whether all are whole numbers of ticks, up to rounding."""
    flat = durations.ravel()
    for first in range(0, len(flat), _CHUNK):
        seconds = flat[first : first + _CHUNK]
        error = np.abs(seconds - np.rint(seconds * per_s) / per_s)
        if (error > _ROUNDING * seconds + _ROUNDING_S).any():
            return False
    return True


def _exact(ticks: Arrays) -> bool:
    """Whether no time of any placement is rounded: launches are whole ticks, and all tasks together are not too long."""
    launches = np.multiply.outer(np.unique(ticks["launches"]), np.unique(ticks["launch_s"]))
    transfer = ticks["latency_s"].max() + ticks["tensor_bytes"][ticks["input_tensor"]] * ticks["s_per_byte"].max()
    longest = ticks["op_s"].max(axis=1).sum() + ticks["launches"].sum() * ticks["launch_s"].max() + transfer.sum()
    return bool((launches == np.rint(launches)).all() and longest < _EXACT)
