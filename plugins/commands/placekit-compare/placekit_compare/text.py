"""The tables that `placekit compare` prints to a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from placekit_compare.rows import Row, contests, load, places, rows
from placekit_compare.statistics import Interval
from placekit_core import Registry
from placekit_core.cli.console import table, wrapped
from placekit_core.contracts.units import percent, seconds

ONCE = {
    "workload": "{}",
    "cluster": "on {}",
    "backend": "backend {}",
    "policy": "policy {}",
    "bound": "bound {}",
    "seeds": "number of seeds {}",
}
"""Columns that become words above the table if all rows agree."""


def show_folder(folder: Path, registry: Registry) -> None:
    """Print the table of the runs at or below a folder, and name the results that cannot be read."""
    results, _ = load([folder], may_be_empty=True)
    print()
    show(rows(list(results.values()), registry))


def show(table_rows: list[Row]) -> None:
    """Print a table per workload, machine, backend and objective, and its best; one table if none of them has several rows."""
    found = places(table_rows)
    single = all(len(each) == 1 for each in found)
    for number, each in enumerate([table_rows] if single and table_rows else found):
        print("\n" if number else "", end="")
        _show_table(each)
        for contest in contests(each):
            print(wrapped(best(contest)))
    if text := coverage(table_rows):
        print(wrapped(text))


def coverage(table_rows: Sequence[Row]) -> str:
    """What the intervals of these rows mean; empty if there is none."""
    found = {len(row.values): row.interval.coverage for row in table_rows if row.interval}
    of = [f"{100 * c:.4g}% with {n} seeds" for n, c in sorted(found.items())]
    return f"an interval holds the median with a probability of {', '.join(of)}" if of else ""


def _show_table(found: Sequence[Row]) -> None:
    columns, cells = cells_of(found)
    table(columns, cells, left=4, once=ONCE if len(found) > 1 else {k: v for k, v in ONCE.items() if k != "policy"})


def cells_of(found: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The columns of a table, the first four of them text, and the cells of its rows."""
    intervals = any(row.interval for row in found)
    cells = [
        [
            row.first.workload,
            row.first.cluster,
            row.backend,
            name(row),
            row.nothing if row.median_s is None else seconds(row.median_s),
            *([extent(row.interval)] if intervals else []),
            seconds(row.first.bound_s),
            percent(row.gap),
            f"{row.evaluations:.0f}",
            f"{row.search_s:.1f}",
            f"{len(row.seeds)}",
        ]
        for row in found
    ]
    columns = ["workload", "cluster", "backend", "policy", "median", *(["interval"] if intervals else []), "bound", "gap",
               "evals", "seconds", "seeds"]  # fmt: skip
    return columns, cells


def name(row: Row) -> str:
    """The row's label, with what is special about its runs."""
    special = [row.first.status] if row.first.status != "finished" else []
    if row.lost and row.values:
        special.append(f"{row.lost} of {len(row.seeds)} do not fit")
    return row.label + (f" ({', '.join(special)})" if special else "")


def extent(interval: Interval | None) -> str:
    """The ends of an interval, with one unit if they share it."""
    if interval is None:
        return "-"
    low, high = seconds(interval.low), seconds(interval.high)
    same = low.partition(" ")[2] == high.partition(" ")[2]
    return f"{low.partition(' ')[0] if same else low} … {high}"


def best(contest: Sequence[Row]) -> str:
    """The best row of a contest beside the next one."""
    first, second = contest[0], contest[1]
    if first.median_s is None or second.median_s is None:
        raise ValueError("a contest is between rows with values")
    less = 1 - first.median_s / second.median_s if second.median_s else 0.0
    difference = f"{percent(abs(less))} {'below' if less > 0 else 'above'} {second.label}"
    difference = difference if less else f"as good as {second.label}"
    if first.interval is None or second.interval is None:
        note = " (one seed)"
    else:
        note = " (intervals overlap)" if first.interval.high >= second.interval.low else ""
    if first.lost or second.lost:
        row = first if first.lost else second
        note = f" ({row.lost} of {len(row.seeds)} runs of {row.label} do not fit)"
    return f"best: {first.label} {seconds(first.median_s)}, {difference}{note}"
