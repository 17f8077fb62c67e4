"""The median of a few runs, with an interval that assumes nothing about the distribution of their values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

COVERAGE = 0.95
ROUNDING = 1e-9
"""Values that differ relatively by less are equal: sums in another order differ so."""


class Interval(NamedTuple):
    """Two of the values, and the probability that the median of their distribution lies between them."""

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


def meet(lower: Interval, higher: Interval) -> bool:
    """Whether the interval of a higher median begins within the other one, up to rounding."""
    return lower.high >= higher.low * (1 - ROUNDING)


def apart(lower: Interval | None, higher: Interval | None) -> bool:
    """Whether the first median is distinguishably lower: both intervals reach 95 % (six values or more), and do not meet."""
    if lower is None or higher is None or min(lower.coverage, higher.coverage) < COVERAGE:
        return False
    return not meet(lower, higher)
