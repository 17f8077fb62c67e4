"""The pictures and notebooks of the documents: their commands make them again, and they hold nothing of a machine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.repo import script

DOCS = Path(__file__).resolve().parent.parent / "docs"
SVGS = sorted(DOCS.glob("pictures/*.svg"))
NOTEBOOKS = sorted(DOCS.glob("examples/*.ipynb"))
LIMIT = 250_000


@pytest.mark.parametrize("path", SVGS, ids=lambda p: p.name)
def test_pictures_are_small_and_ask_for_nothing_from_outside(path: Path) -> None:
    text = path.read_text()
    ElementTree.fromstring(text)
    assert len(text) < LIMIT
    assert set(re.findall(r"https?://[^\"<]*", text)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "prefers-color-scheme" in text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebooks_were_run_and_name_no_machine(path: Path) -> None:
    text = path.read_text()
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)], "run in order, in a fresh kernel"
    assert cells[-1]["outputs"]
    assert not re.search(r"/(home|root|tmp|Users)/|0x[0-9a-f]{8}|Traceback|\"iopub", text)
    assert len(text) < LIMIT
    assert f"\nexamples/{path.stem}\n" in (DOCS / "index.md").read_text()


@pytest.mark.slow
@pytest.mark.long
def test_the_timeline_is_what_its_command_makes() -> None:
    assert script("pictures").main([]) == 0


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebooks_show_the_same_again(path: Path) -> None:
    assert script("notebooks").main([str(path)]) == 0
