"""Logger `report`: the schedule, the profile and a figure of each program's placement. Importing it imports no matplotlib.

From Python: `frame` and `html` make tables of a result; `%load_ext placekit_report` shows results so in a notebook.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placekit_core import hookimpl

if TYPE_CHECKING:
    from placekit_core import Result
    from placekit_report.frames import frame as frame, html as html

LOGS_BY_DEFAULT = True
_HOME = {"frame": "frames", "html": "frames"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'placekit_report' has no attribute {name!r}")
    return getattr(importlib.import_module(f"placekit_report.{_HOME[name]}"), name)


@hookimpl
def placekit_run_finished(run_dir: Path, result: Result) -> None:
    """`schedule.trace.json`, `profile.json` and `profile.png` of each program for which a placement was found."""
    from placekit_report.figure import PNG, draw
    from placekit_report.profile import FILE, profile, write_profile
    from placekit_report.trace import TRACE, write_trace

    for program in result.programs:
        if program.schedule is not None:
            folder = run_dir / program.summary.directory
            write_trace(folder / TRACE, program.schedule, program.problem)
            found = profile(program.problem, program.schedule, program.summary.program)
            write_profile(folder / FILE, found)
            draw(folder / PNG, {result.summary.policy: found})


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext placekit_report`: a notebook shows results as tables and timelines."""
    from placekit_core import Result
    from placekit_report.frames import html

    shell.display_formatter.formatters["text/html"].for_type(Result, html)
