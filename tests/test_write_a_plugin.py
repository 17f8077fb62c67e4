"""The guide for authors of plugins: every command runs, in an environment of its own.

`python -m tests.test_write_a_plugin` replaces the outputs that have changed; files that are shown are replaced by hand.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from placekit_testing.new_plugin import package

from placekit_core import installed
from tests.venvs import ROOT, make_venv, run

GUIDE = ROOT / "docs" / "write-a-plugin.md"
NAMED = re.compile(r"^<!-- file: placekit-[\w-]+/([^\n]+) -->\n```\w+\n(.*?)^```$", re.M | re.S)
OWN = ("placekit_my_method/conf/policy/my_method_long.yaml", "placekit_my_method/slowest.py")
"""What the guide adds to the package that new-plugin writes."""


def play(python: Path, page: Path, *options: str) -> None:
    """Run a page, and compare what it shows with what is printed."""
    run(python, "python", str(ROOT / "docs" / "outputs.py"), *options, str(page))


@pytest.mark.slow
def test_its_commands_do_what_it_shows(tmp_path: Path) -> None:
    play(make_venv(tmp_path / "venv"), GUIDE)


def test_the_files_shown_are_those_that_new_plugin_writes() -> None:
    text = GUIDE.read_text()
    kind, name = re.findall(r"^\$ placekit new-plugin (\w+) ([\w-]+)$", text, re.M)[0]
    files = package(kind, name.replace("-", "_"), installed())
    shown: dict[str, str] = {}
    for path, content in NAMED.findall(text):
        shown.setdefault(path, content)  # the guide replaces one later on
    own = {path for path in shown if path not in files}
    assert own == set(OWN)
    assert {path: files[path] for path in shown if path in files} == {p: t for p, t in shown.items() if p not in own}
    module = name.replace("-", "_")
    assert f"placekit_{module}/{module}.py" in shown


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        play(make_venv(Path(folder) / "venv"), GUIDE, "--refresh")
