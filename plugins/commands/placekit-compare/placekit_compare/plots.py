"""The plots of the page, as SVG that needs no script: values of every seed, curves of the search, gaps to the bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from placekit_compare.curves import History, Point, median_curve
from placekit_compare.rows import Row
from placekit_compare.statistics import Interval, median_interval
from placekit_compare.svg import LETTER, Axis, Style, axis, element, markup, number, shortened, stacked
from placekit_core.contracts.units import percent, seconds

WIDTH = 360
"""Every plot is so wide, in units of about a pixel: a phone's width, so that texts are readable there."""
_LEFT, _RIGHT = 8.0, WIDTH - 10.0
_LINE, _STRIP, _STEP, _MARK = 15, 32, 4.0, 7.5
_LEVELS = 7
Styles = Mapping[str, Style]


def distribution(found: Sequence[Row], styles: Styles) -> str:
    """A strip for each row: a mark for every seed, the median as a line, its interval as a bar.

    Lines across show the proven bound and the best single device, if all rows share them and they are near the values.
    """
    found = [row for row in found if row.values]
    values = [v for row in found for v in row.values]
    unit, scale = _unit(max(values))
    known = {
        ("proven bound", "bound"): {r.first.bound_s for r in found},
        ("best single device", "device"): {r.one_device_s for r in found},
    }
    lines = [(text, kind, each.pop()) for (text, kind), each in known.items() if len(each) == 1]  # what all rows share
    near = [(f"{text} {seconds(v)}", kind, v) for text, kind, v in lines if v is not None and _near(v, values)]
    across = axis([*values, *(v for _, _, v in near)], _LEFT, _RIGHT, axis(values, 0, 1).log)
    top = 4.0 + _LINE * len(near)
    bottom = top + len(found) * (_LINE + _STRIP)
    parts = [_below(across, top, bottom, f"step time, {unit}", scale)]
    labels = [_label(across(value), _LINE * (i + 1) - 3, text) for i, (text, _, value) in enumerate(near)]
    headings = [(top + i * (_LINE + _STRIP), row.label, seconds(row.median_s)) for i, row in enumerate(found)]
    words = [*labels, *(text for y, left, right in headings for text in _heading(y, left, right))]
    for label, (_, kind, value) in zip(labels, near, strict=True):
        parts.append(_path(_around(across(value), label.y - 9, bottom, words), f"reference {kind}"))
    parts += [text.drawn for text in words]
    for i, row in enumerate(found):
        y = top + i * (_LINE + _STRIP)
        marks = [(across(v), f"{row.label}, seed {seed}: {seconds(v)}", v) for seed, v in _by_seed(row)]
        middle = None if row.median_s is None else across(row.median_s)
        parts.append(_strip(y + _LINE + _STRIP / 2, marks, _pixels(across, row.interval), middle, styles[row.label]))
    return _svg(bottom + 34, "".join(parts), _described("Values of every seed", found))


def gaps(found: Sequence[Sequence[Row]], names: Sequence[str], styles: Styles) -> str:
    """A strip for each place: the median gap of each of its rows to the proven bound, and its interval. No place without rows."""
    largest = max(g for rows in found for row in rows for g in _gaps(row))
    log = largest > 3
    base = 1.0 if log else 0.0  # on a logarithmic axis, value / bound is drawn, which is gap + 1
    across = Axis(base, axis([base, base + (largest or 0.01)], 0, 1, log).high, _LEFT + 6, _RIGHT, log)
    bottom = 4.0 + len(found) * (_LINE + _STRIP)
    ticks = [(across(t), percent(t - base).replace(".0%", "%")) for t in across.ticks(5)]
    parts = [_grid(ticks, 4.0, bottom, "gap to the proven bound" + (", logarithmic" if log else ""))]
    for i, (rows, name) in enumerate(zip(found, names, strict=True)):
        y = 4.0 + i * (_LINE + _STRIP)
        parts += [text.drawn for text in _heading(y, name)]
        centres = [across(base + row.gap) for row in rows if row.gap is not None]
        levels = stacked(centres, _MARK, _LEVELS)
        for row, x, level in zip(rows, centres, levels, strict=True):
            height = y + _LINE + _STRIP / 2 + level * _STEP
            interval, style = median_interval(_gaps(row)), styles[row.label]
            bar = ""
            if interval is not None:
                ends = across(base + interval.low), across(base + interval.high)
                bar = _path(f"M{number(ends[0])} {number(height)}H{number(ends[1])}", "range")
            text = f"{name}: {row.label}, gap {percent(row.gap)}"
            parts.append(_group(style, bar + style.mark(x, height, text, gap=repr(row.gap))))
    words = "; ".join(f"{name}: {', '.join(f'{r.label} {percent(r.gap)}' for r in rows)}" for rows, name in
                      zip(found, names, strict=True))  # fmt: skip
    return _svg(bottom + 34, "".join(parts), ("Gaps to the proven bound", words))


