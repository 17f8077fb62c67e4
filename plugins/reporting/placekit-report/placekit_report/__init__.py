"""Logger `report`, which writes a page about each run, and command `compare`, which sets runs side by side.

From Python: `result.report()` writes the page, a notebook shows a result with its timeline, and `frame` makes tables.
"""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placekit_core import Command, hookimpl, installed

if TYPE_CHECKING:
    from placekit_core import Registry, Result
    from placekit_report.frames import frame as frame, html as html

LOGS_BY_DEFAULT = True
_HOME = {"frame": "frames", "html": "frames"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'placekit_report' has no attribute {name!r}")
    return getattr(importlib.import_module(f"placekit_report.{_HOME[name]}"), name)


@hookimpl
def placekit_run_finished(run_dir: Path, result: Result) -> None:
    """Write the page of the run, and a trace of each program that was placed."""
    from placekit_report.logger import write_files

    write_files(run_dir, result, installed())


@hookimpl(tryfirst=True)
def placekit_next_steps(run_dir: Path, result: Result) -> list[str]:
    """The page, if it was written."""
    page = run_dir / "report.html"
    return [f"open {shlex.quote(str(page))} in a browser"] if page.is_file() else []


@hookimpl
def placekit_result_methods() -> dict[str, Callable[..., Any]]:
    """`result.report()`, `result.show()`, and how a notebook shows a result."""
    return {"report": _report, "show": _show, "_repr_html_": _html}


def _report(result: Result, path: str | Path = "report.html") -> Path:
    """Write the page of the run. Returns its path."""
    from placekit_report.logger import write_page

    return write_page(Path(path), result, installed())


def _show(result: Result) -> None:
    """Show the result in a notebook; print it elsewhere."""
    from placekit_report.frames import show

    show(result)


def _html(result: Result) -> str:
    from placekit_report.frames import html

    return html(result)


@hookimpl
def placekit_commands() -> list[Command]:
    """`compare`."""
    return [
        Command(
            name="compare",
            usage="DIR ... [--csv | --md | --html | --json] [--out FILE]",
            summary="tables over runs and sweeps, and a page of them",
            target="placekit_report.compare:main",
            group="look",
        ),
    ]


@hookimpl
def placekit_sweep_finished(directory: Path, registry: Registry) -> None:
    """Print the table of the sweep's runs."""
    from placekit_report.compare_text import show_folder

    show_folder(directory, registry)
