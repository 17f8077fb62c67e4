"""The notebooks in docs/examples: runs them again, and compares or replaces what they show.

    python docs/notebooks.py [--write] [FILE ...]

Durations of searches, and what a line writes while it works, may differ. Neither the time nor the machine is kept.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).resolve().parent / "examples"
VARIES = re.compile(r" in [\d.]+ s\b")


def run(path: Path) -> Any:
    """The notebook with the outputs of a fresh kernel. Raises CellExecutionError if a cell fails."""
    book = nbformat.read(path, as_version=4)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    os.environ["PLACEKIT_QUIET"] = "1"
    NotebookClient(book, timeout=1200, kernel_name="python3", resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    for cell in book.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
    book.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return book


def shown(book: Any) -> list[str]:
    """The output of each code cell, without the parts that may differ."""
    found = []
    for cell in book.cells:
        if cell.cell_type == "code":
            parts = [o["text"] if o.output_type == "stream" else str(sorted(o["data"].items())) for o in cell.outputs]
            found.append(VARIES.sub(" in ... s", "\n".join(parts)))
    return found


def differences(path: Path, book: Any) -> list[int]:
    """The numbers of the code cells, from 0, whose output differs from the file."""
    old, new = shown(nbformat.read(path, as_version=4)), shown(book)
    return [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]


def main(arguments: list[str] | None = None) -> int:
    """Run the given notebooks, or all; returns 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true", help="replace what the notebooks show")
    given = parser.parse_args(arguments)
    failed = False
    for path in given.files or sorted(EXAMPLES.glob("*.ipynb")):
        book = run(path)
        different = differences(path, book)
        if given.write and different:
            path.write_text(nbformat.writes(book, indent=1) + "\n")
        failed |= bool(different) and not given.write
        print(f"{path.name}: {'as before' if not different else f'cells {different} differ'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
