"""Drawing: axes with round numbers, marks that differ in colour and shape, and SVG elements as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from placekit_report import style

COLOURS = 8
"""Colours of the palette that are used, for the classes `c0` to `c7`: its yellow is not seen on white."""
SHAPES = (
    "M-3.4 0a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0 -6.8 0Z",  # circle
    "M-3 -3H3V3H-3Z",  # square
    "M0 -3.9L3.8 2.9H-3.8Z",  # triangle
    "M0 -4.3L4.3 0L0 4.3L-4.3 0Z",  # diamond
    "M0 3.9L3.8 -2.9H-3.8Z",  # triangle that points down
    "M-1.3 -4H1.3V-1.3H4V1.3H1.3V4H-1.3V1.3H-4V-1.3H-1.3Z",  # plus
    "M-4 -2.2L-2.2 -4L0 -1.8L2.2 -4L4 -2.2L1.8 0L4 2.2L2.2 4L0 1.8L-2.2 4L-4 2.2L-1.8 0Z",  # cross
)
DASHES = ("", "7 3", "2 2.5", "9 2.5 2 2.5", "4 2", "12 3", "1 3")
LETTER = 5.9
"""Width of a letter of the size that plots use."""


@dataclass(frozen=True)
class Style:
    """The look of the `index`-th policy: colour, and shape and dashes as the second cue; 56 policies differ."""

    index: int

    @property
    def colour(self) -> str:
        """Name of a class of the style sheet."""
        return f"c{self.index % COLOURS}"

    @property
    def _second(self) -> int:
        return self.index % len(SHAPES)

    def mark(self, x: float, y: float, text: str = "", **data: object) -> str:
        """The mark of one value, with a text that appears under the pointer."""
        inner = element("title", text) if text else ""
        return markup(
            "path", inner, d=SHAPES[self._second], transform=f"translate({number(x)} {number(y)})", class_="mark",
            **{f"data-{name}": value for name, value in data.items()},
        )  # fmt: skip

    @property
    def dashes(self) -> dict[str, str]:
        """Attributes of lines."""
        dash = DASHES[self._second]
        return {"stroke-dasharray": dash} if dash else {}

    def key(self) -> str:
        """A small picture of a line and its mark, for legends."""
        line = element("path", d="M1 6H33", class_="line", **self.dashes)
        return markup(
            "svg",
            line + self.mark(17, 6),
            class_=f"key {self.colour}",
            viewBox="0 0 34 12",
            aria_hidden="true",
        )


def palette() -> str:
    """The rules of the classes of colours: a little darker on a white page, and lighter on a dark one, so that all are seen."""
    rules = [f".c{i} {{ color: var(--c{i}); }}" for i in range(COLOURS)]
    light, dark = (
        "".join(f" --c{i}: {_mixed(c, end, share)};" for i, c in enumerate(style.COLOURS[:COLOURS]))
        for end, share in ((0, 0.15), (255, 0.2))
    )
    return "\n".join([f":root {{{light} }}", f"@media (prefers-color-scheme: dark) {{ :root {{{dark} }} }}", *rules])


def _mixed(colour: str, end: int, share: float) -> str:
    """A colour with a share of black (0) or white (255)."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round((1 - share) * part + share * end):02x}" for part in parts)


@dataclass(frozen=True)
class Axis:
    """Maps values from `low` to `high` to pixels from `start` to `end`; `log` needs positive values."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        part = (self._f(value) - self._f(self.low)) / (self._f(self.high) - self._f(self.low))
        return self.start + part * (self.end - self.start)

    def _f(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def ticks(self, most: int) -> list[float]:
        """At most about `most` round values in the range."""
        return [t for t in (self._decades(most) if self.log else self._steps(most)) if self.low <= t <= self.high]

    def _steps(self, most: int) -> list[float]:
        step = _nice((self.high - self.low) / most)
        return [step * i for i in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]

    def _decades(self, most: int) -> list[float]:
        """Powers of ten; if fewer than three are in the range, also twice and five times these."""
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        if last - first >= 2:
            return [10.0**e for e in range(first, last + 1, math.ceil((last - first + 1) / most))]
        return [factor * 10.0**e for e in range(first - 1, last + 1) for factor in (1, 2, 5)]


def axis(values: Iterable[float], start: float, end: float, log: bool | None = None) -> Axis:
    """An axis for these values, with some room at both ends. `log` None: logarithmic if they span a factor of ten."""
    known = list(values)
    low, high = min(known), max(known)
    log = low > 0 and high / low > 10 if log is None else log
    if log:
        room = (high / low) ** 0.05 if high > low else 2.0
        return Axis(low / room, high * room, start, end, log=True)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return Axis(low - room, high + room, start, end)


def _nice(step: float) -> float:
    """The next larger of 1, 2, 2.5 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step * (1 - 1e-9))


def stacked(xs: Sequence[float], width: float, levels: int) -> list[int]:
    """A level for each mark, such that marks of this width do not cover one another as long as there are levels: 0, 1, -1, ..."""
    ends: list[float] = [-math.inf] * levels
    found = [0] * len(xs)
    for i in sorted(range(len(xs)), key=lambda i: xs[i]):
        free = next((level for level in range(levels) if ends[level] <= xs[i]), i % levels)
        ends[free] = xs[i] + width
        found[i] = (free + 1) // 2 * (1 if free % 2 else -1)
    return found


def number(value: float) -> str:
    """A coordinate: a tenth of a pixel is enough."""
    return f"{value:.1f}".removesuffix(".0")


def shortened(text: str, pixels: float) -> str:
    """The text without its middle, if it is wider than this."""
    most = max(int(pixels / LETTER), 8)
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def element(name: str, text: str = "", /, **attributes: object) -> str:
    """An element of HTML or SVG that holds text. `class_` stands for `class`, and `_` in other names for `-`."""
    return markup(name, escape(text, quote=False), **attributes)


def markup(name: str, inner: str = "", /, **attributes: object) -> str:
    """An element that holds markup; see `element`."""
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    text = "".join(f' {key}="{escape(str(value))}"' for key, value in given.items())
    return f"<{name}{text}>{inner}</{name}>"
