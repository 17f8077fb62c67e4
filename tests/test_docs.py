"""The documents: their outputs are what the commands print, and what they list is what there is."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import symtable
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from placekit_testing.speed import mostly_slow
from pydantic import BaseModel

import placekit_core
from placekit_core import installed
from placekit_core.cli.main import overview
from placekit_core.contracts import hookspecs
from placekit_core.run.config import RunConfig
from placekit_core.run.entries import Entry
from placekit_core.run.registry import PLURAL, discover
from tests.repo import lazy_names, modules, script, tracked
from tests.test_links import dead_on_site

ROOT = Path(__file__).resolve().parent.parent
READMES = sorted(ROOT.glob("plugins/*/*/README.md"))


outputs = script("outputs")


def documents() -> list[Path]:
    """Those with commands that are run: `test_papers.py` has the pages of research, `test_write_a_plugin.py` what installs."""
    texts = {path: path.read_text() for path in outputs.documents() if path.parent.name != "research"}
    return [path for path, text in texts.items() if run_here(text) and not outputs.installs(text)]


def run_here(text: str) -> bool:
    """Whether a document has commands that are neither slow nor only shown."""
    return any(b.language == "console" and not {"slow", "not run"} & set(b.comments) for b in outputs.blocks(text))


LONG = [
    ROOT / "docs" / f"{name}.md"
    for name in (
        "apply", "command-line", "formats", "getting-started", "models", "pipelines", "plan",
        "python-api", "strategies", "sweeps",
    )
]  # fmt: skip
LONG += [path for path in READMES if path in documents()]


@pytest.mark.parametrize("path", mostly_slow(documents(), [], LONG), ids=lambda p: str(p.relative_to(ROOT)))
def test_documents_show_what_commands_print(path: Path) -> None:
    _, differences = outputs.check(path.read_text())
    assert not differences, "\n".join(map(str, differences)) + "\n`make docs-outputs` replaces what is shown"


def test_commands_are_in_blocks_that_are_run_or_say_why_not() -> None:
    for path in outputs.documents():
        for block in outputs.blocks(path.read_text()):
            if block.language == "console":
                where = f"{path}, line {block.start}"
                steps = outputs.steps(block)
                assert steps, where
                assert block.comments.get("not run") != "", f"{where} gives no reason"
                for step in steps:  # a script belongs into benchmarks/, where it is tested
                    assert not step.command.startswith("python -c") or len(step.shown) <= 5, where


class TestOutputs:
    DOCUMENT = """\
```{note}
A directive.
```

<!-- file: data/x.txt -->
```
one
two 3.5 s
```

<!-- varies: [\\d.]+ s -->
```console
$ cat data/x.txt
one
two 9.9 s
$ python -c "
> print('a', 1)
> print('b', 2)
> "
...
b 2
```

