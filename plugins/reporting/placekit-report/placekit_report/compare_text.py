"""The tables that `placekit compare` prints to a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from placekit_core import Registry
from placekit_core.cli import console
from placekit_core.cli.console import table, width, wrapped
from placekit_core.contracts.result import compared
from placekit_core.contracts.units import format_value, percent
from placekit_report.compare_labels import NUMBERED
from placekit_report.compare_ranking import beats_none, contests, difference, doubt
from placekit_report.compare_rows import Row, load, rows, rows_by_table
from placekit_report.compare_statistics import Interval, overlap

ONCE = {
    "workload": "{}",
    "cluster": "on {}",
    "backend": "backend {}",
    "policy": "policy {}",
    "bound": "bound {}",
    "one device": "one device {}",
    "seeds": "number of seeds {}",
}
"""Columns that become words above the table if all rows agree."""
TEXTS = ("workload", "cluster", "backend", "policy")
"""The columns of text, which come first; the others are numbers."""
ONE_DEVICE = "vs one device"
"""The column that compares with the best single device; the column `one device` names it."""


def show_folder(folder: Path, registry: Registry) -> None:
    """Print the table of the runs at or below a folder, and name the results that cannot be read."""
    results, _ = load([folder], may_be_empty=True)
    print()
    show(rows(list(results.values()), registry))


def show(table_rows: list[Row]) -> None:
    """Print a table per workload, machine, backend and objective, and its best; one table if none of them has several rows."""
    found = rows_by_table(table_rows)
    single = all(len(each) == 1 for each in found)
    for number, each in enumerate([table_rows] if single and table_rows else found):
        print("\n" if number else "", end="")
        _show_table(each)
        for contest in contests(each):
            print(wrapped(best(contest)))
            if beats_none(contest):
                print(wrapped(f"no method beats the best single device, {_one_device(contest[0])}"))
    for row in table_rows:
        if row.folders and NUMBERED.search(row.label):
            print(wrapped(f"{row.label}: {', '.join(map(str, row.folders))}"))
    if text := coverage(table_rows):
        print(wrapped(text))


def coverage(table_rows: Sequence[Row]) -> str:
    """The probability that the intervals of these rows hold; empty without intervals."""
    found = {len(row.values): row.interval.coverage for row in table_rows if row.interval}
    of = [f"{100 * c:.4g}% with {n} seeds" for n, c in sorted(found.items())]
    return f"an interval holds the median with a probability of {', '.join(of)}" if of else ""


def _show_table(found: Sequence[Row]) -> None:
    once = ONCE if len(found) > 1 else {k: v for k, v in ONCE.items() if k != "policy"}
    columns, cells = cells_of(found)
    narrower = [
        (columns, cells),
        without(columns, cells, "one device"),
        without(columns, cells, "one device", ONE_DEVICE),
    ]
    shown = next((each for each in narrower if _fits(*each, once)), narrower[0])
    table(*shown, left=len(TEXTS), once=once)
    first = found[0]
    if ONE_DEVICE in columns and ONE_DEVICE not in shown[0] and first.median_s and first.one_device_s is not None:
        words = compared(first.median_s, first.one_device_s, unit=first.first.unit)
        print(wrapped(f"{first.label} is {words} the best single device, {_one_device(first)}"))


def _fits(columns: Sequence[str], cells: Sequence[Sequence[str]], once: Mapping[str, str]) -> bool:
    """Whether the terminal is as wide as the table, with its headings wrapped."""
    total = -2
    for i, head in enumerate(columns):
        texts = [row[i] for row in cells]
        if head not in once or len(set(texts)) > 1:
            total += 2 + max(map(width, [*head.split(), *texts]))
    return total <= console.columns()


def without(
    columns: Sequence[str], cells: Sequence[Sequence[str]], *left_out: str
) -> tuple[list[str], list[list[str]]]:
    """The columns and cells of a table without some columns."""
    kept = [i for i, head in enumerate(columns) if head not in left_out]
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in cells]


def cells_of(found: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The columns of a table, text columns first, and the cells of its rows."""
    columns: dict[str, Callable[[Row], str]] = {
        "workload": lambda row: row.first.workload,
        "cluster": lambda row: row.first.cluster,
        "backend": lambda row: row.backend,
        "policy": name,
        "median": lambda row: row.no_value_text if row.median_s is None else format_value(row.median_s, row.first.unit),
        "interval": lambda row: extent(row.interval, row.first.unit),
        "bound": lambda row: format_value(row.first.bound_s, row.first.unit),
        "gap": lambda row: percent(row.gap),
        "one device": _one_device,
        ONE_DEVICE: lambda row: "-" if row.gain is None else _signed(row.gain),
        "evals": lambda row: f"{row.evaluations:.0f}",
        "seconds": lambda row: f"{row.search_s:.1f}",
        "seeds": lambda row: f"{len(row.seeds)}",
    }
    if not any(row.interval for row in found):
        del columns["interval"]
    if all(row.gain is None for row in found):
        del columns["one device"], columns[ONE_DEVICE]
    return list(columns), [[cell(row) for cell in columns.values()] for row in found]


def _one_device(row: Row) -> str:
    """Seconds of the best single device, and its name."""
    return format_value(row.one_device_s, row.first.unit) + (f" ({row.one_device})" if row.one_device else "")


def _signed(ratio: float) -> str:
    """A percentage with its sign; `0.0%` if none of its digits is left."""
    text = f"{100 * ratio:+.1f}%"
    return "0.0%" if text in ("+0.0%", "-0.0%") else text


def name(row: Row) -> str:
    """The row's label, with the status of its runs and the number that do not fit."""
    special = [row.first.status] if row.first.status != "finished" else []
    if row.unfit and row.values:
        special.append(f"{row.unfit} of {len(row.seeds)} do not fit")
    return row.label + (f" ({', '.join(special)})" if special else "")


def extent(interval: Interval | None, unit: str) -> str:
    """The ends of an interval, with one unit if they share it."""
    if interval is None:
        return "-"
    low, high = format_value(interval.low, unit), format_value(interval.high, unit)
    same = low.partition(" ")[2] == high.partition(" ")[2]
    return f"{low.partition(' ')[0] if same else low} … {high}"


def best(contest: Sequence[Row]) -> str:
    """The best row of a contest compared with the next one, and the reason if that is uncertain."""
    first, second = contest[0], contest[1]
    if first.unfit or second.unfit:
        row = first if first.unfit else second
        note = f"{row.unfit} of {len(row.seeds)} runs of {row.label} do not fit"
    elif first.interval is None or second.interval is None:
        note = "one seed"
    else:
        note = "intervals overlap" if overlap(first.interval, second.interval) else doubt(contest)
    return f"best: {difference(contest)}" + (f" ({note})" if note else "")
