"""Draws searches as SVG: the best value against the number of evaluations, with the proven bound."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from placekit_core import units
from placekit_report.page.markup import Markup, tag

_EQUAL = 1e-4  # values that differ by a smaller share are drawn as one line: the labels of the axis show four digits
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 900, 260, 80, 24, 10


def search_chart(searches: Sequence[Any], bound: float | None, unit: str) -> Markup | None:
    """A line for each search; None if no search made two evaluations. `unit` is the unit of the values."""
    curves = [[(x, y) for x, y in zip(s["evaluations"], s["best_s"], strict=True) if y is not None] for s in searches]
    values = [y for curve in curves for _, y in curve] + ([bound] if bound else [])
    last = max((s["evaluations"][-1] for s in searches if len(s["evaluations"])), default=0)
    if last < 2 or not any(curves):
        return None
    low, high = min(values), max(values)
    margin = 0.06 * (high - low if high - low > _EQUAL * high else high) or 1.0
    low, high = max(0.0, low - margin), high + margin

    def x(evaluations: float) -> str:
        return f"{LEFT + (WIDTH - LEFT - 10) * evaluations / last:.1f}"

    def y(value: float) -> str:
        return f"{TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low):.1f}"

    parts = []
    for value in ticks(low, high):
        parts.append(tag("line", x1=LEFT, x2=WIDTH, y1=y(value), y2=y(value), class_="grid"))
        parts.append(tag("text", units.format_value(value, unit), x=LEFT - 8, y=y(value), class_="end"))
    for count in ticks(0, last):
        parts.append(tag("text", f"{count:,.0f}", x=x(count), y=HEIGHT - 9, class_="middle"))
    for i, curve in reversed(list(enumerate(curves))):
        points = [f"{x(at)},{y(value)}" for at, value in _steps(curve, last)]
        label = tag("title", searches[i]["label"])
        parts.append(tag("polyline", label, points=" ".join(points), class_=f"curve s{i % 9}"))
    if bound:
        parts.append(tag("line", x1=LEFT, x2=WIDTH, y1=y(bound), y2=y(bound), class_="bound"))
        parts.append(tag("text", "proven bound", x=WIDTH - 4, y=float(y(bound)) - 6, class_="end"))
    about = "The best value against the number of evaluations"
    svg = tag("svg", parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", class_="chart", role="img", aria_label=about)
    names = [tag("span", tag("i", class_=f"d c{i % 9}"), s["label"]) for i, s in enumerate(searches)]
    drawn = tag("div", svg, class_="scroll", tabindex="0", role="region", aria_label=about)
    return tag("div", drawn, tag("p", names, class_="legend"))


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values from `low` to `high`, in steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    if rough <= 0:
        return []
    power = 10 ** math.floor(math.log10(rough))
    step = next(f * power for f in (1, 2, 5, 10) if f * power >= rough * (1 - 1e-9))
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _steps(curve: Sequence[tuple[float, float]], last: float) -> Iterator[tuple[float, float]]:
    """The corners of a curve that stays at a value until a better one is found."""
    before: float | None = None
    for at, value in curve:
        if value != before:
            if before is not None:
                yield at, before
            yield at, value
        before = value
    if before is not None:
        yield last, before
