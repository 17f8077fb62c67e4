"""`placekit compare DIR ...`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from placekit_core import ConfigError, Registry, RunError, write_atomically
from placekit_core.cli.parser import Parser
from placekit_core.cli.sweep import show_troubles, troubles
from placekit_report.compare_rows import Row, load, rows
from placekit_report.compare_text import show

TABLES = ("csv", "md", "html")
"""Formats that are written by an option of the same name."""
PAGE = Path("compare.html")


def main(argv: list[str], registry: Registry) -> int:
    """Print or write the comparison. Returns 1 if a result could not be read."""
    arguments = _parser().read(argv)
    shape = next((name for name in TABLES if getattr(arguments, name)), "json" if arguments.json else "")
    _check(arguments, shape)
    found = [troubles(folder) for folder in arguments.folders]
    failed, missing = ([x for each in found for x in each[i]] for i in (0, 1))
    results, damaged = load(arguments.folders, bool(failed or missing))
    table_rows = rows(list(results.values()), registry, list(results))
    if not shape:
        show(table_rows)
    elif shape == "json":
        _write_or_print(json.dumps([r.data() for r in table_rows], indent=1) + "\n", arguments.out)
    elif not table_rows:
        raise RunError("none of these runs has finished, so there is no table", "`placekit compare DIR` says why")
    else:
        command = shlex.join(["placekit", "compare", *argv])
        out = arguments.out or (PAGE if shape == "html" else None)
        _write_or_print(_text(shape, table_rows, command, out, [*failed, *missing]), out)
    show_troubles(failed, missing, sys.stderr if shape else sys.stdout)
    return int(damaged > 0)


def _parser() -> Parser:
    parser = Parser(
        "compare", "Compare runs: a row per workload, machine, backend and policy, with medians over seeds."
    )
    parser.add_argument("folders", nargs="+", metavar="DIR", type=Path, help="folders of runs, at any depth")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON instead of tables")
    form.add_argument("--csv", action="store_true", help="print the table as CSV, with all digits")
    form.add_argument("--md", action="store_true", help="print the tables in Markdown")
    form.add_argument("--html", action="store_true", help=f"write a page with tables and plots: {PAGE}, or --out FILE")
    parser.add_argument("--out", metavar="FILE", type=Path, help="the file to write to, which is replaced")
    return parser


def _check(arguments: argparse.Namespace, shape: str) -> None:
    """Raise ConfigError for options that contradict each other."""
    if arguments.out and not shape:
        raise ConfigError("--out writes one format, and none is chosen", "give --csv, --md, --html or --json")
    if arguments.out and arguments.out.is_dir():
        raise ConfigError(f"--out: {arguments.out} is a folder", f"name a file in it, such as {arguments.out / PAGE}")


def _text(shape: str, table_rows: list[Row], command: str, out: Path | None, lost: Sequence[tuple[Path, str]]) -> str:
    """The comparison in a format; `lost` are the jobs without a result."""
    if shape == "html":
        from placekit_report.page.comparison import comparison

        return comparison(table_rows, command, (out or PAGE).parent, lost)
    from placekit_report.compare_formats import FORMATS

    return FORMATS[shape](table_rows)


def _write_or_print(text: str, out: Path | None) -> None:
    """Print the text or write it to a file. Raises RunError."""
    if out is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        write_atomically(out, text.encode())
    except OSError as e:
        raise RunError(f"cannot write {out}: {e.strerror or e}", "choose another: --out FILE") from None
    print(f"written to {out}")
