"""A progress bar for a run, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress as Bars, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from placekit_core.contracts.ledger import Ledger
from placekit_core.contracts.units import seconds
from placekit_core.run.pipeline import Observer


class Progress(Observer):
    """A progress bar on standard error; none if that is no terminal, or if `wanted` is false."""

    def __init__(self, wanted: bool = True) -> None:
        self._bars = Bars(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not (wanted and sys.stderr.isatty()),
            transient=True,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bars.stop()

    def stage(self, text: str) -> None:
        """Replace the bar by one for this stage."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(text, total=None, note="")

    def row(self, program: str, row: Mapping[str, float], ledger: Ledger) -> None:
        """Move the bar."""
        if self._task is not None:
            note = f"{int(row['evaluations'])} evaluations, best {seconds(row['best_s'])}"
            self._bars.update(self._task, total=1.0, completed=ledger.progress, note=note)
