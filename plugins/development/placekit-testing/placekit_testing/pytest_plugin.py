"""pytest loads this wherever placekit is installed (entry point `pytest11`), so it imports nothing heavy."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.register_assert_rewrite(
    *(
        f"placekit_testing.{m}"
        for m in (
            "contract", "importers", "groupers", "policies", "learnable", "trainers", "backends", "observed", "fakes",
            "children", "evaluations", "schedules",
        )
    )
)  # fmt: skip


def pytest_configure() -> None:
    """Tests neither use nor add to what the user's runs have kept: no folder can be in this file."""
    os.environ["PLACEKIT_CACHE_DIR"] = os.devnull


class Outcome(NamedTuple):
    """The outcome of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def placekit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Outcome]:
    """Run `placekit ARGS` in this process, in an empty folder."""
    from placekit_core.cli.main import main

    def run(*args: str) -> Outcome:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["placekit", *args])
        try:
            code = main()
        except SystemExit as e:  # Hydra's --cfg exits like this
            code = int(e.code or 0)
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    monkeypatch.chdir(tmp_path)
    return run
