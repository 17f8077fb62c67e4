"""Importer `file`: graphs in placekit's own file format."""

from __future__ import annotations

from pathlib import Path

from placekit_core import Importer, Program, load_graph, save_graph
from placekit_formats import FileOptions
from placekit_formats.reading import require_path


class FileImporter(Importer):
    """A graph that `placekit graph export` saved. Its costs are estimated by the roofline; it cannot be run."""

    name = "file"
    options_class = FileOptions

    def load(self) -> list[Program]:
        """One program. Raises GraphError, or ImporterError without a path."""
        require_path(self.options.path, self.name)
        return [Program(load_graph(self.options.path))]

    @classmethod
    def write(cls, program: Program, path: Path) -> None:
        """Write the program's graph. Raises GraphError."""
        save_graph(program.graph, path)
