"""Ranks rows that may be compared (a *contest*), and tests whether the best is distinguishable from the others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from placekit_core.contracts.result import LEAST_GAIN
from placekit_core.contracts.units import format_value, percent
from placekit_report.compare_identity import contest_key
from placekit_report.compare_rows import Row
from placekit_report.compare_statistics import COVERAGE, ROUNDING, is_distinguishably_lower


def contests(table_rows: Sequence[Row]) -> list[list[Row]]:
    """Groups of at least two finished rows whose values may be compared, best first."""
    finished = [r for r in table_rows if r.median_s is not None and r.first.status == "finished"]
    finished.sort(key=lambda r: contest_key(r.first))
    groups = [sorted(g, key=lambda r: r.rank) for _, g in itertools.groupby(finished, lambda r: contest_key(r.first))]
    return [g for g in groups if len(g) > 1]


def winners(table_rows: Sequence[Row]) -> list[bool]:
    """For each row, whether it is distinguishably better than every other row of its contest."""
    best = [contest[0] for contest in contests(table_rows) if not doubt(contest)]
    return [any(row is one for one in best) for row in table_rows]


def doubt(contest: Sequence[Row]) -> str:
    """Why the best row of a contest is not distinguishable from the others; empty if it is."""
    first, others = contest[0], contest[1:]
    if first.unfit:
        return f"{first.unfit} of {len(first.seeds)} runs of {first.label} do not fit"
    few = [r.label for r in contest if r.interval is None or r.interval.coverage < COVERAGE]
    if few:
        return "fewer than six seeds" + (f" of {_some(few)}" if len(few) < len(contest) else "")
    near = [r.label for r in others if not is_distinguishably_lower(first.interval, r.interval)]
    return f"its interval overlaps that of {_some(near)}" if near else ""


def lead(contest: Sequence[Row]) -> str:
    """How much better the best row of a contest is than the next one: `1.0% below heft`."""
    first, second = contest[0], contest[1]
    if first.median_s is None or second.median_s is None:
        raise ValueError("a contest is between rows with values")
    less = 1 - first.median_s / second.median_s if second.median_s else 0.0
    if abs(less) < ROUNDING:
        return f"as good as {second.label}"
    size = percent(abs(less)) if abs(less) >= LEAST_GAIN else "less than 0.1%"
    return f"{size} {'below' if less > 0 else 'above'} {second.label}"


def beats_none(contest: Sequence[Row]) -> bool:
    """Whether no row of a contest is faster than the best single device."""
    gain = contest[0].gain
    return gain is not None and gain < ROUNDING


def difference(contest: Sequence[Row]) -> str:
    """The best row of a contest compared with the next one, in words."""
    return f"{contest[0].label} {format_value(contest[0].median_s, contest[0].first.unit)}, {lead(contest)}"


def verdict(contest: Sequence[Row]) -> str:
    """The best row compared with the next one, and whether the difference is distinguishable, as a sentence."""
    why = doubt(contest)
    return f"best: {difference(contest)}; {f'not distinguishable: {why}' if why else 'distinguishable from all others'}"


def _some(names: Sequence[str]) -> str:
    """The first three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
