"""Importer `my_method`: tables of operations.

A table has a line per operation: `name`, `flops`, `output_bytes`, and in `inputs` the names, separated by spaces, of the
operations whose outputs it reads. A line without inputs is a source (an input, a parameter): it takes no time.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from placekit_core import GraphBuilder, Importer, ImporterError, Program, parse_text, read_bytes
from placekit_my_method import MyMethodOptions

COLUMNS = ["name", "flops", "output_bytes", "inputs"]
EXAMPLE = Path(__file__).with_name("example.ops.csv")


class MyMethod(Importer):
    """One program per table, named like its file."""

    name = "my_method"
    options_class = MyMethodOptions

    def load(self) -> list[Program]:
        """The program. Raises ImporterError that names the line; GraphError for a name that occurs twice or a cycle."""
        path = Path(self.options.path or EXAMPLE)
        try:
            table = csv.DictReader(io.StringIO(parse_text(read_bytes(path)), newline=""), restval="")
            columns, rows = table.fieldnames, list(table)
        except (OSError, ValueError, csv.Error) as e:
            raise ImporterError(f"cannot read {path}: {e}", "importer.path is a table of operations") from None
        if columns != COLUMNS:
            raise ImporterError(f"{path} has columns {columns}, not {COLUMNS}", "its first line names the columns")
        builder = GraphBuilder(path.name.removesuffix(".ops.csv"))
        tensor = {row["name"]: i for i, row in enumerate(rows)}  # the one output of each operation is numbered like it
        sizes = [_number(path, line, row, "output_bytes") for line, row in enumerate(rows, start=2)]
        for line, row in enumerate(rows, start=2):
            if None in row:
                raise ImporterError(f"{path}, line {line}: it has more than {len(COLUMNS)} columns")
            read = row["inputs"].split()
            unknown = [name for name in read if name not in tensor]
            if unknown:
                raise ImporterError(f"{path}, line {line}: no operation is called {unknown[0]!r}")
            inputs, size = [tensor[name] for name in read], sizes[line - 2]
            flops, moved = float(_number(path, line, row, "flops")), float(size + sum(sizes[i] for i in inputs))
            if inputs:
                builder.add(row["name"], inputs=inputs, outputs=[size], flops=flops, bytes_accessed=moved)
            else:
                builder.source(row["name"], size, op_type="input")
        return [Program(builder.build())]


def _number(path: Path, line: int, row: dict[str, str], column: str) -> int:
    """A whole number that is not negative and fits in 63 bits. Raises ImporterError that names line and column."""
    try:
        value = int(float(row[column]))
    except (ValueError, OverflowError):
        value = -1
    if not 0 <= value < 2**63:
        raise ImporterError(f"{path}, line {line}: {column} is {row[column]!r}", "give a number from 0 to 9.2e18")
    return value
