"""Logger `csv`: the history of each program as `history.csv`, a row per evaluated batch, readable during the run."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from placekit_core.contracts.files import parse_text, read_bytes, write_atomically
from placekit_core.contracts.hookspecs import hookimpl
from placekit_core.contracts.ledger import HISTORY

if TYPE_CHECKING:
    from placekit_core.contracts.result import Result

FILE = "history.csv"
_FLUSH_S = 1.0


def _cells(row: Sequence[float]) -> list[str]:
    """The count as an integer, numbers with enough digits to read back exactly; empty for a missing value."""
    return [str(int(row[0])), f"{row[1]:.6f}", *(repr(float(x)) if math.isfinite(x) else "" for x in row[2:])]


def _begin(path: Path, columns: Sequence[str], evaluations: float) -> TextIO:
    """Open a history for appending rows with these columns.

    Rows after the last checkpoint of a killed run are dropped: the resumed run writes them again. Damaged lines are dropped,
    too. The file gets the exact history when the run ends.
    """
    kept: list[dict[str, str]] = []
    if path.is_file():
        with contextlib.suppress(OSError, ValueError, csv.Error):
            for row in csv.DictReader(io.StringIO(parse_text(read_bytes(path))), strict=True):
                if None not in row.values() and row[HISTORY[0]].isdecimal() and int(row[HISTORY[0]]) < evaluations:
                    kept.append(row)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(kept)
    write_atomically(path, text.getvalue().encode())
    return path.open("a")


class CsvLog:
    """The logger: keeps the files of unfinished runs open."""

    LOGS_BY_DEFAULT = True

    def __init__(self) -> None:
        self._open: dict[Path, tuple[TextIO, list[str], float]] = {}  # file, columns, when it was last flushed

    @hookimpl
    def placekit_evaluated(self, directory: Path, row: Mapping[str, float]) -> None:
        """Append a row. The file is begun again when the trainer logs a column for the first time."""
        path, columns = directory / FILE, [*HISTORY, *(name for name in row if name not in HISTORY)]
        if path not in self._open or self._open[path][1] != columns:
            if path in self._open:
                self._open[path][0].close()
            directory.mkdir(parents=True, exist_ok=True)
            self._open[path] = (_begin(path, columns, row["evaluations"]), columns, 0.0)
        file, _, flushed = self._open[path]
        file.write(",".join(_cells([row[c] for c in columns])) + "\n")
        now = time.monotonic()
        if now - flushed > _FLUSH_S:
            file.flush()
            self._open[path] = (file, columns, now)

    @hookimpl
    def placekit_run_finished(self, run_dir: Path, result: Result) -> None:
        """Write the exact history over the rows written during the run."""
        for program in result.programs:
            path = run_dir / program.summary.directory / FILE
            if path in self._open:
                self._open.pop(path)[0].close()
            names, logged = sorted(program.logged), [program.logged[name] for name in sorted(program.logged)]
            rows = [_cells([*row, *more]) for row, *more in zip(program.history, *logged, strict=True)]
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows([[*HISTORY, *names], *rows])
            write_atomically(path, text.getvalue().encode())
