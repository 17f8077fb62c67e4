"""The core's own component: an importer for graphs in placekit's own file format."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from placekit_core.graph_file import load_graph, save_graph
from placekit_core.hookspecs import Component, hookimpl
from placekit_core.interfaces import Importer, Options
from placekit_core.problem import Program


class FileOptions(Options):
    """Options of importer `file`."""

    path: str = Field("", description="graph file (.graph.npz), as `placekit graph export` writes it")


class FileImporter(Importer):
    """A graph that was saved by `placekit graph export`; costs by the roofline, no executable."""

    name = "file"
    options_class = FileOptions

    def load(self) -> list[Program]:
        """One program. Raises GraphError."""
        return [Program(load_graph(self.options.path))]

    @classmethod
    def write(cls, program: Program, path: Path) -> None:
        """Write the program's graph. Raises GraphError."""
        save_graph(program.graph, path)


def is_graph_file(head: bytes) -> bool:
    """Whether a file that begins with `head` may be a graph file: it is a zip."""
    return head.startswith(b"PK\3\4")


@hookimpl
def placekit_importers() -> list[Component]:
    return [
        Component(
            name="file",
            summary="a graph in placekit's own file format",
            config=FileOptions,
            target="placekit_core.builtin:FileImporter",
            files=(".graph.npz",),
            detect=is_graph_file,
            writes=True,
        )
    ]
