"""The tables of the papers' claims: every figure is computed from the committed runs."""

from __future__ import annotations

import importlib
import json
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.repo import script

outputs = script("outputs")

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
claims: Any = importlib.import_module("claims")
paper_table: Any = importlib.import_module("paper_table")
statements: Any = importlib.import_module("statements")
module_devices: Any = importlib.import_module("module_devices")


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


@pytest.mark.parametrize("page", statements.STATEMENTS)
def test_summaries_have_the_figures_of_the_runs(page: str) -> None:
    """Besides, a wrong digit anywhere in a summary is found, and so is one more figure."""
    text, pieces = statements.page_text(page), statements.STATEMENTS[page]()
    assert statements.missing(page, text, pieces) == []
    for piece in pieces:
        digits = [i for i, c in enumerate(piece) if c.isdigit()]
        assert digits, piece
        for i in digits:
            wrong = piece[:i] + str((int(piece[i]) + 1) % 10) + piece[i + 1 :]
            assert statements.missing(page, text.replace(piece, wrong), pieces), wrong
    for figure in ("77.7%", next(n for piece in pieces for n in statements.figures(piece))):
        more = statements.missing(page, f"{text} It is {figure} more.", pieces)
        assert more == [f"{page}.md has {figure}, which is in no statement"]


def tables(path: Path) -> list[tuple[str, list[str], str]]:
    """The commands of a page that make a table from committed runs, what it shows of each, and what may vary."""
    found = []
    for block in outputs.blocks(path.read_text()):
        if block.language == "console" and not {"slow", "not run", "needs"} & set(block.comments):
            steps = outputs.steps(block)
            if all(s.command.startswith("python benchmarks/") for s in steps):
                found += [(s.command, s.output, block.comments.get("varies", "")) for s in steps]
    return found


@pytest.mark.parametrize("path", sorted(claims.PAGES.glob("*.md")), ids=lambda p: p.stem)
def test_tables_show_what_the_runs_say(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Besides, a wrong digit in any line of such a table is found."""
    found = tables(path)
    assert found or path.stem not in {"README", *claims.PAPERS}
    monkeypatch.chdir(path.parents[2])
    for command, shown, varies in found:
        # in this process: a new one would spend seconds on imports
        monkeypatch.setattr(sys, "argv", shlex.split(command)[1:])
        runpy.run_path(sys.argv[0], run_name="__main__")
        printed = capsys.readouterr().out.splitlines()
        assert outputs.agrees(shown, printed, varies), f"{command} does not print what {path.name} shows"
        for i, line in enumerate(shown):
            for j, digit in enumerate(line):
                if digit.isdigit():
                    wrong = [*shown[:i], f"{line[:j]}{(int(digit) + 1) % 10}{line[j + 1 :]}", *shown[i + 1 :]]
                    assert not outputs.agrees(wrong, printed, varies), f"{command}, line {i}: {line}"
                    break


def test_values_by_seed_and_of_the_last_evaluations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method without late values is left out of them; what did not fit is OOM."""
    seeds: Any = importlib.import_module("seeds")
    rows = [seeds.Seed("mlp", "k80x2", "post", i, v, 0.1, 9, -1, 1.0, late_s=late)
            for i, (v, late) in enumerate([(0.5, 0.75), (float("inf"), 3.0)])]  # fmt: skip
    seeds.write([*rows, seeds.Seed("mlp", "k80x2", "expert", 0, 0.25, 0.1, 1, -1, 1.0)], tmp_path / "x.csv")

    def shown(*options: str) -> list[list[str]]:
        monkeypatch.setattr(sys, "argv", ["paper_table.py", str(tmp_path / "x.csv"), *options])
        paper_table.main()
        return [line.split() for line in capsys.readouterr().out.splitlines()[1:]]

    assert shown("--by-seed") == [["network", "cluster", "expert", "post"], ["mlp", "k80x2", "0.25", "0.5", "OOM"]]
    assert shown("--by-seed", "--late") == [["network", "cluster", "post"], ["mlp", "k80x2", "0.75", "3"]]


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
    assert claims.together(["holds", "reversed", "reversed"]) == "partly, in 1 of 3 rows"
    assert claims.together(["open"]) == "open"
    assert claims.together(["open", "open", "reversed"]) == "open, in 0 of 3 rows"
    assert claims.together(["open", "reversed", "reversed"]) == "contradicted, in 0 of 3 rows"
    with pytest.raises(AssertionError):
        claims.together([])


def test_seeds_that_find_nothing_leave_it_open() -> None:
    """Those that fit must not decide alone; a method that mostly finds nothing is slower than one that does not."""
    inf = float("inf")
    half, one = {0: 1.0, 1: 1.0, 2: inf, 3: inf}, dict.fromkeys(range(4), 2.0)
    assert paper_table.verdict("<", *paper_table.ratio(half, one)) == "open"
    assert paper_table.verdict("=", *paper_table.ratio({0: inf}, {0: inf})) == "open"
    assert paper_table.order_said({"a": 1.0, "b": 1.005}, "b", "a") == ("b", "=", "a")
    assert paper_table.order_said({"a": 1.0, "b": inf}, "b", "a") == ("a", "<", "b")


def test_where_parts_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: two embeddings and a layer on two devices, from a trace to shares."""
    rows = [
        ("source_embedding", 0, 3.0),
        ("target_embedding", 1, 1.0),
        ("layer.0", 1, 4.0),
        ("layer.1", 1, 2.0),
        ("loss", 0, 5.0),
    ]
    events: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": tid, "args": {"name": name}}
        for tid, name in enumerate(("gpu:0", "cpu:0"))
    ]
    events += [{"name": m, "ph": "X", "pid": 0, "tid": tid, "dur": us, "args": {"module": m}} for m, tid, us in rows]
    (tmp_path / "schedule.trace.json").write_text(json.dumps({"traceEvents": events}))
    spent = module_devices.spent(tmp_path, [r"\w+_embedding", "layer"])
    assert spent == {
        "source_embedding": {"gpu:0": 3.0}, "target_embedding": {"cpu:0": 1.0}, "layer": {"cpu:0": 6.0}, "other": {"gpu:0": 5.0},
    }  # fmt: skip
    (tmp_path / "runs").mkdir()
    module_devices.write([module_devices.Run("net", "box", "post", 0, 1.0, spent)], tmp_path / "runs" / "parts.csv")
    monkeypatch.setattr(claims, "PAGES", tmp_path)
    parts = claims.Parts("parts")
    assert parts.shares("net", "box", "post", r"\w+_embedding") == [
        {"gpu:0": pytest.approx(75), "cpu:0": pytest.approx(25)}
    ]
    assert parts.shares("net", "box", "post") == [
        {"gpu:0": pytest.approx(100 * 8 / 15), "cpu:0": pytest.approx(100 * 7 / 15)}
    ]
