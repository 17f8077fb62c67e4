"""Draws predicted against measured speeds as an SVG: one point per row, a colour per kind, both axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from placekit_accuracy.predict import Prediction

SIZE, LEFT, TOP = 460, 60, 20
WIDTH, HEIGHT = LEFT + SIZE + 230, TOP + SIZE + 50
STYLE = (
    "<style>.p{fill:#fff}.g{fill:#ddd}text{fill:#111}"
    "@media (prefers-color-scheme:dark){.p{fill:#0d1117}.g{fill:#333}text{fill:#f0f6fc}}</style>"
)
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#ee8866", "#888888", "#bbaa99")
"""Distinct for colour-blind readers (Paul Tol's bright scheme and two more)."""


def chart(predictions: Sequence[Prediction]) -> str:
    """The picture. The diagonal is a perfect prediction, the band beside it 20%."""
    kinds = sorted({p.row.kind for p in predictions})
    speeds = [v for p in predictions for v in (p.row.tokens_per_s, p.tokens_per_s)] or [1.0]
    low, high = math.floor(math.log10(min(speeds))), math.ceil(math.log10(max(speeds)))
    scale = SIZE / max(high - low, 1)

    def x(speed: float) -> float:
        return round(LEFT + (math.log10(speed) - low) * scale, 1)

    def y(speed: float) -> float:
        return round(TOP + SIZE - (math.log10(speed) - low) * scale, 1)

    first, last = 10.0**low, 10.0**high
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        "<title>Predicted against measured tokens per second</title>",
        STYLE,
        f'<rect class="p" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<clipPath id="plot"><rect x="{LEFT}" y="{TOP}" width="{SIZE}" height="{SIZE}"/></clipPath>',
        f'<path clip-path="url(#plot)" class="g" d="M{x(first)} {y(first * 1.2)}L{x(last)} {y(last * 1.2)}'
        f'L{x(last)} {y(last * 0.8)}L{x(first)} {y(first * 0.8)}Z"/>',
        f'<path stroke="#888888" d="M{x(first)} {y(first)}L{x(last)} {y(last)}"/>',
        f'<rect x="{LEFT}" y="{TOP}" width="{SIZE}" height="{SIZE}" fill="none" stroke="#888888"/>',
    ]
    for exponent in range(low, high + 1):
        label = f"{10.0**exponent:g}"
        out.append(f'<text x="{x(10.0**exponent)}" y="{TOP + SIZE + 18}" text-anchor="middle">{label}</text>')
        out.append(f'<text x="{LEFT - 6}" y="{y(10.0**exponent) + 4}" text-anchor="end">{label}</text>')
    out.append(f'<text x="{LEFT + SIZE / 2}" y="{HEIGHT - 8}" text-anchor="middle">measured tokens per second</text>')
    middle = TOP + SIZE / 2
    out.append(f'<text transform="translate(14 {middle}) rotate(-90)" text-anchor="middle">predicted</text>')
    for i, kind in enumerate(kinds):
        own, colour = [p for p in predictions if p.row.kind == kind], COLOURS[i % len(COLOURS)]
        points = "".join(f'<circle cx="{x(p.row.tokens_per_s)}" cy="{y(p.tokens_per_s)}" r="2.5"/>' for p in own)
        out.append(f'<g fill="{colour}" fill-opacity="0.6" clip-path="url(#plot)">{points}</g>')
        line = TOP + 12 + 20 * i
        out.append(f'<circle cx="{LEFT + SIZE + 16}" cy="{line - 4}" r="5" fill="{colour}"/>')
        out.append(f'<text x="{LEFT + SIZE + 28}" y="{line}">{escape(kind)} ({len(own)})</text>')
    line = TOP + 12 + 20 * (len(kinds) + 1)
    out.append(f'<rect x="{LEFT + SIZE + 8}" y="{line - 12}" width="16" height="12" class="g"/>')
    out.append(f'<text x="{LEFT + SIZE + 28}" y="{line - 2}">within 20%</text>')
    return "\n".join([*out, "</svg>", ""])
