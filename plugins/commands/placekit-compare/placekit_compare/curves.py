"""Curves of searches: the best value so far against evaluations or seconds, over the runs of a row."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from placekit_report.curves import FILE, read_history as read_rows

from placekit_compare.rows import Row
from placekit_compare.statistics import median_interval
from placekit_core import HISTORY

AXES = ("evaluations", "seconds")


@dataclass(frozen=True)
class History:
    """The improvements of one run, and its last row: evaluations, seconds of searching, best value so far in seconds."""

    evaluations: list[float]
    seconds: list[float]
    best_s: list[float]

    def at(self, axis: str, x: float) -> float | None:
        """The best value at `x`; None before the first one."""
        i = bisect.bisect_right(getattr(self, axis), x)
        return self.best_s[i - 1] if i else None


class Point(NamedTuple):
    """The median over runs at one point of the search, with its interval (the median itself for a single run)."""

    x: float
    median_s: float
    low_s: float
    high_s: float


def read_history(path: Path) -> History:
    """The history of a run of one program. Raises RunError if there is no readable file."""
    columns = [HISTORY.index(name) for name in ("evaluations", "seconds", "best_s")]
    lines = [tuple(row[i] for i in columns) for row in read_rows(path.parent)]
    lines = [line for line in lines if all(map(math.isfinite, line))]
    kept = [line for i, line in enumerate(lines) if i in (0, len(lines) - 1) or line[2] < lines[i - 1][2]]
    return History(*([line[column] for line in kept] for column in range(3)))


def histories(row: Row) -> list[History]:
    """The histories of the row's runs that fit and have one. Runs over several programs have none as a whole.

    Raises RunError for a damaged file.
    """
    found = []
    for run, folder in zip(row.runs, row.folders, strict=True):
        path = folder / FILE
        if run.fits and len(run.programs) == 1 and path.is_file():
            history = read_history(path)
            found += [history] if history.best_s else []
    return found


def median_curve(found: Sequence[History], axis: str) -> list[Point]:
    """Median and interval over runs at every improvement of one of them, from where all have a value."""
    xs = sorted({x for history in found for x in getattr(history, axis)})
    points = []
    for x in xs:
        values = [value for history in found if (value := history.at(axis, x)) is not None]
        if len(values) == len(found):
            middle, interval = statistics.median(values), median_interval(values)
            low, high = (interval.low, interval.high) if interval else (middle, middle)
            points.append(Point(x, middle, low, high))
    return points
