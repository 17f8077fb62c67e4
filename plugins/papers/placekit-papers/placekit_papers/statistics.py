"""Compares two methods: by how much their geometric means over the seeds differ, and whether an order of the two holds.

Seeds of two methods have nothing in common, so they are not paired: the 95% interval is Welch's, of the difference of the
mean logarithms. If it is wider than ±20%, seeds usually end in several places. Such an interval says little, and is widened
to the least and the largest difference of two seeds. An order `<` *holds* if the interval excludes 0 and the difference is
at most -1%; it is *reversed* if the interval excludes 0 and the difference is at least 1%, and *open* otherwise. `=` holds
if the interval is within 1%. A placement that does not fit takes infinitely long; a method does not fit if most of its seeds
find nothing that fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, inf, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

EQUAL = 0.01
_WIDE = 20  # percent
_PLACES = 3  # as many places, where seeds end, are shown one by one
_NEAR = 0.05  # seeds whose logarithms differ by less are shown together

Seconds = Mapping[int, float]
"""Seconds by seed; infinite for a placement that does not fit."""


def mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half the width of its 95% interval (t distribution), which is 0 for a single value or equal values."""
    mean = float(np.mean(values))
    if len(values) < 2 or np.ptp(values) <= 1e-9 * abs(mean):
        return mean, 0.0
    return mean, float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))


def mean_text(values: Seconds, bound: float = 0.0) -> str:
    """The mean of seconds over the seeds with its 95% interval; in brackets how many seeds fit, if not all do.

    The fastest and the slowest seed, if the interval is wider than ±20% or reaches below a proven bound.
    """
    fitting = [v for v in values.values() if v < inf]
    if not fitting:
        return "OOM"
    mean, half = mean_and_half(fitting)
    some = f" ({len(fitting)} of {len(values)})" if len(fitting) < len(values) else ""
    if half and (100 * half > _WIDE * mean or mean - half < bound):
        ends = dict.fromkeys(f"{x:.3g}" for x in (min(fitting), max(fitting)))
        return " to ".join(ends) + some
    return f"{mean:.3g}" + (f"±{half:.1g}" if half else "") + some


class Change(NamedTuple):
    """The mean log(a) minus the mean log(b), and its interval; `spread` if that reaches to all differences of two seeds."""

    low: float
    mean: float
    high: float
    spread: bool = False


def log_ratio(a: Seconds, b: Seconds) -> Change:
    """By how much two methods differ.

    All three numbers are inf or -inf if most seeds of one method find nothing that fits, and all seeds of the other do. If any
    other seeds find nothing, the interval is (-inf, inf), because the seeds that fit must not decide alone.
    """
    lost = [sum(v == inf for v in x.values()) for x in (a, b)]
    out = [n > len(x) / 2 for n, x in zip(lost, (a, b), strict=True)]
    if out[0] != out[1] and not lost[out.index(False)]:
        return Change(inf, inf, inf) if out[0] else Change(-inf, -inf, -inf)
    if any(lost):
        return Change(-inf, 0.0, inf)
    one, two = (np.log([*x.values()]) for x in (a, b))
    mean, half = float(one.mean() - two.mean()), _half(one, two)
    low, high = mean - half, mean + half
    if 100 * np.sinh(half) < _WIDE:
        return Change(low, mean, high)
    return Change(min(low, float(one.min() - two.max())), mean, max(high, float(one.max() - two.min())), True)


def _half(one: NDArray[np.float64], two: NDArray[np.float64]) -> float:
    """Half the width of Welch's 95% interval of the difference of two means; a single value has no variance."""
    errors = [stats.sem(x) ** 2 if len(x) > 1 and np.ptp(x) > 1e-9 else 0.0 for x in (one, two)]
    if not any(errors):
        return 0.0
    freedom = sum(errors) ** 2 / sum(e**2 / (len(x) - 1) for e, x in zip(errors, (one, two), strict=True) if e)
    return float(stats.t.ppf(0.975, freedom) * np.sqrt(sum(errors)))


def change_text(a: Seconds, b: Seconds) -> str:
    """By how much the geometric mean of `a` differs from that of `b` in percent, with the 95% interval.

    If seeds spread, the seeds of `a` over the single value of `b`, or the range of all differences.
    """
    if all(min(x.values()) == inf for x in (a, b)):
        return "neither fits"
    low, mean, high, spread = log_ratio(a, b)
    if inf in (abs(low), abs(high)):
        return "not known" if low != high else "only it fits" if low < 0 else "does not fit"
    middle, least, most = (100 * (exp(x) - 1) for x in (mean, low, high))
    half = (most - least) / 2
    if spread:
        if len({*b.values()}) > 1:
            return f"{least:+.0f} to {most:+.0f}%"
        return "by seed " + _places(np.log(sorted(a.values())) - log(next(iter(b.values()))))
    # rounding around the middle would hide which side of 0 the ends are on
    if (low < 0 < high) != (abs(middle) < half):
        return f"{least:+.1f} to {most:+.1f}%"
    digits = 1 if abs(middle) < 100 else 0
    return f"{middle:+.{digits}f}" + (f"±{half:.{digits}f}" if half >= 0.05 else "") + "%"


def _places(changes: NDArray[np.float64]) -> str:
    """How many of sorted changes, natural logarithms, are near each other: `2 × +0%, 4 × +231%`; of many places, the range."""
    near = np.split(changes, np.flatnonzero(np.diff(changes) > _NEAR) + 1)
    if len(near) > _PLACES:
        low, high = (100 * (exp(float(x)) - 1) for x in changes[[0, -1]])
        return f"{low:+.0f} to {high:+.0f}%"
    return ", ".join(f"{len(x)} × {100 * (exp(float(x.mean())) - 1):+.0f}%" for x in near)


def order_of_paper(seconds: Mapping[str, float], a: str, b: str) -> tuple[str, str, str]:
    """The paper's order of two methods by its seconds: (faster, `<`, slower), or `=` if they are within 1%."""
    x, y = seconds[a], seconds[b]
    near = x < inf and y < inf and abs(log(x / y)) <= EQUAL
    return (a, "=", b) if near else (a, "<", b) if x < y else (b, "<", a)


def judge(sign: str, a: Seconds, b: Seconds, least: float = EQUAL) -> str:
    """Whether an order of two methods holds here: `holds`, `reversed` or `open`.

    Args:
        sign: `<` and `=` as in the module's description. `<=`: at most 1% slower. `>=`: a gain of 1% is excluded.
            `not >`: not shown to be slower. `<= 10%`: at most 10% slower.
        least: by how much the mean logarithms must differ for `<` to hold.
    """
    low, middle, high, _ = log_ratio(a, b)
    if sign == "=":
        return "holds" if low >= -EQUAL and high <= EQUAL else "reversed" if low > EQUAL or high < -EQUAL else "open"
    if sign == "<= 10%":
        return "holds" if high <= log(1.1) else "reversed" if low > log(1.1) else "open"
    faster, slower = high < 0 and middle <= -EQUAL, low > 0 and middle >= EQUAL
    verdicts = {
        "<": (faster and middle <= -least, slower),
        "<=": (not slower and high <= EQUAL, slower),
        ">=": (not faster and low >= -EQUAL, faster),
        "not >": (not slower, slower),
    }
    if sign not in verdicts:
        raise ValueError(f"no order {sign!r}: there are =, <= 10%, {', '.join(verdicts)}")
    holds, reverse = verdicts[sign]
    return "holds" if holds else "reversed" if reverse else "open"
