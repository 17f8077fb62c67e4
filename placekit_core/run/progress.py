"""The progress of a run, on standard error: one line for each stage, and on a terminal a bar below them."""

from __future__ import annotations

import contextlib
import sys
import textwrap
import time
from collections.abc import Mapping
from typing import Any

from placekit_core.contracts.ledger import Ledger
from placekit_core.contracts.units import format_value
from placekit_core.run import terminal
from placekit_core.run.current_run import Observer

_BAR, _CLOCK = 16, 10  # columns of the bar, and of spinner and clock with their gaps
EVERY_S = 10.0
"""Without a bar, a line tells how far a stage is after these seconds, then after twice as many, and so on."""


class Progress(Observer):
    """Shows stages as lines (if `lines`), and a bar on a terminal (if `bar`); nothing if the user has set `PLACEKIT_QUIET`."""

    def __init__(self, bar: bool = True, lines: bool = False) -> None:
        self._lines = lines and not terminal.quiet()
        shown = bar and not terminal.quiet() and terminal.is_terminal(sys.stderr)
        self._bars: Any = _bars(both=not self._lines) if shown else None
        self._task: Any = None
        self._began, self._next_s = time.monotonic(), EVERY_S

    def __enter__(self) -> Progress:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bars is not None:
            self._bars.stop()

    def stage(self, text: str) -> None:
        """A line, and a new bar for this stage."""
        self.say(text)
        if self._bars is not None:
            if self._task is not None:
                self._bars.remove_task(self._task)
            self._task = self._bars.add_task(text, total=None, note="")
        self._began, self._next_s = time.monotonic(), EVERY_S

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self._lines:
            return
        with contextlib.suppress(OSError, ValueError):  # nobody reads standard error, or a plugin closed it
            wide = terminal.columns(sys.stderr)
            lines = textwrap.fill(text, wide, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
            if self._bars is not None:
                self._bars.console.print(terminal.harmless(lines), markup=False, highlight=False, soft_wrap=True)
            else:
                print(terminal.harmless(lines), file=sys.stderr, flush=True)

    def row(self, program: str, row: Mapping[str, float], ledger: Ledger, unit: str = "s") -> None:
        """Move the bar."""
        count = int(row["evaluations"])
        self.progress(f"{count:,} evaluations, best {format_value(row['best_s'], unit)}", ledger.progress)

    def progress(self, text: str, share: float | None) -> None:
        """Move the bar; without a bar, print a line from time to time."""
        if self._bars is not None and self._task is not None:
            known = {} if share is None else {"total": 1.0, "completed": min(max(share, 0.0), 1.0)}
            self._bars.update(self._task, note=text, **known)
        elif self._bars is None and time.monotonic() - self._began >= self._next_s:
            self._next_s *= 2
            done = "" if share is None else f"{100 * share:.0f}%, "
            self.say(f"  {done}{text}")


def _bars(both: bool) -> Any:
    """rich's bars: how far a stage is, or else the stage, cut to the width of the terminal; `both` if no lines name it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress as Bars, ProgressColumn, SpinnerColumn, Task, TimeElapsedColumn
    from rich.text import Text

    console = Console(file=terminal.unfiltered(sys.stderr))
    wide = console.width >= terminal.WIDTH
    room = max(console.width - _CLOCK - (_BAR + 1 if wide else 0), 8)

    class Line(ProgressColumn):
        max_refresh = None

        def render(self, task: Task) -> Text:
            note = task.fields["note"]
            line = f"{task.description}: {note}" if both and note else note or task.description
            text = Text(terminal.harmless(line), no_wrap=True)
            text.truncate(room, overflow="ellipsis")
            return text

    bar = [BarColumn(bar_width=_BAR)] if wide else []
    return Bars(SpinnerColumn("line"), Line(), *bar, TimeElapsedColumn(), console=console, transient=True)
