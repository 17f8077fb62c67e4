"""Without Scotch the plugin is there, and its policies say what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from placekit_scotch.mapping import MinCut, Scotch

from placekit_core import NotApplicable


@pytest.mark.parametrize("policy", [Scotch, MinCut])
def test_what_is_missing_and_what_else_there_is(policy: type[Scotch], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [m for m in sys.modules if m.partition(".")[0] == "pyscotch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyscotch", None)
    with pytest.raises(NotApplicable, match=rf"'{policy.name}' needs the package pyscotch") as e:
        policy()
    for word in ("pip install pyscotch", "Linux", "aarch64", "policy=metis", "policy=heft"):
        assert word in e.value.hint


def test_the_plugin_imports_no_library() -> None:
    code = "import placekit_scotch.mapping, sys; print([m for m in ('pyscotch', 'numba', 'torch') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
