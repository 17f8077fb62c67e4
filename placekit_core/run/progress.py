"""The progress of a run, on standard error: one line for each stage, and on a terminal a bar below them."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress as Bars, ProgressColumn, SpinnerColumn, Task, TaskID, TimeElapsedColumn
from rich.text import Text

from placekit_core.contracts.ledger import Ledger
from placekit_core.contracts.units import format_value
from placekit_core.run import terminal
from placekit_core.run.pipeline import Observer

_BAR, _CLOCK = 16, 10  # columns of the bar, and of spinner and clock with their gaps
EVERY_S = 10.0
"""Where there is no bar, a line says how far a stage is after these seconds, and then again after twice as many."""


class Progress(Observer):
    """Shows stages as lines (if `lines`), and a bar on a terminal (if `bar`); nothing if the user has set `PLACEKIT_QUIET`."""

    def __init__(self, bar: bool = True, lines: bool = False) -> None:
        self._lines = lines and not terminal.quiet()
        self._console = Console(stderr=True)
        wide = self._console.width >= terminal.WIDTH
        self._bars = Bars(
            SpinnerColumn("line"),
            _Line(self._console, _CLOCK + (_BAR + 1 if wide else 0), alone=not self._lines),
            *([BarColumn(bar_width=_BAR)] if wide else []),
            TimeElapsedColumn(),
            console=self._console,
            disable=not bar or terminal.quiet() or not terminal.is_terminal(sys.stderr),
            transient=True,
        )
        self._task: TaskID | None = None
        self._began, self._next_s = time.monotonic(), EVERY_S

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bars.stop()

    def stage(self, text: str) -> None:
        """A line, and a new bar for this stage."""
        self.say(text)
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(text, total=None, note="")
        self._began, self._next_s = time.monotonic(), EVERY_S

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self._lines:
            return
        lines = textwrap.fill(
            text, terminal.columns(sys.stderr), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        if self._bars.disable:
            print(lines, file=sys.stderr, flush=True)
        else:
            self._console.print(lines, markup=False, highlight=False, soft_wrap=True)

    def row(self, program: str, row: Mapping[str, float], ledger: Ledger, unit: str) -> None:
        """Move the bar."""
        count = int(row["evaluations"])
        self.progress(f"{count:,} evaluations, best {format_value(row['best_s'], unit)}", ledger.progress)

    def progress(self, text: str, share: float | None) -> None:
        """Move the bar; without one, say it from time to time."""
        if self._task is not None:
            known = {} if share is None else {"total": 1.0, "completed": min(max(share, 0.0), 1.0)}
            self._bars.update(self._task, note=text, **known)  # type: ignore[arg-type]
        if self._bars.disable and time.monotonic() - self._began >= self._next_s:
            self._next_s *= 2
            done = "" if share is None else f"{100 * share:.0f}%, "
            self.say(f"  {done}{text}")


class _Line(ProgressColumn):
    """How far a stage is, or else the stage, cut to what is left of the terminal's width; both if no lines say the stages."""

    max_refresh = None

    def __init__(self, console: Console, others: int, alone: bool) -> None:
        self._console, self._others, self._alone = console, others, alone
        super().__init__()

    def render(self, task: Task) -> Text:
        note = task.fields["note"]
        both = f"{task.description}: {note}" if self._alone and note else note or task.description
        text = Text(both, no_wrap=True, overflow="ellipsis")
        text.truncate(max(self._console.width - self._others, 8), overflow="ellipsis")
        return text
