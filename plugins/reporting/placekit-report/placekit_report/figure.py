"""Draws profiles in the manner of Figures 8 and 9 of Mirhoseini et al. 2017: a column of charts per run, on the same axes.

The upper charts show what each device computes, in a colour per operation type; from the bottom up: forward (full), backward
(the same colour, lighter), update (hatched). Letters say the type where there is room. The lower charts show how long each
device is busy with copies. Lines mark the makespan.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch
from numpy.typing import NDArray

from placekit_core import PHASES, units
from placekit_report import plots, style
from placekit_report.plots import DPI as DPI, INK
from placekit_report.profile import OTHER, Profile, top_types

COLOURS = style.COLOURS[:8]
"""Colours of the named operation types; all others are grey."""
GREY, LINE = style.GREY, INK
LETTERED = 0.05
"""Parts of bars that are this large, relative to the axis, have the letter of their type."""
ALPHA, HATCH = (1.0, 0.55, 0.25), ("", "", "////")
"""Opacity and hatching of the phases."""
LEGEND, MARGIN, HEIGHT, LINE_HEIGHT = 3.1, 0.75, 5.2, 0.16  # inches
LETTERS = 12.5
"""Letters of a title per inch."""


def draw(path: Path, profiles: Mapping[str, Profile]) -> None:
    """Write the figure as PNG or SVG, atomically; equal profiles give the same bytes."""
    plots.save(figure(profiles), path)


def figure(profiles: Mapping[str, Profile]) -> Figure:
    """The figure of these runs, by their names. It is made without pyplot, which would need a display or keep the figure."""
    with plots.style():
        return _figure(profiles)


def _figure(profiles: Mapping[str, Profile]) -> Figure:
    runs = list(profiles.values())
    names = top_types(runs, len(COLOURS))
    widths = [max(min(1.2 + 0.5 * len(p.devices), 12.0), _title_width(name)) for name, p in profiles.items()]
    titles = [
        [*_lines(name, w), *_lines(f"{p.cluster}, {units.seconds(p.makespan_s)}", w)]
        for (name, p), w in zip(profiles.items(), widths, strict=True)
    ]
    width, above = MARGIN + sum(widths) + LEGEND, 0.55 + LINE_HEIGHT * max(map(len, titles))
    height = HEIGHT + above
    fig = plots.figure(width, height)
    fig.set_layout_engine("none")
    unit, scale = _unit(max(p.makespan_s for p in runs))
    upright = max(len(p.devices) for p in runs) > 5
    axes = fig.subplots(
        2, len(runs), squeeze=False, sharey="row", sharex="col",
        gridspec_kw={
            "left": MARGIN / width, "right": 1 - LEGEND / width, "bottom": 0.16 if upright else 0.07, "top": 1 - above / height,
            "wspace": 0.08, "hspace": 0.12, "width_ratios": widths, "height_ratios": (2, 1),
        },
    )  # fmt: skip
    for column, p in enumerate(runs):
        upper, lower = axes[0, column], axes[1, column]
        _text(upper.set_title("\n".join(titles[column]), fontsize=9))
        _computation(upper, names, p.by_type(names) * scale, LETTERED * scale * max(p.makespan_s for p in runs))
        x = np.arange(len(p.devices))
        lower.bar(x, [d.copy_s * scale for d in p.devices], 0.7, color=GREY)
        lower.set_xticks(x, [d.device for d in p.devices], rotation=90 if upright else 0)
        for ax in (upper, lower):
            ax.axhline(p.makespan_s * scale, color=LINE, linestyle=":", linewidth=1)
            ax.grid(axis="x", visible=False)
        for label in lower.get_xticklabels():
            label.set_parse_math(False)
    axes[0, 0].set_ylabel(f"operations ({unit})", fontsize=9)
    axes[1, 0].set_ylabel(f"copies ({unit})", fontsize=9)
    _text(fig.suptitle(runs[0].program, fontsize=11))
    _legend(fig, axes[0, -1], names, np.sum([p.by_type(names).sum(axis=2) for p in runs], axis=0))
    return fig


def _text(text: object) -> None:
    """Names are shown as they are: a `$` begins no formula."""
    text.set_parse_math(False)  # type: ignore[attr-defined]


def _end(name: str, length: int) -> str:
    """`name`, cut to its last `length` characters: the end of a long path says most."""
    return name if len(name) <= length else f"…{name[1 - length :]}"


def _title_width(name: str) -> float:
    """Inches that the longest word of a title needs; a path may be longer."""
    return min(max(map(len, name.split()), default=0) / LETTERS + 0.2, 4.0)


def _lines(text: str, width: float) -> list[str]:
    """Lines of a title for a column of `width` inches."""
    letters = int(LETTERS * (width - 0.2))
    lines = textwrap.wrap(text, letters, break_long_words=False, break_on_hyphens=False)
    return [_end(line, letters) for line in lines]


def _unit(longest_s: float) -> tuple[str, float]:
    """Unit of the axes, and how many of them a second has."""
    return ("s", 1.0) if longest_s >= 1 else ("ms", 1e3) if longest_s >= 1e-3 else ("us", 1e6)


def _style(colour: str, phase: int) -> dict[str, Any]:
    """How operations of one type and phase are filled."""
    hatch = HATCH[phase]
    return {
        "facecolor": (colour, ALPHA[phase]),
        "hatch": hatch,
        "edgecolor": colour if hatch else "none",
        "linewidth": 0,
    }


def _colours(names: Sequence[str]) -> list[str]:
    """Colours of the named operation types, and of all others."""
    return [*COLOURS[: len(names)], GREY]


def _letters(names: Sequence[str]) -> list[str]:
    """Letters of the named operation types, and none for all others."""
    return [*"ABCDEFGH"[: len(names)], ""]


def _computation(ax: Axes, names: Sequence[str], values: NDArray[np.float64], least: float) -> None:
    """Stacked bars of [types, phases, D] values; those longer than `least` have letters."""
    x, bottom = np.arange(values.shape[2]), np.zeros(values.shape[2])
    for letter, row, colour in zip(_letters(names), values, _colours(names), strict=True):
        for phase, part in enumerate(row):
            if part.any():
                ax.bar(x, part, 0.7, bottom, **_style(colour, phase))
                ink = style.on(colour) if ALPHA[phase] == 1 else INK
                for d in np.flatnonzero(part > least):
                    middle = bottom[d] + part[d] / 2
                    ax.text(x[d], middle, letter, color=ink, fontsize=7, ha="center", va="center_baseline")
                bottom += part


def _legend(fig: Figure, ax: Axes, names: Sequence[str], values: NDArray[np.float64]) -> None:
    """Types in the order of the stack, phases, and the line; `values` [types, phases] are 0 where no bar is.

    Each entry looks like the bars: a type has the patches of its phases, a phase those of the first types that have it.
    """
    swatches = [
        [Patch(**_style(colour, phase)) if value else None for phase, value in enumerate(row)]
        for row, colour in zip(values, _colours(names), strict=True)
    ]
    labels = [f"{letter}  {_end(name, 34)}" for letter, name in zip(_letters(names), names, strict=False)]
    shown = [*zip([*labels, OTHER], swatches, strict=True)][::-1]
    shown += [*zip(PHASES, ([row[i] for row in swatches] for i in range(len(PHASES))), strict=True)][::-1]
    entries: list[tuple[str, Any]] = [(name, tuple(filter(None, row))[:3]) for name, row in shown if any(row)]
    entries.append(("makespan", ax.axhline(np.nan, color=LINE, linestyle=":", linewidth=1)))
    place = ax.get_position()
    side_by_side = {tuple: HandlerTuple(ndivide=None, pad=0)}
    legend = fig.legend(
        [handle for _, handle in entries], [name for name, _ in entries], handler_map=side_by_side, loc="upper left",
        bbox_to_anchor=(place.x1, place.y1), fontsize=8,
    )  # fmt: skip
    for text in legend.get_texts():
        _text(text)
