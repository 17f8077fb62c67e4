"""Logger `tensorboard`: the history of a run as TensorBoard event files. Importing this module imports no tensorboard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from placekit_core import hookimpl

if TYPE_CHECKING:
    from placekit_core import Result
    from placekit_tensorboard.events import EventFile


class EventLog:
    """The plugin: holds the event files of the runs in progress, by the folder of their program."""

    def __init__(self) -> None:
        self._open: dict[Path, EventFile] = {}

    @hookimpl
    def placekit_evaluated(self, directory: Path, row: Mapping[str, float]) -> None:
        """Scalars of one batch."""
        self._file(directory, int(row["evaluations"])).add_row(row)

    @hookimpl
    def placekit_checkpoint(self, run_dir: Path) -> None:
        """Write the waiting events to disk, from which a resumed run continues."""
        for directory, file in self._open.items():
            if directory.is_relative_to(run_dir):
                file.flush()

    @hookimpl
    def placekit_run_finished(self, run_dir: Path, result: Result) -> None:
        """Totals and configuration of each program; closes its file."""
        for program in result.programs:
            directory = run_dir / program.summary.directory
            self._file(directory, program.summary.evaluations).finish(program.summary, result.summary.config)
            del self._open[directory]

    def _file(self, directory: Path, step: int) -> EventFile:
        """The event file of a program's folder, begun at `step` if it is not open."""
        from placekit_tensorboard.events import EventFile

        if directory not in self._open:
            self._open[directory] = EventFile(directory, step)
        return self._open[directory]
