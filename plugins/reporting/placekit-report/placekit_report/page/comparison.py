"""The page of a comparison: a table for each workload and machine, and the searches of its rows, in the look of a report."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from placekit_core import RunError, __version__, units
from placekit_report.compare_ranking import beats_none, contests, verdict, winners
from placekit_report.compare_rows import Row, rows_by_table
from placekit_report.compare_text import TEXTS, cells_of, coverage
from placekit_report.curves import curve, read_history
from placekit_report.page.markup import Child, Markup, percent, quantity, table, tag
from placekit_report.page.page import html
from placekit_report.page.search_chart import search_chart

MOST_CURVES = 8
"""Rows whose search is drawn; more curves could not be distinguished."""


def comparison(table_rows: Sequence[Row], command: str, home: Path, lost: Sequence[tuple[Path, str]]) -> str:
    """The page as text. Links to reports are relative to the folder `home`; `lost` are jobs without a result, and why."""
    found = rows_by_table(table_rows)
    runs = sum(len(row.runs) for row in table_rows)
    title = f"Comparison of {runs} run{'' if runs == 1 else 's'}"
    head = tag("header", tag("h1", title), tag("div", tag("pre", tag("code", command)), class_="command"))
    body: list[Child] = [head, [_place(rows, home) for rows in found]]
    if lost:
        items = [tag("li", f"{path}: {why}") for path, why in lost]
        body.append(tag("section", tag("h3", "Jobs without a result"), tag("ul", items)))
    body.append(tag("footer", tag("p", f"placekit {__version__}. {coverage(table_rows)}", class_="soft")))
    return html(title, body)


def _place(rows: Sequence[Row], home: Path) -> Markup:
    """The rows of one workload, machine and backend."""
    first = rows[0].first
    name = f"{first.workload} on {first.cluster}, {rows[0].backend}"
    columns, cells = cells_of(rows)
    kept = [i for i, head in enumerate(columns) if head not in ("workload", "cluster", "backend")]
    lines: list[list[Child]] = []
    for best, line in zip(winners(rows), cells, strict=True):
        lines.append([tag("strong", line[i]) if best and columns[i] == "median" else line[i] for i in kept])
    numeric = [k for k, i in enumerate(kept) if columns[i] not in TEXTS]
    parts: list[Child] = [
        tag("h2", name),
        table([columns[i] for i in kept], lines, caption="Medians over the seeds", numeric=numeric),
        [tag("p", verdict(contest)) for contest in contests(rows)],
        [tag("p", "No method beats the best single device.") for contest in contests(rows) if beats_none(contest)],
    ]
    if chart := search_chart(_searches(rows), first.bound_s, first.unit):
        parts.append(tag("section", tag("h3", "Search"), chart))
    parts.append(tag("details", tag("summary", "All runs"), _runs(rows, home)))
    return tag("article", parts, data_program=name)


def _runs(rows: Sequence[Row], home: Path) -> Markup:
    """Every run, with a link to its report if it has one."""
    lines: list[list[Child]] = []
    for row in rows:
        for run, folder in sorted(zip(row.runs, row.folders, strict=True), key=lambda pair: (pair[0].seed, pair[1])):
            path = Path(os.path.relpath(folder, home.resolve())).as_posix()
            report = folder / "report.html"
            link = tag("a", path, href=quote(f"{path}/report.html")) if report.is_file() else path
            value = quantity(run.value_s, run.unit) if run.value_s is not None and run.fits else run.outcome
            lines.append([row.label, f"{run.seed}", value, percent(run.gap), units.seconds(run.seconds), link])
    heads = ["policy", "seed", "value", "gap", "search", "folder"]
    return table(heads, lines, caption="Runs", numeric=(1, 2, 3, 4))


def _searches(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The history of one run of each of the best rows: of the median seed; runs without a readable history are left out."""
    found = []
    for row in rows:
        fitting = [(r.value_s, r.seed, f) for r, f in zip(row.runs, row.folders, strict=True) if r.fits and r.value_s]
        if fitting and len(row.first.programs) == 1:
            _, seed, folder = sorted(fitting)[(len(fitting) - 1) // 2]
            with contextlib.suppress(RunError):
                found.append(curve(read_history(folder), seed, f"{row.label}, seed {seed}"))
    return [search for search in found if len(search["evaluations"]) > 1][:MOST_CURVES]
