"""Importer `my_method`: tables of operations.

A table has a line per operation: `name`, `flops`, `output_bytes`, and in `inputs` the names, separated by spaces, of the
operations whose outputs it reads. A line without inputs is a source (an input, a parameter): it takes no time.
"""

from __future__ import annotations

import csv
from pathlib import Path

from placekit_core.errors import ImporterError
from placekit_core.graph import GraphBuilder
from placekit_core.interfaces import Importer
from placekit_core.problem import Program
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
            with path.open(newline="", encoding="utf-8") as file:
                table = csv.DictReader(file, restval="")
                columns, rows = table.fieldnames, list(table)
        except (OSError, UnicodeDecodeError, csv.Error) as e:
            raise ImporterError(f"cannot read {path}: {e}", "importer.path is a table of operations") from None
        if columns != COLUMNS:
            raise ImporterError(f"{path} has columns {columns}, not {COLUMNS}", "its first line names the columns")
        tensor = {
            row["name"]: i for i, row in enumerate(rows)
        }  # every operation has one output, numbered like its line
        builder = GraphBuilder(path.name.removesuffix(".ops.csv"))
        for number, row in enumerate(rows, start=2):
            try:
                if None in row:
                    raise ValueError(f"it has more than {len(COLUMNS)} columns")
                flops, bytes_ = float(row["flops"]), int(row["output_bytes"])
                inputs = [tensor[name] for name in row["inputs"].split()]
                read = sum(int(rows[i]["output_bytes"]) for i in inputs)
            except KeyError as e:
                raise ImporterError(f"{path}, line {number}: no operation is called {e}") from None
            except ValueError as e:
                raise ImporterError(f"{path}, line {number}: {e}") from None
            if inputs:
                builder.add(row["name"], inputs=inputs, outputs=[bytes_], flops=flops, bytes_accessed=read + bytes_)
            else:
                builder.source(row["name"], bytes_, op_type="input")
        return [Program(builder.build())]
