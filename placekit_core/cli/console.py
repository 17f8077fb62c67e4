"""Prints results to the terminal: tables and lines, at most 80 columns wide."""

from __future__ import annotations

import re
import sys
import textwrap
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from placekit_core.contracts.units import format_value, mebibytes, percent
from placekit_core.run import terminal
from placekit_core.run.terminal import WIDTH as WIDTH

if TYPE_CHECKING:
    from placekit_core.contracts.result import Summary

_GAP = 2
_STEPS = 3
_WORD = 24  # a longer word of a heading is broken


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str = "",
    left: int = 1,
    once: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Print a table; the first `left` columns are text, the others numbers.

    If a column in `once` has the same value in all rows, the value is printed above the table, with the column's words in
    `once` ("seed {}"). If the table is too wide, headings and texts are wrapped; if that is not enough, the table
    continues below, with the text columns repeated.
    """
    same = [i for i, name in enumerate(columns) if name in once and len({row[i] for row in rows}) == 1]
    above = ", ".join(filter(None, [title, *(once[columns[i]].format(rows[0][i]) for i in same)]))
    if above:
        print(wrapped(above))
    kept = [i for i in range(len(columns)) if i not in same]
    left -= sum(i < left for i in same)
    cells = [[columns[i], *(row[i] for row in rows)] for i in kept]
    for number, part in enumerate(_parts(cells, left)):
        print("\n" if number else "", end="")
        for line in _lines(part, left):
            print(line)


def facts(rows: Sequence[tuple[str, str]]) -> None:
    """Print labels and values, each pair on one line or more."""
    column = max((width(label) for label, _ in rows), default=0) + 2
    for label, value in rows:
        print(wrapped(value, " " * (column + 2), f"  {label}{' ' * (column - width(label))}"))


def wrapped(text: str, indent: str = "  ", first: str = "") -> str:
    """`first` and `text` as lines of at most 80 columns, indented after the first line; no word is broken.

    On a narrow terminal the lines are as long as it is wide.
    """
    lines = textwrap.wrap(
        text, columns(), initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines) or first.rstrip()


def _parts(cells: list[list[str]], left: int) -> Iterator[list[list[str]]]:
    """The columns, split into tables that fit: as few tables as possible, with about equally many columns each."""
    keys, numbers = cells[:left], cells[left:]
    for parts in range(1, len(numbers) + 1):
        size = -(-len(numbers) // parts)
        found = [[*keys, *numbers[i : i + size]] for i in range(0, len(numbers), size)]
        if all(_total(_widths(part, left)) <= columns() for part in found):
            break
    yield from found if numbers else [keys]


def _widths(cells: list[list[str]], left: int) -> list[int]:
    """Widths of the columns; if they do not fit, first headings and then texts are wrapped."""
    widths = [max(map(width, column)) for column in cells]
    if _total(widths) > columns():
        for i, (head, *body) in enumerate(cells[left:], left):
            words = [min(width(word), _WORD) for word in head.split()]
            widths[i] = max([*words, *map(width, body)], default=0)
    least = columns() // (left + 4)
    while _total(widths) > columns() and (widest := max(widths[:left], default=0)) > least:
        widths[widths.index(widest)] -= 1
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _lines(cells: list[list[str]], left: int) -> Iterator[str]:
    """The lines of one table: wrapped headings are aligned at their last lines, the cells of a row at their first."""
    widths = _widths(cells, left)
    for number, row in enumerate(zip(*cells, strict=True)):
        wraps = [
            _wrap(cell, w, "  " if number and i < left else "")
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        height = max(map(len, wraps))
        blank = [[""] * (height - len(lines)) for lines in wraps]
        wraps = [b + w if number == 0 else w + b for w, b in zip(wraps, blank, strict=True)]
        for line in zip(*wraps, strict=True):
            text = (" " * _GAP).join(
                c + " " * (w - width(c)) if i < left else " " * (w - width(c)) + c
                for i, (c, w) in enumerate(zip(line, widths, strict=True))
            )
            yield _bold(text.rstrip()) if number == 0 else text.rstrip()


def _wrap(cell: str, size: int, indent: str) -> list[str]:
    """The lines of a cell, cut between words; a word that is too long is cut after a mark such as `=` if it has one."""
    if width(cell) <= size:
        return [cell]
    lines: list[str] = []
    for word in cell.split():
        if lines and width(f"{lines[-1]} {word}") <= size:
            lines[-1] += f" {word}"
            continue
        start, rest = indent if lines else "", word
        while width(start + rest) > size:
            room = size - len(start)
            cut = max((mark.end() for mark in re.finditer(r"[=./,:_\-]", rest[:room])), default=room)
            lines.append(start + rest[:cut])
            start, rest = indent, rest[cut:]
        lines.append(start + rest)
    return lines


def columns() -> int:
    """The width of what is printed: 80, less on a narrow terminal."""
    return terminal.columns(sys.stdout)


def _bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if terminal.styled(sys.stdout) else text


def width(text: str) -> int:
    """Number of terminal columns that a text takes."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


def show_result(result: Summary, run_dir: str | Path) -> None:
    """The outcome of one run."""
    rows = [
        [p.program, f"{p.kernels}", f"{p.groups}", p.outcome, format_value(p.bound_s, p.unit), percent(p.gap), f"{p.evaluations}",
         f"{p.seconds:.1f}"]
        for p in result.programs
    ]  # fmt: skip
    kind = "simulated" if result.simulated else "measured"
    table(
        ["program", "kernels", "groups", result.objective, "bound", "gap", "evals", "seconds"],
        rows,
        title=f"{result.policy} on {result.cluster}, seed {result.seed}, {kind}",
    )
    if unseen := [p.program for p in result.programs if p.split == "test"]:
        print(wrapped(f"test graphs: {', '.join(unseen)}"))
    if len(result.programs) == 1 and result.peak_bytes:
        print(wrapped(f"peak memory: {', '.join(f'{d} {mebibytes(b)}' for d, b in result.peak_bytes.items())}"))
    if len(result.programs) == 1 and (layers := result.programs[0].layers):
        print(wrapped(f"layers: {'; '.join(f'{these} on {device}' for device, these in layers.items())}"))
    if result.against_baselines:
        print(wrapped(f"baselines: {result.against_baselines}"))
    for band in dict.fromkeys(str(p.error_band) for p in result.programs if p.error_band is not None):
        print(wrapped(f"accuracy: {band}"))
    for note in result.notes:
        print(wrapped(f"note: {note}"))
    print(f"written to {run_dir}")


def show_next(steps: Sequence[str]) -> None:
    """Print the next steps for the user, at most `_STEPS` lines, to standard error.

    A comment after a command is left out if it does not fit on the line: its rest, on a line of its own, would be pasted as a
    command.
    """
    for number, step in enumerate(steps[:_STEPS]):
        head = "      " if number else "next: "
        command, comment, _ = step.partition(" # ")
        print(wrapped(command if comment and width(head + step) > columns() else step, " " * 8, head), file=sys.stderr)
