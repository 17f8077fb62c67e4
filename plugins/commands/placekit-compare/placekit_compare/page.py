"""The page of `placekit compare --html`: tables and plots over runs and seeds, in one file without scripts or network."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from urllib.parse import quote

from placekit_compare.curves import AXES, History, histories
from placekit_compare.plots import Styles, curves, distribution, gaps
from placekit_compare.ranking import contests, doubt, lead, verdict, winners
from placekit_compare.rows import Row, places
from placekit_compare.svg import Style, element, markup, palette
from placekit_compare.text import ONCE, ONE_DEVICE, TEXTS, cells_of, coverage, name, without
from placekit_core import RunError
from placekit_core.contracts.units import percent

REPORT = "report.html"
"""The page of one run, which a logger may have written into its folder."""
_BATCHES = "A search reports at the end of every batch of evaluations, and a mark is where it ended."
MOST_CURVES = 8
"""Rows whose curves are drawn; more cannot be told apart."""


def page(table_rows: Sequence[Row], command: str, home: Path, lost: Sequence[tuple[Path, str]]) -> str:
    """The document. Links are relative to `home`, the folder of the file; `lost` are jobs without a result, and why."""
    styles = {label: Style(i) for i, label in enumerate(dict.fromkeys(row.label for row in _by_rank(table_rows)))}
    found = places(table_rows)
    count = sum(len(row.runs) for row in table_rows)
    title = f"{_count(count, 'run')} of {_count(len({row.first.workload for row in table_rows}), 'workload')}, compared"
    parts = [
        element("h1", title),
        markup("p", "made by " + element("code", command), class_="soft"),
        element("p", _truth(table_rows)),
        *_overview(found, styles),
        *(part for i, rows in enumerate(found) for part in _place(i, rows, found, styles, home)),
        *_lost(lost),
        element("h2", "How to read this"),
        *(element("p", text) for text in (*_HELP, *filter(None, [_sentence(coverage(table_rows))]))),
    ]
    head = [
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        element("title", title),
        markup("style", files("placekit_compare").joinpath("page.css").read_text(encoding="utf-8") + palette()),
    ]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n{chr(10).join(head)}\n</head>\n<body>\n{body}\n</body>\n</html>\n'
    )


_HELP = (
    "A row groups runs that differ only in their seed. Times are those of one step; the median is over the seeds.",
    "The best row is bold only where it is distinguishable from all others: every row has at least six seeds, and its interval"
    " does not overlap another one.",
    "In plots, every seed is a mark. Bars and bands are the intervals of medians, lines across the marks the medians. The"
    " proven bound (dashed) and the best single device (dotted) are shown where they are near the values. Rows of one"
    " label have the same colour and the same shape everywhere. A value appears under the pointer.",
)


def _overview(found: Sequence[Sequence[Row]], styles: Styles) -> list[str]:
    """The best of each workload, machine and backend, and the gaps of all rows to the bound."""
    heads = ["workload", "best", "median", "gap", ONE_DEVICE, "beside the next one", "distinguishable"]
    lines = []
    for number, rows in enumerate(found):
        valued = sorted((row for row in rows if row.values), key=lambda row: row.first.status != "finished")
        for contest in contests(rows) or [[row] for row in valued[:1]]:
            first = contest[0]
            cells = [
                element("a", _name(first, found), href=f"#place{number}"),
                _keyed(first.label, styles, name(first)),
            ]
            cells += [_number(first, head) or "-" for head in ("median", "gap", ONE_DEVICE)]
            if len(contest) > 1:
                why = doubt(contest)
                cells += [_escaped(lead(contest)), _escaped(f"no: {why}" if why else "yes")]
            lines.append(cells if len(contest) > 1 else [*cells, "-", "-"])
    if not lines:
        return []
    if all(row.gain is None for rows in found for row in rows):
        heads, lines = without(heads, lines, ONE_DEVICE)
    parts = [element("h2", "The best of each workload"), _table(heads, lines, ("workload", "best", *heads[-2:]))]
    known = [[row for row in rows if row.gap is not None] for rows in found]
    pairs = [(rows, _name(rows[0], found)) for rows in known if rows]
    if pairs:
        picture = gaps([rows for rows, _ in pairs], [name for _, name in pairs], styles)
        drawn = dict.fromkeys(row.label for rows, _ in pairs for row in rows)
        caption = "Medians of the gaps, with their intervals. At 0% a placement is proven to be the best."
        parts += [markup("div", _figure(picture, caption), class_="figures"), _legend(drawn, styles)]
    return parts


def _place(number: int, rows: Sequence[Row], found: Sequence[Sequence[Row]], styles: Styles, home: Path) -> list[str]:
    """The section of one workload, machine and backend."""
    shared, columns, cells = _shared(rows)
    lines = []
    for row, best, line in zip(rows, winners(rows), cells, strict=True):
        policy, median = (columns.index(head) for head in ("policy", "median"))
        texts = [_number(row, head) or _escaped(text) for head, text in zip(columns, line, strict=True)]
        texts[policy] = _keyed(row.label, styles, line[policy])
        texts[median] = f"<strong>{texts[median]}</strong>" if best else texts[median]
        lines.append(texts)
    return [
        element("h2", _name(rows[0], found), id=f"place{number}"),
        element("p", shared, class_="soft"),
        _table(columns, lines, TEXTS),
        *(element("p", _sentence(verdict(contest))) for contest in contests(rows)),
        *_figures(rows, styles),
        _runs(rows, home),
    ]


def _figures(rows: Sequence[Row], styles: Styles) -> list[str]:
    """The values of every seed, and the curves of the search."""
    if not any(row.values for row in rows):
        return []
    shown = [_figure(distribution(rows, styles), "Values of every seed, their medians and the intervals of these.")]
    known, notes = _histories(rows)
    if len(known) > MOST_CURVES:
        notes.append(f"the curves are those of the {MOST_CURVES} best of {len(known)} rows")
    known = known[:MOST_CURVES]
    for axis in AXES if known else ():
        caption = f"Medians over the seeds, and their intervals. {_BATCHES if axis == AXES[0] else ''}".rstrip()
        shown.append(_figure(curves(known, axis, styles), caption))
    legend = [_legend([row.label for row, _ in known], styles)] if known else []
    said = [element("p", _sentence("; ".join(notes)), class_="soft")] if notes else []
    return [markup("div", "".join(shown), class_="figures"), *legend, *said]


def _histories(rows: Sequence[Row]) -> tuple[list[tuple[Row, list[History]]], list[str]]:
    """The rows with the histories of their runs, and why some are missing. Damaged files are also named on stderr."""
    known: list[tuple[Row, list[History]]] = []
    notes, without_any = [], []
    for row in rows:
        if not row.values:
            continue
        try:
            found = histories(row)
        except RunError as e:
            print(f"placekit: {e}", file=sys.stderr)
            notes.append(f"no curve of {row.label}: a file of its history is damaged")
            continue
        if found:
            known.append((row, found))
        else:
            without_any.append(row.label)
    if without_any:
        families = any(len(row.runs[0].programs) > 1 for row in rows)
        why = "runs over several programs have no common history" if families else "no run of them kept its history"
        notes.append(f"no curve of {', '.join(without_any)}: {why}")
    return known, notes


def _runs(rows: Sequence[Row], home: Path) -> str:
    """Every run in a list that opens, with a link to its report if there is one."""
    lines = []
    for row in rows:
        pairs = sorted(zip(row.runs, row.folders, strict=True), key=lambda pair: (pair[0].seed, pair[1]))
        for run, folder in pairs:
            value = (
                element("data", run.outcome, value=repr(run.value_s))
                if run.value_s is not None
                else _escaped(run.outcome)
            )
            texts = [f"{run.evaluations}", f"{run.seconds:.1f}"]
            lines.append(
                [_escaped(row.label), f"{run.seed}", value, _escaped(percent(run.gap)), *texts, _link(folder, home)]
            )
    columns = ["policy", "seed", "value", "gap", "evals", "seconds", "folder"]
    inner = element("summary", f"All {len(lines)} runs" if len(lines) > 1 else "The run")
    return markup("details", inner + _table(columns, lines, ("policy", "folder")))


def _link(folder: Path, home: Path) -> str:
    """The folder of a run, as a link to its report if it has one."""
    try:
        path = Path(os.path.relpath(folder, home.resolve()))
    except ValueError:  # on Windows, another drive
        return _escaped(str(folder))
    if not (folder / REPORT).is_file():
        return _escaped(path.as_posix())
    return element("a", path.as_posix(), href=quote((path / REPORT).as_posix()))


def _lost(lost: Sequence[tuple[Path, str]]) -> list[str]:
    """The jobs without a result."""
    if not lost:
        return []
    items = "".join(element("li", f"{path}: {why}") for path, why in lost)
    return [element("h2", "Jobs without a result"), markup("ul", items)]


def _shared(rows: Sequence[Row]) -> tuple[str, list[str], list[list[str]]]:
    """What all rows of a place share, in words; and the columns and cells of the rest."""
    columns, cells = cells_of(rows)
    kept = {"policy", *(head for i, head in enumerate(columns) if len({row[i] for row in cells}) > 1)}
    same = [i for i, head in enumerate(columns) if head in ONCE and head not in kept]
    words = ", ".join(ONCE[columns[i]].format(cells[0][i]) for i in same)
    return words, *without(columns, cells, *(columns[i] for i in same))


def _number(row: Row, head: str) -> str:
    """The cell of a column of numbers, as an element that also holds the exact value; empty if there is none."""
    value = {"median": row.median_s, "bound": row.first.bound_s, "gap": row.gap, ONE_DEVICE: row.gain,
             "seconds": row.search_s}.get(head)  # fmt: skip
    columns, [cells] = cells_of([row])
    return "" if value is None else element("data", cells[columns.index(head)], value=repr(value))


def _name(row: Row, found: Sequence[Sequence[Row]]) -> str:
    """The workload, and the machine and backend where the page has several."""
    on = f" on {row.first.cluster}" if len({rows[0].first.cluster for rows in found}) > 1 else ""
    return row.first.workload + on + (f", {row.backend}" if len({rows[0].backend for rows in found}) > 1 else "")


def _table(columns: Sequence[str], lines: Sequence[Sequence[str]], texts: Sequence[str]) -> str:
    """A table of cells that are markup already; columns of text begin at the left."""
    kinds = [{"class_": "text"} if head in texts else {} for head in columns]
    head = "".join(element("th", name, scope="col", **kind) for name, kind in zip(columns, kinds, strict=True))
    body = ["".join(markup("td", cell, **kind) for cell, kind in zip(line, kinds, strict=True)) for line in lines]
    inner = f"<thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{line}</tr>' for line in body)}</tbody>"
    return markup("div", markup("table", inner), class_="scroll", tabindex="0")


def _figure(picture: str, caption: str) -> str:
    return markup("figure", picture + element("figcaption", caption))


def _legend(names: Iterable[str], styles: Styles) -> str:
    return markup("ul", "".join(markup("li", _keyed(n, styles)) for n in names), class_="legend")


def _keyed(label: str, styles: Styles, text: str = "") -> str:
    """The mark of a policy, and its name."""
    return styles[label].key() + _escaped(text or label)


def _truth(table_rows: Sequence[Row]) -> str:
    kinds = {row.first.simulated for row in table_rows}
    if len(kinds) > 1:
        return "Some values are simulated, others measured: the name of the backend says which."
    return "All values are simulated." if kinds == {True} else "All values are measured."


def _by_rank(table_rows: Sequence[Row]) -> list[Row]:
    """The rows that are often among the best first: they get the colours that are told apart most easily."""
    positions: dict[str, list[int]] = {}
    for rows in places(table_rows):
        for i, row in enumerate(rows):
            positions.setdefault(row.label, []).append(i)
    return sorted(table_rows, key=lambda row: (fmean(positions[row.label]), row.label))


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _escaped(text: str) -> str:
    return escape(text, quote=False)
