"""What the terminal shows: progress on long work, tables, units."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from placekit_core.pipeline import Observer

if TYPE_CHECKING:
    from placekit_core.evaluator import Ledger
    from placekit_core.results import Result


def seconds(value: float | None) -> str:
    """A duration with a unit: 12.34 ms."""
    if value is None or not math.isfinite(value):
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if abs(value) * scale >= 1 or unit == "us":
            return f"{value * scale:.4g} {unit}"
    return "-"


def count(value: float) -> str:
    """A large number with a decimal prefix: 1.23 T."""
    for unit, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.3g} "


def mebibytes(value: float) -> str:
    """Bytes as MiB or GiB."""
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"


def percent(value: float | None) -> str:
    """A ratio as a percentage."""
    return "-" if value is None else f"{100 * value:.1f}%"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", left: int = 1) -> None:
    """Print a table; the first `left` columns are text, the others numbers. As wide as it needs to be in a pipe."""
    t = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for i, c in enumerate(columns):
        t.add_column(c, justify="left" if i < left else "right", no_wrap=True)
    for row in rows:
        t.add_row(*row)
    console = Console(highlight=False, width=240)
    with console.capture() as capture:
        console.print(t)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


class Progress(Observer):
    """A progress bar on standard error; quiet when that is not a terminal."""

    def __init__(self) -> None:
        self._bars = Bars(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
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


def show_result(result: Result, run_dir: str | Path) -> None:
    """The outcome of one run."""
    kind = "simulated" if result.simulated else "measured"
    rows = []
    for p in result.programs:
        rows.append(
            [
                p.program,
                f"{p.kernels}",
                f"{p.groups}",
                seconds(p.value_s) if p.fits else "does not fit" if p.evaluations else "not evaluated",
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
    print(f"written to {run_dir}")
