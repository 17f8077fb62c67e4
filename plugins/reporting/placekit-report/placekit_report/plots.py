"""The style of all plots with matplotlib: readable without colours, and in the dark.

Make a figure within `style()`, with `figure(width, height)`, and write it with `save(fig, path)`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from placekit_core import PlacekitError, write_atomically
from placekit_report.style import COLOURS, LINES, MARKERS

INK, SOFT, PAPER = "#1f2328", "#d1d9e0", "#ffffff"
"""Text and axes, lines of the grid, background."""
DARK = {INK: "#f0f6fc", SOFT: "#3d444d", PAPER: "#0d1117"}
DPI = 110
SIZES = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}
RC: Any = {
    **SIZES,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    "figure.facecolor": PAPER, "axes.facecolor": PAPER, "savefig.facecolor": PAPER,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": SOFT, "grid.linewidth": 0.6, "legend.frameon": False, "lines.linewidth": 1.6,
    "font.family": ["DejaVu Sans"], "svg.fonttype": "none", "svg.hashsalt": "placekit",
}  # fmt: skip


@contextmanager
def style() -> Iterator[None]:
    """Within this context, figures are made in the style of placekit."""
    with matplotlib.rc_context(RC):
        yield


def figure(width: float, height: float) -> Figure:
    """A figure of this size in inches, without pyplot, which would need a display or keep the figure."""
    fig = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(fig)
    return fig


def series(index: int) -> dict[str, Any]:
    """How the line of a series is drawn: by colour, dashes and marker, each of which tells it apart."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": LINES[index % len(LINES)], **marker(index)}


def marker(index: int) -> dict[str, Any]:
    """The marker of a series, about ten of them along its line."""
    return {"marker": MARKERS[index % len(MARKERS)], "markersize": 4.5, "markevery": 0.1}


def panels(fig: Figure, count: int, columns: int) -> list[Axes]:
    """`count` axes, in rows of `columns`."""
    axes = list(fig.subplots(-(-count // columns), columns, squeeze=False).flatten())
    for ax in axes[count:]:
        ax.remove()
    return axes[:count]


def save(fig: Figure, path: Path) -> None:
    """Write a figure as SVG or PNG, by the ending of its name, atomically; equal figures give equal bytes.

    An SVG follows the reader's system, light or dark; a PNG has a white background. Raises PlacekitError for another ending.
    """
    write = {".svg": _svg, ".png": _png}.get(path.suffix.lower())
    if write is None:
        raise PlacekitError(f"no way to draw {path.name}", "give a name that ends with .svg or .png")
    write_atomically(path, write(fig))


def _png(fig: Figure) -> bytes:
    image = io.BytesIO()
    fig.savefig(image, format="png", dpi=DPI, metadata={"Software": None})
    return image.getvalue()


def _svg(fig: Figure) -> bytes:
    """Without date and version; and with rules that replace the colours of the style if the reader's system is dark."""
    text = io.StringIO()
    with style():
        fig.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    rules = [
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    ]
    dark = f"<style>@media (prefers-color-scheme:dark){{{''.join(rules)}}}</style>\n"
    plain = re.sub(r"<metadata>.*?</metadata>\s*|<!DOCTYPE.*?>\s*", "", text.getvalue(), count=2, flags=re.DOTALL)
    fonts = plain.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")
    return fonts.replace("<defs>", f"{dark}<defs>", 1).encode()
