"""Statistics of a few runs that make no assumption on how their values are distributed, and correlations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

COVERAGE = 0.95


class Interval(NamedTuple):
    """Two of the values, and the probability that the median of what they are drawn from lies between them."""

    low: float
    high: float
    coverage: float


def median_interval(values: Sequence[float]) -> Interval | None:
    """Confidence interval of the median from order statistics; None for fewer than two values.

    The k-th smallest and the k-th largest of n independent values enclose the median with probability
    1 - 2 P(Binomial(n, 1/2) < k), exactly if the distribution is continuous and at least that otherwise (David and
    Nagaraja, Order Statistics, 2003, section 7.1). k is the largest for which that is at least 95 %; below six values
    none reaches it, and the interval is the smallest and the largest value with the lower coverage that they have.
    """
    n, ordered = len(values), sorted(values)
    if n < 2:
        return None
    k, outside = 1, 2 / 2**n
    while True:
        more = outside + 2 * math.comb(n, k) / 2**n
        if k + 1 > n // 2 or 1 - more < COVERAGE:
            return Interval(ordered[k - 1], ordered[n - k], 1 - outside)
        k, outside = k + 1, more


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
