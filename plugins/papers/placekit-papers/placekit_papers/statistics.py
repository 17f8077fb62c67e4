"""Compares two methods over the same seeds: ratios with 95% intervals, and whether an order of the two holds.

The ratio of two methods is taken seed by seed. An order `<` *holds* if the mean of the ratio's logarithm is at most -1% and its
95% interval excludes 0; it is *reversed* if the mean is at least 1% and the interval excludes 0, and *open* otherwise. `=` holds
if the interval is within 1%. A placement that does not fit takes infinitely long; a method does not fit if most of its seeds
find nothing that fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, inf, log

import numpy as np
from scipy import stats

EQUAL = 0.01
_WIDE = 20  # percent; wider intervals are far from symmetric, so their ends are shown instead of ±

Seconds = Mapping[int, float]
"""Seconds by seed; infinite for a placement that does not fit."""


def mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half the width of its 95% interval (t distribution), which is 0 for a single value or equal values."""
    mean = float(np.mean(values))
    if len(values) < 2 or np.ptp(values) <= 1e-9 * abs(mean):
        return mean, 0.0
    return mean, float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))


def mean_text(values: Seconds) -> str:
    """The mean of seconds over the seeds with its 95% interval; in brackets how many seeds fit, if not all do."""
    fitting = [v for v in values.values() if v < inf]
    if not fitting:
        return "OOM"
    mean, half = mean_and_half(fitting)
    some = f" ({len(fitting)} of {len(values)})" if len(fitting) < len(values) else ""
    return f"{mean:.3g}" + (f" ± {half:.1g}" if half else "") + some


def log_ratio(a: Seconds, b: Seconds) -> tuple[float, float]:
    """The 95% interval of the mean of log(a / b), seed by seed. A single value of a method stands for all its seeds.

    It is (inf, inf) or (-inf, -inf) if most seeds of one method find nothing that fits, and all seeds of the other do. If any
    other seeds find nothing, it is (-inf, inf), because the seeds that fit must not decide alone.
    """
    lost = [sum(v == inf for v in x.values()) for x in (a, b)]
    out = [n > len(x) / 2 for n, x in zip(lost, (a, b), strict=True)]
    if out[0] != out[1] and not lost[out.index(False)]:
        return (inf, inf) if out[0] else (-inf, -inf)
    if any(lost):
        return -inf, inf
    if len(a) == 1 or len(b) == 1:
        logs = [log(x / y) for x in a.values() for y in b.values()]
    else:
        logs = [log(a[k] / b[k]) for k in a.keys() & b.keys()]
    if len(logs) < 2 and not len(a) == len(b) == 1:
        return -inf, inf
    mean, half = mean_and_half(logs)
    return mean - half, mean + half


def change_text(a: Seconds, b: Seconds) -> str:
    """By how much `a` differs from `b` in percent, with the 95% interval."""
    if all(min(x.values()) == inf for x in (a, b)):
        return "neither fits"
    low, high = log_ratio(a, b)
    if inf in (abs(low), abs(high)):
        return "not known" if low != high else "only it fits" if low < 0 else "does not fit"
    middle, least, most = (100 * (exp(x) - 1) for x in ((low + high) / 2, low, high))
    half = (most - least) / 2
    if half >= _WIDE:
        return f"{least:+.0f} to {most:+.0f}%"
    # rounding around the middle would hide which side of 0 the ends are on
    if (low < 0 < high) != (abs(middle) < half):
        return f"{least:+.1f} to {most:+.1f}%"
    return f"{middle:+.1f}" + (f" ± {half:.1f}" if half >= 0.05 else "") + "%"


def order_of_paper(seconds: Mapping[str, float], a: str, b: str) -> tuple[str, str, str]:
    """The paper's order of two methods by its seconds: (faster, `<`, slower), or `=` if they are within 1%."""
    x, y = seconds[a], seconds[b]
    near = x < inf and y < inf and abs(log(x / y)) <= EQUAL
    return (a, "=", b) if near else (a, "<", b) if x < y else (b, "<", a)


def judge(sign: str, a: Seconds, b: Seconds) -> str:
    """Whether an order of two methods holds here: `holds`, `reversed` or `open`.

    Args:
        sign: `<` and `=` as in the module's description. `<=`: at most 1% slower. `>=`: a gain of 1% is excluded.
            `not >`: not shown to be slower. `<= 10%`: at most 10% slower.
    """
    low, high = log_ratio(a, b)
    if sign == "=":
        return "holds" if low >= -EQUAL and high <= EQUAL else "reversed" if low > EQUAL or high < -EQUAL else "open"
    if sign == "<= 10%":
        return "holds" if high <= log(1.1) else "reversed" if low > log(1.1) else "open"
    middle = low if low == high else (low + high) / 2
    faster, slower = high < 0 and middle <= -EQUAL, low > 0 and middle >= EQUAL
    verdicts = {
        "<": (faster, slower),
        "<=": (not slower and high <= EQUAL, slower),
        ">=": (not faster and low >= -EQUAL, faster),
        "not >": (not slower, slower),
    }
    if sign not in verdicts:
        raise ValueError(f"no order {sign!r}: there are =, <= 10%, {', '.join(verdicts)}")
    holds, reverse = verdicts[sign]
    return "holds" if holds else "reversed" if reverse else "open"
