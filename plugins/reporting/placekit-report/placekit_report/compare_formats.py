"""The comparison as CSV and Markdown.

The best median is bold only if it is distinguishable from all others (compare_ranking.py).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence

from placekit_report.compare_ranking import contests, verdict, winners
from placekit_report.compare_rows import Row, rows_by_table
from placekit_report.compare_text import ONCE, TEXTS, cells_of, coverage, without

_SHARED = {name: words for name, words in ONCE.items() if name != "policy"}


def csv_table(table_rows: Sequence[Row]) -> str:
    """A line per row, with the fields of `--json`; numbers read back exactly. Names of columns that end with `_s`: seconds.

    `seeds` is a JSON list, a missing value is empty, and `best` marks a row that is distinguishably the best.
    """
    out = io.StringIO()
    lines = [row.data() | {"best": best} for row, best in zip(table_rows, winners(table_rows), strict=True)]
    writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _csv(value) for key, value in line.items()} for line in lines)
    return out.getvalue()


def _csv(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return json.dumps(value)
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def markdown(table_rows: Sequence[Row]) -> str:
    """A table for each workload, machine and backend; values that all rows share stand above it."""
    parts = []
    for found in rows_by_table(table_rows):
        shared, columns, cells = _varying(found)
        body = [list(map(_markdown, line)) for line in cells]
        for best, line in zip(winners(found), body, strict=True):
            if best:
                line[columns.index("median")] = f"**{line[columns.index('median')]}**"
        heads = [_markdown(head) for head in columns]
        rule = ["---" if head in TEXTS else "---:" for head in columns]
        lines = [f"| {' | '.join(line)} |" for line in [heads, rule, *body]]
        notes = [f"- {_markdown(verdict(contest))}" for contest in contests(found)]
        parts += [_markdown(shared), "\n".join(lines), *(["\n".join(notes)] if notes else [])]
    if text := coverage(table_rows):
        parts.append(text[0].upper() + text[1:] + ".")
    return "\n\n".join(filter(None, parts)) + "\n"


def _varying(found: Sequence[Row]) -> tuple[str, list[str], list[list[str]]]:
    """The values that all rows share, in words, and the columns and cells of the rest."""
    columns, cells = cells_of(found)
    same = [i for i, head in enumerate(columns) if head in _SHARED and len({row[i] for row in cells}) == 1]
    words = ", ".join(_SHARED[columns[i]].format(cells[0][i]) for i in same)
    return words, *without(columns, cells, *(columns[i] for i in same))


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", " ".join(text.split()))


FORMATS = {"csv": csv_table, "md": markdown}
