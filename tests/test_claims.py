"""The tables of the papers' claims: every figure is computed from the committed runs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
claims: Any = importlib.import_module("claims")
paper_table: Any = importlib.import_module("paper_table")


@pytest.mark.parametrize("paper", claims.PAPERS)
def test_pages_have_the_figures_of_the_runs(paper: str) -> None:
    text = (claims.PAGES / f"{paper}.md").read_text()
    assert claims.replaced(text, claims.table(paper)) == text, "python benchmarks/claims.py --write"


@pytest.mark.parametrize("paper", claims.PAPERS)
def test_a_wrong_figure_is_found(paper: str) -> None:
    """Each digit of the table that is computed, one after the other."""
    lines = claims.table(paper)
    text = claims.replaced((claims.PAGES / f"{paper}.md").read_text(), lines)
    here = [line.split(" | ")[2] for line in lines[2:]]
    assert sum(any(c.isdigit() for c in cell) for cell in here) > len(here) / 2
    for cell in here:
        for i, c in enumerate(cell):
            if c.isdigit():
                wrong = text.replace(cell, cell[:i] + str((int(c) + 1) % 10) + cell[i + 1 :])
                assert wrong != text
                assert claims.replaced(wrong, lines) != wrong


def test_a_page_without_its_marks_is_left_alone() -> None:
    with pytest.raises(SystemExit, match="lacks"):
        claims.replaced(f"text {claims.BEGIN} more text", [])


def test_verdicts() -> None:
    """By hand: six seeds each, one of two methods 2% faster, and one that differs by chance."""
    slow = dict(enumerate([1.00, 1.01, 0.99, 1.00, 1.01, 0.99]))
    fast = {k: 0.98 * v for k, v in slow.items()}
    other = dict(enumerate([0.9, 1.1, 1.0, 1.2, 0.8, 1.0]))
    inf = float("inf")
    assert paper_table.verdict("<", *paper_table.ratio(fast, slow)) == "holds"
    assert paper_table.verdict("<", *paper_table.ratio(slow, fast)) == "reversed"
    assert paper_table.verdict("<", *paper_table.ratio(other, slow)) == "open"
    assert paper_table.verdict("=", *paper_table.ratio(slow, {0: 1.0})) == "holds"
    assert paper_table.verdict("=", *paper_table.ratio(fast, {0: 1.0})) == "reversed"
    assert paper_table.verdict("<", *paper_table.ratio(slow, {0: inf})) == "holds", (
        "out of memory is slower than anything"
    )
    assert paper_table.verdict("<", *paper_table.ratio({0: 1.0, 1: inf, 2: inf}, {0: 2.0})) == "reversed"
    assert paper_table.verdict("<", *paper_table.ratio({0: 1.0, 1: inf, 2: 3.0}, {0: 9.0, 1: 9.0, 2: inf})) == "open"
    assert paper_table.verdict("<", *paper_table.ratio({0: 1.0}, {0: 2.0})) == "holds", "two that draw no numbers"


def test_verdicts_on_several_rows() -> None:
    assert claims.together(["holds", "holds"]) == "holds"
    assert claims.together(["holds", "reversed"]) == "partly"
    assert claims.together(["open", "open"]) == "partly"
    assert claims.together(["open", "reversed"]) == "contradicted"
