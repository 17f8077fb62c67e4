"""Correlations of two samples, with bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

COVERAGE = 0.95


def bootstrap_interval(
    statistic: Callable[[NDArray[np.float64], NDArray[np.float64]], float],
    x: ArrayLike,
    y: ArrayLike,
    draws: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic of pairs [n], 95 %; NaN if it is NaN for most resamples.

    Pairs are drawn with replacement, as many as there are (Efron and Tibshirani, An Introduction to the Bootstrap, 1993,
    section 13.3). Equal pairs and seeds give the same interval.
    """
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(a) < 2:
        return math.nan, math.nan
    rows = np.random.default_rng(seed).integers(0, len(a), (draws, len(a)))
    values = np.array([statistic(a[r], b[r]) for r in rows])
    values = values[np.isfinite(values)]
    if len(values) < draws / 2:
        return math.nan, math.nan
    low, high = np.percentile(values, [100 * (1 - COVERAGE) / 2, 100 * (1 + COVERAGE) / 2])
    return float(low), float(high)


def ranks(values: ArrayLike) -> NDArray[np.float64]:
    """[n] ranks from 1, smallest first; equal values share the mean of the ranks that they take together."""
    _, place, count = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    shared: NDArray[np.float64] = (last - (count - 1) / 2)[place]
    return shared


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Pearson's correlation of two samples [n]; NaN if one of them is constant or shorter than 2."""
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(a) < 2 or (a == a[0]).all() or (b == b[0]).all():
        return math.nan
    a, b = a - a.mean(), b - b.mean()
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's rank correlation: Pearson's of the ranks, with ties sharing theirs; NaN as there."""
    return pearson(ranks(x), ranks(y))
