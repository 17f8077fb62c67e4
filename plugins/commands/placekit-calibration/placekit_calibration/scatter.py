"""Draws simulated over measured seconds, a point per placement, as Doppler (Yao et al. 2026, appendix H.1) does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter
from placekit_report import plots
from placekit_report.plots import INK
from placekit_report.style import COLOURS

from placekit_calibration.agreement import RANDOM, SEARCH, Fidelity
from placekit_core.contracts.units import percent

SIZE = 5.2  # inches
LOG = 4.0
"""Axes are logarithmic if the longest time is more than this many times the shortest."""
STYLE = {RANDOM: ("o", COLOURS[0]), SEARCH: ("^", COLOURS[1])}


def draw(path: Path, fidelity: Fidelity) -> None:
    """Write the figure as PNG or SVG, atomically; equal values give the same bytes."""
    plots.save(figure(fidelity), path)


def figure(fidelity: Fidelity) -> Figure:
    """The figure, without pyplot. Bars are standard deviations of the scaled passes; the line is perfect agreement."""
    with plots.style():
        return _figure(fidelity)


def _figure(fidelity: Fidelity) -> Figure:
    fig = plots.figure(SIZE, SIZE)
    ax = fig.subplots()
    ok = fidelity.compared
    both = np.concatenate([fidelity.measured_s[ok], fidelity.simulated_s[ok]])
    unit, scale = ("s", 1.0) if both.max() >= 1 else ("ms", 1e3) if both.max() >= 1e-3 else ("us", 1e6)
    spread = np.nan_to_num(fidelity.spread_s)
    ends = [fidelity.measured_s[ok] + sign * spread[ok] for sign in (-1, 1)]
    low, high = (f(np.concatenate([both, *ends])) * scale for f in (np.min, np.max))
    if low <= 0:  # a bar that is longer than its value
        low = both.min() * scale
    if low > 0 and high / low > LOG:
        ax.set(xscale="log", yscale="log")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(ScalarFormatter())
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_minor_formatter(NullFormatter())
        margins = low / 1.1, high * 1.1
    else:
        margin = 0.06 * (high - low) or 0.1 * high
        margins = low - margin, high + margin
    ax.plot(margins, margins, color=INK, linestyle=":", linewidth=1)
    for made, (marker, colour) in STYLE.items():
        rows = ok & np.array([m == made for m in fidelity.made])
        if rows.any():
            ax.errorbar(
                fidelity.measured_s[rows] * scale, fidelity.simulated_s[rows] * scale, xerr=spread[rows] * scale,
                fmt=marker, color=colour, markersize=5, elinewidth=0.8, alpha=0.85, label=made,
            )  # fmt: skip
    ax.set(xlim=margins, ylim=margins, aspect="equal", xlabel=f"measured ({unit})", ylabel=f"simulated ({unit})")
    ax.legend(loc="best")
    a = fidelity.agreement()
    title = ax.set_title(
        f"{fidelity.program} on {fidelity.cluster}, {a.placements} placements\n"
        f"Pearson {a.pearson:.2f}, Spearman {a.spearman:.2f}, mean error {percent(a.mean_error)}"
    )
    title.set_parse_math(False)
    return fig