<!-- slow -->
```console
$ python -c "print(1)"
never
```
"""

    def test_a_document_that_is_right_stays(self) -> None:
        assert outputs.check(self.DOCUMENT) == (self.DOCUMENT, [])

    def test_what_may_differ_is_replaced_when_asked_for(self) -> None:
        assert outputs.check(self.DOCUMENT, refresh=True) == (self.DOCUMENT.replace("9.9", "3.5"), [])

    def test_what_differs_is_found_and_replaced(self) -> None:
        wrong = self.DOCUMENT.replace("one\ntwo 9.9 s\n$", "eins\ntwo 9.9 s\nthree\n$").replace("b 2\n```", "b 3\n```")
        text, differences = outputs.check(wrong)
        assert [d.step.shown[0] for d in differences] == ["$ cat data/x.txt", '$ python -c "']
        assert text == self.DOCUMENT.replace("9.9", "3.5")

    def test_what_a_document_leaves_out_stays_left_out(self) -> None:
        printed = ["a", "", "head", "1", "2"]
        assert outputs.shortened(["...", "head", "0"], printed) == ["...", "head", "1", "2"]
        assert outputs.shortened(["a", "...", "new", "2"], printed) == ["a", "...", "head", "1", "2"]
        assert outputs.shortened(["a", "...", "new", "2"], ["a", "b", "1", "2"]) == ["a", "...", "1", "2"]
        assert outputs.shortened(["...", "head", "...", "2"], printed) == printed

    def test_a_command_that_fails_is_found_and_not_written_down(self) -> None:
        block = '```console\n$ python -c "print(2); raise SystemExit(3)"\n1\n```\n'
        text, [difference] = outputs.check(block)
        assert difference.code == "exit code 3"
        assert text == block
        text, [difference] = outputs.check(f"<!-- fails -->\n{block}")
        assert difference.code == ""
        assert text == f"<!-- fails -->\n{block}".replace("\n1\n", "\n2\n")
        _, [difference] = outputs.check('<!-- fails -->\n```console\n$ python -c "print(1)"\n1\n```\n')
        assert "none of these commands failed" in str(difference)


def hooks() -> dict[str, Any]:
    return {n: f for n, f in inspect.getmembers(hookspecs, inspect.isfunction) if n.startswith("placekit_")}


def test_every_hook_is_in_the_guide() -> None:
    assert len(hooks()) >= 9
    assert [n for n in hooks() if f"`{n}`" not in (ROOT / "docs" / "write-a-plugin.md").read_text()] == []


def test_the_examples_of_hooks_are_implementations() -> None:
    examples = {n: (inspect.getdoc(f) or "").partition("Example::\n\n")[2] for n, f in hooks().items()}
    alike = {
        "placekit_groupers",
        "placekit_importers",
        "placekit_trainers",
        "placekit_backends",
    }  # as placekit_policies
    tutorial = {"placekit_commands", "placekit_checkpoint", "placekit_run_finished"}
    assert {name for name, example in examples.items() if not example} == alike | tutorial
    for name, example in examples.items():
        if example:
            check_example(name, textwrap.dedent(example))


def check_example(name: str, example: str) -> None:
    """The example in the docstring of a hook is registered as an implementation of it."""
    plugin = ModuleType("example")
    names = ("Cluster", "Component", "ErrorBand", "Export", "hookimpl")
    plugin.__dict__.update({n: getattr(placekit_core, n) for n in names})
    plugin.__dict__.update(os=os, sys=sys, GreedyOptions=placekit_core.Options)
    exec(example, plugin.__dict__)
    registry = discover([])
    before = len(registry.all())
    registry.add("example", plugin, "placekit-example", "0")
    assert registry.broken == []
    [implementation] = [i for i in getattr(registry.manager.hook, name).get_hookimpls() if i.plugin_name == "example"]
    assert implementation.function is getattr(plugin, name)
    assert len(registry.all()) - before == (name.removeprefix("placekit_") in PLURAL.values())


COMMAND_LINE = (ROOT / "docs" / "command-line.md").read_text()


def cell(text: str) -> str:
    return text.strip().strip("`")


def tables(text: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Header and rows of every table."""
    for table in re.findall(r"(?:^\|.*\n)+", text + "\n", re.M):
        rows = [[cell(c) for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()]
        yield rows[0], rows[2:]


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Options of a model by dotted name, with their defaults, but for the sections of components."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from leaves(inner, f"{prefix}{name}.")
        elif not field.is_required():
            yield prefix + name, field.get_default()


def test_every_option_of_a_run_is_documented() -> None:
    groups, options = (
        {row[0] for row in rows} for head, rows in tables(COMMAND_LINE) if head[0] in ("group", "option")
    )
    sections = {n for n, f in RunConfig.model_fields.items() if f.is_required()}
    assert groups == {"backend@proxy" if s == "proxy" else s for s in sections} | {"parallel", "workload", "experiment"}
    assert options == {name for name, _ in leaves(RunConfig)} - {"workload", "parallel", "python_objects"}


def test_the_overview_of_the_commands_is_what_help_prints() -> None:
    assert f"$ placekit --help\n{overview(installed())}\n```" in COMMAND_LINE


def documented_options(readme: str, entries: list[Entry]) -> dict[str, dict[str, Any]]:
    """The options that a README explains, with defaults, by component; `--help` lists all of them.

    A table has a column `default` for all components, or for those that a further column names, or a column per component.
    An empty cell is no option where components have columns, else a text that must be given.
    """
    names = [e.component.name for e in entries]
    found: dict[str, dict[str, Any]] = {n: {} for n in names}

    def value(text: str) -> Any:
        return yaml.safe_load(text) if text else ""

    for head, rows in tables(readme.partition("\n## Options\n")[2].partition("\n## ")[0]):
        for row in rows:
            cells = dict(zip(head, row, strict=True))
            if "default" in cells:
                [owners] = [v for k, v in cells.items() if k in PLURAL.values()] or [", ".join(names)]
                for name in owners.replace("`", "").split(", "):
                    found[name][cells["option"]] = value(cells["default"])
            else:
                for name in names:
                    if cells.get(name):
                        found[name][cells["option"]] = value(cells[name])
    return found


def test_options_in_readmes_exist_and_have_their_defaults() -> None:
    for readme in READMES:
        entries = [e for e in installed().all() if e.distribution == readme.parent.name]
        documented = documented_options(readme.read_text(), entries)
        for entry in entries:
            actual = entry.component.config().model_dump(mode="json")
            assert documented[entry.component.name].items() <= actual.items(), readme


def test_every_option_is_described_in_the_help() -> None:
    components = [e.component for e in installed().all()]
    undescribed = [
        f"{c.name}.{name}" for c in components for name, field in c.config.model_fields.items() if not field.description
    ]
    assert undescribed == []


IMPORT = re.compile(r"\b(?:from (placekit_[\w.]+) import (?:\(([^)]*)\)|([\w, ]+))|import (placekit_[\w.]+))")


def imports(code: str) -> Iterator[tuple[str, str]]:
    """(module, name) of what code imports of placekit; the name is '' for a module itself."""
    for module, several, names, alone in IMPORT.findall(code):
        listed = re.sub(r"#.*|^> ", "", several or names, flags=re.M).split(",")
        yield from ((module, name.split()[0]) for name in listed if name.strip())
        yield module or alone, ""


def exists(module: str, name: str) -> bool:
    """Whether the repository has this module, and the module this name. Its file is read: imports would take seconds."""
    if module not in modules() or not name or f"{module}.{name}" in modules():
        return module in modules()
    symbols = symtable.symtable(modules()[module].read_text(), module, "exec").get_symbols()
    own = {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}
    return name in own or name in (lazy_names(module) if "." not in module else {})


def test_code_imports_names_that_exist() -> None:
    found = [
        (f"{path.relative_to(ROOT)}, line {block.start}", *use)
        for path in tracked()
        if path.suffix == ".md"
        for block in outputs.blocks(path.read_text())
        if block.language in ("python", "py", "console")
        for use in imports("\n".join(block.lines))
        if not use[0].startswith("placekit_my_")  # the reader's own
    ]
    assert len(found) > 40
    assert [use for use in found if not exists(*use[1:])] == []


@pytest.mark.slow
@pytest.mark.long
def test_the_site_builds_without_warnings_and_dead_links(tmp_path: Path) -> None:
    command = ["-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "-d", str(tmp_path / "doctrees")]
    done = subprocess.run(
        [sys.executable, *command, str(ROOT / "docs"), str(tmp_path / "html")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = {p.relative_to(tmp_path / "html").with_suffix("").as_posix() for p in tmp_path.glob("html/**/*.html")}
    assert {f"_pages/plugins/{p.parent.name}" for p in READMES} <= pages
    assert dead_on_site(tmp_path / "html") == []
    for name in hooks():
        assert (
            f'id="placekit_core.contracts.hookspecs.{name}"'
            in (tmp_path / "html" / "_pages" / "reference" / "hooks.html").read_text()
        )