def curves(found: Sequence[tuple[Row, Sequence[History]]], name: str, styles: Styles) -> str:
    """The best value so far against `name` (evaluations or seconds): the median over runs in steps, its interval as a band.

    A mark is where the searches ended, over a bar for the last interval; what they found is drawn on to the right as a thin line.
    """
    lines = [(row, median_curve(histories, name)) for row, histories in found]
    lines = [(row, points) for row, points in lines if points]
    values = [v for _, points in lines for p in points for v in (p.low_s, p.high_s)]
    least = min((p.x for _, points in lines for p in points if p.x > 0), default=1.0)
    xs = [max(p.x, least) for _, points in lines for p in points]
    up, across = axis(values, 196.0, 18.0), axis(xs, 46.0, _RIGHT, log=True)
    unit, scale = _unit(max(values))
    ticks = [(across(t), _plain(t)) for t in across.ticks(4)]
    words = "seconds of searching" if name == "seconds" else name
    parts = [_grid(ticks, 18, 196, f"{words}, logarithmic"), _text(4, 10, f"best step time so far, {unit}")]
    for t in up.ticks(7):
        y = number(up(t))
        parts += [_path(f"M46 {y}H{number(_RIGHT)}", "grid"), _text(42, up(t) + 4, _plain(t * scale), "end")]
    for row, points in lines:
        drawn = _thinned([(across(max(p.x, least)), p) for p in points])
        style = styles[row.label]
        x, last = drawn[-1]
        end = f"M{number(x)} {number(up(last.median_s))}H{number(_RIGHT)}"
        text = f"{row.label}: {seconds(last.median_s)} after {_plain(last.x)} {words}"
        band = _band(drawn, up) if any(p.high_s > p.low_s for _, p in drawn) else ""
        line = _path(_steps([(x, up(p.median_s)) for x, p in drawn]), "line", **style.dashes)
        ends = _path(f"M{number(x)} {number(up(last.low_s))}V{number(up(last.high_s))}", "range")
        parts.append(_group(style, band + _path(end, "after") + line + ends + style.mark(x, up(last.median_s), text)))
    said = "; ".join(f"{row.label} {seconds(points[-1].median_s)}" for row, points in lines)
    return _svg(232, "".join(parts), (f"Best value against {words}", f"at the end: {said}"))


def _near(value: float, values: Sequence[float]) -> bool:
    """Whether an axis of these values has room for another one: it must not press them together."""
    low, high = min(values), max(values)
    if axis(values, 0, 1).log:
        room = math.sqrt(high / low)
        return low / room <= value <= high * room
    room = max(high - low, 0.25 * high)
    return low - room <= value <= high + room


def _by_seed(row: Row) -> list[tuple[int, float]]:
    """(seed, value) of the seeds with a placement that fits."""
    seeds = sorted({r.seed for r in row.runs if r.value_s is not None and r.fits})
    return list(zip(seeds, row.values, strict=True))


def _gaps(row: Row) -> list[float]:
    return [r.gap for r in row.runs if r.gap is not None]


def _strip(
    y: float,
    marks: Sequence[tuple[float, str, float]],
    ends: tuple[float, float] | None,
    middle: float | None,
    style: Style,
) -> str:
    """The marks (pixel, text, value) of one row, over the bar of its interval and the line of its median."""
    parts = []
    if ends is not None:
        x, width = ends[0] - 1, ends[1] - ends[0] + 2
        parts.append(element("rect", x=number(x), y=number(y - 6), width=number(width), height=12, rx=2, class_="band"))
    if middle is not None:
        parts.append(_path(f"M{number(middle)} {number(y - 14)}V{number(y + 14)}", "median"))
    levels = stacked([x for x, _, _ in marks], _MARK, _LEVELS)
    parts += [
        style.mark(x, y + level * _STEP, text, seconds=repr(value))
        for (x, text, value), level in zip(marks, levels, strict=True)
    ]
    return _group(style, "".join(parts))


def _pixels(across: Axis, interval: Interval | None) -> tuple[float, float] | None:
    return None if interval is None else (across(interval.low), across(interval.high))


class _Words(NamedTuple):
    """A piece of text: its ends, its baseline, and how it is drawn."""

    left: float
    right: float
    y: float
    drawn: str


