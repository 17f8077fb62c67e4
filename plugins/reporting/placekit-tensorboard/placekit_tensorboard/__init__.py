"""Logger `tensorboard`: the history of a run as TensorBoard event files. Importing this module imports no tensorboard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placekit_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from placekit_core.report import Result


@hookimpl
def placekit_evaluated(directory: Path, row: Mapping[str, float]) -> None:
    """Scalars of one batch."""
    from placekit_tensorboard.events import write_row

    write_row(directory, row)


@hookimpl
def placekit_checkpoint(run_dir: Path) -> None:
    """What a resumed run continues from is on disk."""
    from placekit_tensorboard.events import flush

    flush(run_dir)


@hookimpl
def placekit_run_finished(run_dir: Path, result: Result) -> None:
    """Totals and configuration of each program; closes its file."""
    from placekit_tensorboard.events import finish

    config: Mapping[str, Any] = result.summary.config
    for program in result.programs:
        finish(run_dir / program.summary.directory, program.summary, config)
