"""The timeline without scripts and on paper: a row per track, each column in the colour that takes most of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placekit_report.page.markup import Markup, duration, tag
from placekit_report.page.sections import Data

COLUMNS, TRACKS, OF_TRANSFERS = 300, 40, "ct"
LEAST = 0.15
"""A column in which less is busy stays empty."""


def still(program: Data) -> Markup | None:
    """The rows as SVG, stretched to the width of the page, and a line with the ends of the time axis."""
    t = program["timeline"]
    if t is None or not t["events"]["track"]:
        return None
    e = {key: np.asarray(t["events"][key]) for key in ("track", "start_s", "duration_s", "colour")}
    edges = np.linspace(0.0, t["end_s"] or 1.0, COLUMNS + 1)
    rows = []
    for track, name in enumerate(t["tracks"]["name"][:TRACKS]):
        mine = e["track"] == track
        drawn = row(e["start_s"][mine], e["duration_s"][mine], e["colour"][mine], edges)
        size = {"viewBox": f"0 0 {COLUMNS} 10", "preserveAspectRatio": "none", "aria-hidden": "true"}
        rows.append(tag("p", tag("span", name), tag("svg", drawn, **size)))
    more = len(t["tracks"]["name"]) - TRACKS
    if more > 0:
        rows.append(tag("p", tag("span", f"{more} more"), class_="soft"))
    axis = tag("p", tag("span"), tag("span", "0", tag("span", duration(t["end_s"]))), class_="axis")
    names = [tag("span", tag("i", class_=f"d c{c}"), n) for c, n in enumerate(t["colours"]["module"])]
    legend = tag("p", names, tag("span", tag("i", class_=f"d {OF_TRANSFERS}"), "transfer"), class_="legend")
    return tag("div", rows, axis, legend, class_="still")


def row(
    start: NDArray[np.float64], duration: NDArray[np.float64], colour: NDArray[np.int64], edges: NDArray[np.float64]
) -> list[Markup]:
    """One path per colour."""
    kinds = np.unique(colour)
    if not len(kinds):
        return []
    busy = np.stack([covered(start[colour == c], (start + duration)[colour == c], edges) for c in kinds])
    best = np.where(busy.sum(axis=0) >= LEAST, busy.argmax(axis=0), -1)
    cuts = np.flatnonzero(np.diff(best, prepend=-2, append=-2))
    paths: dict[int, list[str]] = {}
    for x, to in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        if best[x] >= 0:
            paths.setdefault(int(kinds[best[x]]), []).append(f"M{x} 0h{to - x}v10h{x - to}z")
    return [tag("path", d="".join(p), class_=f"c{c}" if c >= 0 else OF_TRANSFERS) for c, p in paths.items()]


def covered(start: NDArray[np.float64], end: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """[columns] the share of each column in which something runs."""

    def before(times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum of min(time, edge) over all times, for every edge."""
        times = np.sort(times)
        below = np.searchsorted(times, edges, side="right")
        return np.concatenate([[0.0], np.cumsum(times)])[below] + (len(times) - below) * edges

    found: NDArray[np.float64] = np.diff(before(end) - before(start)) / np.diff(edges)
    return found