def _heading(y: float, left: str, right: str = "") -> list[_Words]:
    """The line of text above a strip."""
    y += 11
    wide = (len(right) + 1) * LETTER
    name = shortened(left, _RIGHT - _LEFT - wide - LETTER)
    found = [_Words(_LEFT, _LEFT + (len(name) + 1) * LETTER, y, _text(_LEFT, y, name, class_="name"))]
    return [*found, _Words(_RIGHT - wide, _RIGHT, y, _text(_RIGHT, y, right, "end"))] if right else found


def _below(across: Axis, top: float, bottom: float, title: str, scale: float) -> str:
    return _grid([(across(t), _plain(t * scale)) for t in across.ticks(5)], top, bottom, title)


def _grid(ticks: Sequence[tuple[float, str]], top: float, bottom: float, title: str) -> str:
    """Vertical lines at the ticks (pixel, text), their texts, and the title of the axis below."""
    parts = [_path(f"M{number(x)} {number(top)}V{number(bottom)}", "grid") for x, _ in ticks]
    free = -math.inf
    for x, text in ticks:
        half = len(text) * LETTER / 2
        if x - half > free and x + half < WIDTH:
            parts.append(_text(x, bottom + 13, text, "middle"))
            free = x + half + LETTER
    return "".join(parts) + _text(_RIGHT, bottom + 28, title, "end")


def _label(x: float, y: float, text: str) -> _Words:
    """The text of a line across the strips, at the side where it has room."""
    wide = (len(text) + 1) * LETTER
    if x + wide < WIDTH:
        return _Words(x + 4, x + 4 + wide, y, _text(x + 4, y, text))
    return _Words(x - 4 - wide, x - 4, y, _text(x - 4, y, text, "end"))


def _around(x: float, top: float, bottom: float, words: Sequence[_Words]) -> str:
    """A line down that leaves out the texts which it would strike through."""
    parts = []
    for text in sorted((w for w in words if w.left - 2 < x < w.right + 2), key=lambda w: w.y):
        parts.append(f"M{number(x)} {number(top)}V{number(text.y - 11)}")
        top = text.y + 4
    return "".join([*parts, f"M{number(x)} {number(top)}V{number(bottom)}"])


def _thinned(drawn: Sequence[tuple[float, Point]]) -> list[tuple[float, Point]]:
    """The first point, and the last one of every half pixel."""
    kept = [drawn[0]]
    for x, point in drawn[1:]:
        if len(kept) > 1 and round(2 * x) == round(2 * kept[-1][0]):
            kept.pop()
        kept.append((x, point))
    return kept


def _steps(points: Sequence[tuple[float, float]]) -> str:
    """A path that keeps each height until the next point."""
    (x, y), *rest = points
    return f"M{number(x)} {number(y)}" + "".join(f"H{number(x)}V{number(y)}" for x, y in rest)


def _band(drawn: Sequence[tuple[float, Point]], up: Axis) -> str:
    """The area between the ends of the intervals."""
    upper = _steps([(x, up(p.high_s)) for x, p in drawn])
    lower = "".join(f"V{number(up(p.low_s))}H{number(x)}" for x, p in reversed(drawn[:-1]))
    return _path(f"{upper}{lower}Z", "band")


def _unit(largest: float) -> tuple[str, float]:
    """The unit for values up to `largest` seconds, and how many of it are a second."""
    return next(((u, s) for u, s in (("s", 1.0), ("ms", 1e3)) if largest * s >= 1), ("µs", 1e6))


def _plain(value: float) -> str:
    """A number without an exponent where it is short."""
    return f"{value:.6g}" if 1e-4 <= abs(value) < 1e6 or not value else f"{value:g}"


def _described(what: str, found: Sequence[Row]) -> tuple[str, str]:
    return what, "; ".join(f"{row.label}: median {seconds(row.median_s)} over {len(row.values)} seeds" for row in found)


def _group(style: Style, inner: str) -> str:
    return markup("g", inner, class_=style.colour)


def _path(d: str, class_: str, **attributes: object) -> str:
    return element("path", d=d, class_=class_, **attributes)


def _text(x: float, y: float, text: str, anchor: str = "start", **attributes: object) -> str:
    return element("text", text, x=number(x), y=number(y), text_anchor=anchor, **attributes)


def _svg(height: float, inner: str, texts: tuple[str, str]) -> str:
    """The picture, with a title and a description for those who do not see it."""
    said = element("title", texts[0]) + element("desc", texts[1])
    return markup(
        "svg", said + inner, class_="plot", viewBox=f"0 0 {WIDTH} {number(height)}", role="img",
        aria_label=f"{texts[0]}. {texts[1]}",
    )  # fmt: skip
