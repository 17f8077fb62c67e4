"""Importer `doppler`: the text format in which Doppler's authors published their graphs.

Yao et al., Doppler: Dual-Policy Learning for Device Assignment in Asynchronous Dataflow Graphs (ICLR 2026); repository
xinyuyao/Doppler, folder `compute_graph`, as read by its `run_placement.py`. The format is in this package's README.md.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

from placekit_core import GraphBuilder, Importer, ImporterError, Program, parse_text
from placekit_formats import DopplerOptions
from placekit_formats.reading import HINT, MAX_BYTES, MAX_TOTAL, naming, read_file

_FIRST = ("the number of vertices", "the ids of the graph's inputs", "the edges' sources", "the edges' targets")
MAX_NUMBERS = 2_000_000
_NUMBER = re.compile(r"\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)


class DopplerImporter(Importer):
    """One program, named like its file. Operation i of the file is `v<i>`; its costs are those in the file.

    `flops` is the operation's computation, and the bytes of its only output are its communication. Of the graph's
    inputs, the file has only the ids, so they are not part of the graph. An edge that is listed twice is one edge.
    """

    name = "doppler"
    options_class = DopplerOptions

    def load(self) -> list[Program]:
        """The program. Raises ImporterError that names file and line."""
        path = self.options.path
        return [_Reader(path, read_file(path, self.name, _lines)).program()]


def _lines(data: bytes) -> list[str]:
    text = parse_text(data).rstrip().replace("\r\n", "\n")
    if text.count(",") + text.count("\n") > MAX_NUMBERS:
        raise ValueError(f"it has more than {MAX_NUMBERS:,} numbers")
    return text.split("\n")


class _Reader:
    def __init__(self, path: str, lines: list[str]) -> None:
        self.path, self.lines = path, lines

    def error(self, line: int, problem: str) -> ImporterError:
        return ImporterError(f"{self.path}, line {line}: {problem}", HINT)

    def program(self) -> Program:
        if len(self.lines) < len(_FIRST):
            missing = len(self.lines) + 1
            raise self.error(missing, f"the file ends before {_FIRST[missing - 1]}")
        vertices = self.whole(1, self.lines[0].strip())
        inputs = self.ids(2, vertices)
        if len(set(inputs)) < len(inputs):
            twice, _ = Counter(inputs).most_common(1)[0]
            raise self.error(2, f"input {twice} is listed twice")
        n, found = vertices - len(inputs), len(self.lines) - len(_FIRST)
        if n < 1 or found != n:
            raise self.error(
                1,
                f"{vertices} vertices with {len(inputs)} inputs leave {n} operations, but the file has lines for {found}",
            )
        sources, targets = self.ids(3, n), self.ids(4, n)
        if len(sources) != len(targets):
            raise self.error(4, f"it has {len(targets)} targets, but line 3 has {len(sources)} sources")
        reads: list[list[int]] = [[] for _ in range(n)]
        for u, v in zip(sources, targets, strict=True):
            reads[v].append(u)  # each operation has one output, with the operation's number
        builder = GraphBuilder(Path(self.path).stem)
        total = 0
        for v, line in enumerate(self.lines[len(_FIRST) :]):
            flops, size, kind = self.operation(v + len(_FIRST) + 1, line)
            total += size
            builder.add(f"v{v}", op_type=kind, inputs=reads[v], outputs=[size], flops=flops)
        if total > MAX_TOTAL:
            raise ImporterError(f"{self.path}: the outputs have {total:.3g} bytes together", HINT)
        repeated = len(sources) - sum(len(set(row)) for row in reads)
        builder.attributes = {"graph_inputs": len(inputs), "repeated_edges": repeated}
        with naming(self.path):
            return Program(builder.build())

    def operation(self, line: int, text: str) -> tuple[float, int, str]:
        """FLOPs, bytes of the output and type of one operation."""
        cells = [c.strip() for c in text.split(",")]
        if len(cells) not in (2, 3):
            raise self.error(line, f"{text!r:.60} is not `computation,communication[,type]`")
        flops, size = (self.number(line, c) for c in cells[:2])
        if size > MAX_BYTES or not size.is_integer():
            raise self.error(line, f"communication is {cells[1]}, not a whole number up to 2^53")
        return flops, int(size), cells[2] if len(cells) == 3 and cells[2] else "operation"

    def number(self, line: int, text: str) -> float:
        value = float(text) if _NUMBER.fullmatch(text) else math.nan
        if not math.isfinite(value):
            raise self.error(line, f"{text!r:.60} is not a number >= 0")
        return value

    def whole(self, line: int, text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise self.error(line, f"{text!r:.60} is not a whole number below 10^9")
        return int(text)

    def ids(self, line: int, below: int) -> list[int]:
        """The ids in a line, separated by commas; a comma may follow the last."""
        words = [w.strip() for w in self.lines[line - 1].split(",")]
        found = [self.whole(line, w) for w in (words[:-1] if words[-1] == "" else words)]
        unknown = next((i for i in found if i >= below), None)
        if unknown is not None:
            raise self.error(line, f"id {unknown} is not in 0..{below - 1}")
        return found
