"""Numbers with units, for people to read."""

from __future__ import annotations

import math


def seconds(value: float | None) -> str:
    """A duration with a unit: 12.34 ms."""
    if value is None or not math.isfinite(value):
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if abs(value) * scale >= 1 or unit == "us":
            return f"{value * scale:.4g} {unit}"
    return "-"


def format_value(value: float | None, unit: str) -> str:
    """The value of an objective with its unit: 12.34 ms, 3.2 J."""
    if unit == "s":
        return seconds(value)
    return "-" if value is None or not math.isfinite(value) else f"{value:.4g} {unit}"


def count(value: float) -> str:
    """A large number with a decimal prefix: 1.23 T."""
    for unit, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.3g} "


def mebibytes(value: float) -> str:
    """Bytes as MiB or GiB; small sizes as KiB or bytes."""
    if 0 < value < 2**10:
        return f"{value:.0f} B"
    if 0 < value < 0.1 * 2**20:
        return f"{value / 2**10:.1f} KiB"
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"


def percent(value: float | None) -> str:
    """A ratio as a percentage."""
    return "-" if value is None else f"{100 * value:.1f}%"
