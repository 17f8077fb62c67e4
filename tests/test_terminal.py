"""The terminal as a user sees it: what is listed fits 80 columns, and every command explains its options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from placekit_testing.pytest_plugin import Outcome

from placekit_core import installed
from placekit_core.cli.console import WIDTH, table
from placekit_core.cli.main import overview
from placekit_core.cli.parser import Parser

Run = Callable[..., Outcome]
COMMANDS = sorted(installed().commands)
PRESETS = sorted({(p.group, p.name) for p in installed().presets() if p.group})


def fitting(done: Outcome, code: int = 0) -> str:
    """What was printed, all of it within 80 columns."""
    assert done.code == code, done.err
    wide = [line for line in done.out.splitlines() if len(line) > WIDTH]
    assert wide == []
    return done.out


def test_names_in_files_cannot_change_the_terminal(placekit: Run, tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_text(
        'name: odd\ndescription: "a\\e]0;title\\a\\u202Emachine"\n'
        'kinds: {"k\\e[31m": {memory_bytes: 8e9, memory_bytes_per_s: 4e11, flops_per_s: {float32: 1e13}}}\n'
        'devices: [{kind: "k\\e[31m"}]\n'
    )
    shown = placekit("cluster", "show", "odd.yaml").out
    assert r"a\x1b]0;title\x07\u202emachine" in shown
    done = placekit("run", "workload=chainmm_small", "cluster=odd.yaml", "policy=etf", "run_dir=out")
    assert r"k\x1b[31m" in done.out + done.err
    for text in (shown, done.out, done.err, placekit("compare", "out").out, placekit("apply", "out", "--help").out):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


class TestHelp:
    def test_the_overview_fits_a_screen_and_has_every_command(self, placekit: Run) -> None:
        lines = fitting(placekit("--help")).splitlines()
        assert len(lines) <= 26
        assert {name for name in COMMANDS if any(line.startswith(f"  {name} ") for line in lines)} == set(COMMANDS)
        assert "\n".join(lines) == overview(installed()) == fitting(placekit()).rstrip()

    @pytest.mark.parametrize("name", COMMANDS)
    def test_every_option_of_a_command_is_explained(
        self, name: str, placekit: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        parsers: list[Parser] = []
        read = Parser.read
        monkeypatch.setattr(Parser, "read", lambda self, argv: (parsers.append(self), read(self, argv))[1])
        shown = fitting(placekit(*name.split(), "--help"))
        words = " ".join(shown.split())
        command = installed().command(name).command
        assert shown.startswith(f"usage: placekit {name}")
        for flag in re.findall(r"--[\w-]+", command.usage):
            assert flag in words
        for parser in parsers:
            for action in parser._actions:
                assert action.help not in (None, argparse.SUPPRESS), action
                assert " ".join(str(action.help).split()) in words
                assert all(option in words for option in action.option_strings)
        assert parsers or name == "run"

    def test_help_of_a_run_has_every_name_and_option(self, placekit: Run) -> None:
        shown = fitting(placekit("run", "--help"))
        assert len(shown.splitlines()) <= 110
        words = shown.split()
        assert {f"{key}=null" for key in ("budget.evaluations", "log")} | {"run_dir=outputs/DATE/TIME"} <= {*words}
        assert [e.component.name for e in installed().all() if e.component.name not in words] == []
        assert [name for _, name in PRESETS if name not in words] == []

    def test_help_on_a_component(self, placekit: Run) -> None:
        for entry in installed().all():
            component, kind = entry.component, entry.kind
            shown = fitting(placekit("run", f"+{kind}={component.name}", "--help"))
            known = getattr(component, "shorthand", ())
            keys = [k if k in known else f"{kind}.{k}" for k in component.config.model_fields]
            assert [key for key in keys if f" {key}=" not in shown] == [], component.name

    @pytest.mark.slow
    def test_help_on_presets(self, placekit: Run) -> None:
        for group, name in PRESETS:
            shown = fitting(placekit("run", f"{group}={name}", "--help"))
            assert f"{group} {name}" in shown
        shown = fitting(placekit("run", "trainer=reinforce", "policy=seq2seq", "--help"))
        assert "its own trainer: reinforce (" in shown
        assert "one of sqrt, linear, scaled" in " ".join(shown.split())
        shown = fitting(placekit("run", "policy=doppler_paper", "--help"))
        assert "policy=doppler\n" in shown
        assert "policy.features=paper\n" in shown
        assert "    policy.hidden=64" in shown, "and the options of the component"
        assert "a sweep over seed: 1, 2, 3" in fitting(placekit("run", "+experiment=quick", "--help"))
        assert "importer.program=chainmm" in fitting(placekit("run", "workload=chainmm_8", "--help"))

    @pytest.mark.parametrize(
        ("argv", "message"),
        [
            (["run", "policy=ann", "--help"], "no policy named 'ann'\n  available: chain, annealing, "),
            (["run", "policy=doppler_papers", "--help"], "did you mean 'doppler_paper'?"),
            (["run", "experiment=quik", "--help"], "no experiment named 'quik'\n  did you mean 'quick'?"),
            (["graph"], "'graph' is not a command by itself\n  available: graph export, graph show\n"),
            (["graph", "shw"], "no command named 'graph shw'\n  did you mean 'graph show'? available: graph export, "),
            (["cmpare"], "no command named 'cmpare'\n  did you mean 'compare'? available: "),
            (["compare"], "compare: the following arguments are required: DIR\n  usage: placekit compare [-h] "),
            (
                ["compare", "--jsn", "x"],
                "compare: unrecognized arguments: --jsn\n  usage: placekit compare [-h] [--json | ",
            ),
            (["plugins", "x", "y"], "plugins: unrecognized arguments: y\n  usage: placekit plugins [-h] [WORD]"),
            (["cluster", "show", "p100x5"], "no cluster named 'p100x5'\n  did you mean 'p100x4'?"),
        ],
    )
    def test_mistakes_name_the_thing_and_what_exists(self, argv: list[str], message: str, placekit: Run) -> None:
        done = placekit(*argv)
        assert (done.code, done.out) == (1, "")
        assert message in done.err


class TestListings:
    def test_what_is_installed(self, placekit: Run) -> None:
        shown = fitting(placekit("plugins"))
        chosen = fitting(placekit("plugins", "Annealing")).splitlines()
        assert len(chosen) < 12
        assert any(line.startswith("    annealing ") for line in chosen)
        words = " ".join(shown.split())
        for entry in installed().all():
            assert f"{entry.distribution} {entry.version}\n" in shown
            assert f" {entry.component.name} {' '.join(entry.component.summary.split())} " in words
        assert all(f"\n    {name} " in shown for name in COMMANDS)

    def test_machines(self, placekit: Run) -> None:
        shown = fitting(placekit("cluster", "show"))
        for group, name in PRESETS:
            if group == "cluster":
                assert f"\n{name} " in shown
                fitting(placekit("cluster", "show", name))

    def test_a_run(self, placekit: Run) -> None:
        shown = fitting(placekit("run", "workload=mlp", "policy=etf", "run_dir=a", "cluster=k80x8"))
        assert "peak memory: " in shown
        head = next(line for line in shown.splitlines() if line.startswith("program"))
        assert head.split() == ["program", "kernels", "groups", "makespan", "bound", "gap", "evals", "seconds"]


class TestTables:
    def test_a_table_that_fits_is_one_line_a_row(self, capsys: pytest.CaptureFixture[str]) -> None:
        table(["name", "value"], [["a", "1"], ["bc", "23"]], title="title")
        assert capsys.readouterr().out == "title\nname  value\na         1\nbc       23\n"

    def test_what_all_rows_share_is_said_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        once = {"place": "in {}", "name": "{}"}
        table(["name", "place", "value"], [["a", "here", "1"], ["b", "here", "2"]], "two", left=2, once=once)
        assert capsys.readouterr().out.splitlines() == ["two, in here", "name  value", "a         1", "b         2"]

    def test_headings_wrap_first_and_then_texts(self, capsys: pytest.CaptureFixture[str]) -> None:
        columns = ["name", "a heading of many words", "another heading of many words", "and one more of them"]
        table(columns, [["a short name", "1", "2", "3"]])
        lines = capsys.readouterr().out.splitlines()
        assert lines[-1].split() == ["a", "short", "name", "1", "2", "3"]
        assert lines[-2].startswith("name")
        assert len(lines) > 2
        table(["name", "number"], [["a name of many words " * 8, "1"]])
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].startswith("a name of")
        assert lines[1].endswith(" 1")
        assert all(line.startswith("  ") for line in lines[2:])
        assert max(map(len, lines)) <= WIDTH

    def test_a_table_too_wide_goes_on_below(self, capsys: pytest.CaptureFixture[str]) -> None:
        columns = ["device", *(f"number{i}" for i in range(12))]
        table(columns, [["gpu:0", *(f"{i}.000 ms" for i in range(12))]])
        parts = [part.splitlines() for part in capsys.readouterr().out.split("\n\n")]
        assert len(parts) == 2
        assert [head.split()[0] for head, _ in parts] == ["device", "device"]
        assert [name for head, _ in parts for name in head.split()[1:]] == columns[1:]
        assert [row.split()[0] for _, row in parts] == ["gpu:0", "gpu:0"]
