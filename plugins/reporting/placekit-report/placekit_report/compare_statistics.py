"""Confidence intervals of the median of a few runs, without assumptions about the distribution of their values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

COVERAGE = 0.95
ROUNDING = 1e-9
"""Values with a smaller relative difference count as equal: they may be sums of the same terms in another order."""


class Interval(NamedTuple):
    """The two values that bound the median, and the probability that it lies between them."""

    low: float
    high: float
    coverage: float


def median_interval(values: Sequence[float]) -> Interval | None:
    """Confidence interval of the median from order statistics; None for fewer than two values.

    The k-th smallest and the k-th largest of n independent values enclose the median with probability
    1 - 2 P(Binomial(n, 1/2) < k), exactly if the distribution is continuous and at least that otherwise (David and
    Nagaraja, Order Statistics, 2003, section 7.1). k is the largest with a probability of at least 95 %. Fewer
    than six values never reach it: then the interval is from the smallest to the largest value, with their lower coverage.
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


def overlap(lower: Interval, higher: Interval) -> bool:
    """Whether the interval of the higher median begins within the interval of the lower one, up to rounding."""
    return lower.high >= higher.low * (1 - ROUNDING)


def is_distinguishably_lower(lower: Interval | None, higher: Interval | None) -> bool:
    """Whether the first median is distinguishably lower: both intervals reach 95 % (six values or more) and do not overlap."""
    if lower is None or higher is None or min(lower.coverage, higher.coverage) < COVERAGE:
        return False
    return not overlap(lower, higher)
