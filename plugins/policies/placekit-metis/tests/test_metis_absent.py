"""Without METIS the plugin is there, and its policy says what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from placekit_metis.partition import Metis

from placekit_core import NotApplicable


def test_what_is_missing_and_what_else_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(NotApplicable, match="'metis' needs the package pymetis") as e:
        Metis()
    for word in ("pip install pymetis", "Linux on x86-64", "macOS", "policy=scotch", "policy=heft"):
        assert word in e.value.hint


def test_the_plugin_imports_no_library() -> None:
    code = "import placekit_metis.partition, sys; print([m for m in ('pymetis', 'numba', 'torch') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
