"""What the terminal shows: progress on long work, tables, units."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from placekit_core.pipeline import Observer
from placekit_core.units import mebibytes, percent, seconds

if TYPE_CHECKING:
    from placekit_core.evaluator import Ledger
    from placekit_core.results import Summary


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", left: int = 1) -> None:
    """Print a table; the first `left` columns are text, the others numbers. As wide as it needs to be, everywhere."""
    t = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for i, c in enumerate(columns):
        t.add_column(c, justify="left" if i < left else "right", no_wrap=True)
    for row in rows:
        t.add_row(*row)
    width = sum(max(map(cell_len, cells)) + 2 for cells in zip(columns, *rows, strict=True))
    console = Console(highlight=False, markup=False, emoji=False, width=width)
    with console.capture() as capture:
        console.print(t)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


class Progress(Observer):
    """A progress bar on standard error; quiet when that is not a terminal, or somebody else's (`wanted` is false)."""

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


def line(result: Summary, run_dir: str | Path) -> str:
    """The outcome of one job of a sweep."""
    gap = f", gap {percent(result.gap)}" if result.gap is not None else ""
    partial = "" if result.status == "finished" else f" ({result.status})"
    used = f"{result.evaluations} evaluation{'' if result.evaluations == 1 else 's'} in {result.seconds:.1f} s"
    return f"{run_dir}: {result.outcome}{gap}, {used}{partial}"


def show_result(result: Summary, run_dir: str | Path) -> None:
    """The outcome of one run."""
    kind = "simulated" if result.simulated else "measured"
    rows = []
    for p in result.programs:
        rows.append(
            [
                p.program,
                f"{p.kernels}",
                f"{p.groups}",
                p.outcome,
                seconds(p.bound_s),
                percent(p.gap),
                f"{p.evaluations}",
                f"{p.seconds:.1f}",
            ]
        )
    objective = f"{result.objective} ({kind})"
    table(
        ["program", "kernels", "groups", objective, "proven bound", "gap", "evaluations", "seconds"],
        rows,
        title=f"{result.policy} on {result.cluster}, seed {result.seed}",
    )
    if len(result.programs) == 1 and result.peak_bytes:
        peaks = ", ".join(f"{d} {mebibytes(b)}" for d, b in result.peak_bytes.items())
        print(f"peak memory: {peaks}")
    for note in result.notes:
        print(f"note: {note}")
    print(f"written to {run_dir}")
