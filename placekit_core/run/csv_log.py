"""Logger `csv`: the history of each program as `history.csv`, a row per evaluated batch, readable during the run."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from placekit_core.contracts.files import write_atomically
from placekit_core.contracts.hookspecs import hookimpl
from placekit_core.contracts.ledger import HISTORY

if TYPE_CHECKING:
    from placekit_core.contracts.result import Result

FILE = "history.csv"
_FLUSH_S = 1.0


def _cells(row: Sequence[float]) -> list[str]:
    """Evaluations as an integer, seconds, and other numbers with all their digits; a missing value is empty."""
    return [str(int(row[0])), f"{row[1]:.6f}", *(repr(float(x)) if math.isfinite(x) else "" for x in row[2:])]


def _widen(path: Path, columns: Sequence[str]) -> None:
    """Rewrite the file with more columns, which are empty in the rows so far."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(csv.DictReader(path.read_text().splitlines()))
    write_atomically(path, text.getvalue().encode())


class CsvLog:
    """The logger. A resumed run starts a new file; when it ends, the file holds the history from the beginning."""

    LOGS_BY_DEFAULT = True

    def __init__(self) -> None:
        self._open: dict[Path, tuple[TextIO, list[str], float]] = {}  # file, columns, and when it was last flushed

    @hookimpl
    def placekit_evaluated(self, directory: Path, row: Mapping[str, float]) -> None:
        """Append a row. When the trainer first logs a value, the file is rewritten with a column for it."""
        path, columns = directory / FILE, [*HISTORY, *sorted(row.keys() - HISTORY)]
        if path not in self._open:
            directory.mkdir(parents=True, exist_ok=True)
            path.write_text(",".join(columns) + "\n")
            self._open[path] = (path.open("a"), columns, 0.0)
        file, written, flushed = self._open[path]
        if not set(columns) <= set(written):
            columns = [*HISTORY, *sorted({*columns, *written} - set(HISTORY))]
            file.close()
            _widen(path, columns)
            file, written = path.open("a"), columns
        file.write(",".join(_cells([row.get(c, math.nan) for c in written])) + "\n")
        now = time.monotonic()
        if now - flushed > _FLUSH_S:
            file.flush()
            flushed = now
        self._open[path] = (file, written, flushed)

    @hookimpl
    def placekit_run_finished(self, run_dir: Path, result: Result) -> None:
        """Replace the rows written during the run by the complete history."""
        for program in result.programs:
            path = run_dir / program.summary.directory / FILE
            if path in self._open:
                self._open.pop(path)[0].close()
            text = io.StringIO()
            names, logged = sorted(program.logged), [program.logged[name] for name in sorted(program.logged)]
            rows = [_cells([*row, *more]) for row, *more in zip(program.history, *logged, strict=True)]
            csv.writer(text, lineterminator="\n").writerows([[*HISTORY, *names], *rows])
            write_atomically(path, text.getvalue().encode())
