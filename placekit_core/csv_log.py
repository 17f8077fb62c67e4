"""Logger `csv`: the history of each program as `history.csv`, a row per evaluated batch, readable while the run goes on."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from placekit_core.evaluator import HISTORY
from placekit_core.graph_file import write_atomically
from placekit_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from placekit_core.report import Result

FILE = "history.csv"
LOGS_BY_DEFAULT = True
_FLUSH_S = 1.0
_open: dict[Path, tuple[TextIO, float]] = {}  # file of a running search, and when it was last flushed


def _cells(row: Sequence[float]) -> list[str]:
    """Counts as integers, numbers with 17 digits, so that they read back exactly; empty where there is none."""
    return [str(int(row[0])), f"{row[1]:.6f}", *(repr(float(x)) if math.isfinite(x) else "" for x in row[2:])]


def _begin(path: Path, evaluations: float) -> TextIO:
    """Open for appending. Rows of a run that was killed after its checkpoint are dropped: they come again."""
    kept: list[str] = []
    if path.is_file():
        lines = [line for line in path.read_text().splitlines(keepends=True)[1:] if line.endswith("\n")]
        kept = [line for line in lines if int(line.partition(",")[0]) < evaluations]
    write_atomically(path, ("".join([",".join(HISTORY) + "\n", *kept])).encode())
    return path.open("a")


@hookimpl
def placekit_evaluated(directory: Path, row: Mapping[str, float]) -> None:
    path = directory / FILE
    if path not in _open:
        directory.mkdir(parents=True, exist_ok=True)
        _open[path] = (_begin(path, row["evaluations"]), 0.0)
    file, flushed = _open[path]
    file.write(",".join(_cells([row[c] for c in HISTORY])) + "\n")
    now = time.monotonic()
    if now - flushed > _FLUSH_S:
        file.flush()
        _open[path] = (file, now)


@hookimpl
def placekit_run_finished(run_dir: Path, result: Result) -> None:
    """The exact history, whatever was written on the way."""
    for program in result.programs:
        path = run_dir / program.summary.directory / FILE
        if path in _open:
            _open.pop(path)[0].close()
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([HISTORY, *map(_cells, program.history)])
        write_atomically(path, text.getvalue().encode())
