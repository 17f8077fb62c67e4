"""`placekit report RUN_DIR [RUN_DIR]`: the page of a run, or one page that sets two runs side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placekit_core import Registry, RunError, parse_json, parse_text, read_bytes, write_atomically
from placekit_core.cli.parser import Parser
from placekit_core.contracts.files import reading
from placekit_core.run.run_directory import CONFIG, RESULT
from placekit_report.document import VERSION, document_of, shown
from placekit_report.logger import PAGE
from placekit_report.page import render

BOTH = "comparison.html"
_DATA = re.compile(r'<script type="application/json" id="placekit-data">(.*?)</script>', re.DOTALL)
_MAX_BYTES, _MAX_VALUES = 2**28, 2**26


def main(argv: list[str], registry: Registry) -> int:
    """Write the page of one run, or one that compares two, from the data in the pages that the runs wrote."""
    parser = Parser("report", "A page about a run, or about two of them: one HTML file that needs no network.")
    parser.add_argument("folders", nargs="+", metavar="RUN_DIR", type=Path, help="the run_dir of a run, or of two")
    parser.add_argument(
        "--out", type=Path, metavar="FILE",
        help=f"write it here; without it, RUN_DIR/{PAGE}, and of two runs {BOTH} in the first RUN_DIR",
    )  # fmt: skip
    arguments = parser.read(argv)
    folders: list[Path] = arguments.folders
    if len(folders) > 2:
        raise RunError(
            f"a page compares two runs, not {len(folders)}", "`placekit compare --html DIR ...` has any number of runs"
        )
    out = arguments.out or folders[0] / (PAGE if len(folders) == 1 else BOTH)
    data = render(document_of([{**read_run(folder), "name": shown(folder)} for folder in folders])).encode()
    try:
        write_atomically(out, data)
    except OSError as e:
        raise RunError(f"cannot write {out}: {e.strerror or e}", "choose another: --out FILE") from None
    print(f"written to {out}")
    return 0


def read_run(folder: Path) -> Mapping[str, Any]:
    """The data of the run in `folder`, from its report.html.

    Raises RunError if it has no page, or one that another version of placekit wrote.
    """
    path = folder / PAGE
    if not path.is_file():
        raise _missing(folder)
    with reading(path, RunError):
        found = _DATA.search(parse_text(read_bytes(path, _MAX_BYTES)))
        data = parse_json(found[1].encode(), _MAX_VALUES, _MAX_BYTES) if found else None
        if not isinstance(data, dict) or data.get("version") != VERSION or len(data.get("runs", ())) != 1:
            raise ValueError("this is not the page of one run, or another version of placekit wrote it")
    run: Mapping[str, Any] = data["runs"][0]
    return run


def _missing(folder: Path) -> RunError:
    """The error for a folder without a page: it says what is there instead."""
    if (folder / RESULT).is_file():
        return RunError(f"{folder} has no {PAGE}", "run it again with logger report: `log=[csv,report]`")
    if (folder / CONFIG).is_file():
        return RunError(f"the run in {folder} has not finished", f"continue it: placekit run resume={folder}")
    pages = sorted(path.parent for path in folder.rglob(PAGE)) if folder.is_dir() else []
    hint = f"give one of the {len(pages)} below it, e.g. {pages[0]}" if pages else "give the run_dir of a run"
    return RunError(f"{folder} is no directory of a run", hint)
