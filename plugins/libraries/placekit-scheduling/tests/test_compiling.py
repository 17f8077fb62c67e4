"""A first run says that it compiles."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba import njit
from placekit_scheduling.jit import COMPILING, inner

from placekit_core.contracts.progress import listening


@pytest.mark.parametrize("module", ["placekit_scheduling.levels", "of_a_user"])
def test_every_compilation_is_told_once(module: str) -> None:
    """A line that stays is about placekit's own functions: those of others may be compiled by every run.

    numba imports the module of what it compiles, so that nothing in this one may be compiled itself.
    """

    def plus_one(x: Any) -> Any:
        return x + 1

    plus_one.__module__ = module
    function, heard, lines = njit(plus_one), list[Any](), list[str]()
    with listening(lambda *said: heard.append(said), lines.append):
        assert [function(1), function(2), function(1.0)] == [2, 3, 2.0]
    assert heard == [("compiling plus_one, once on this computer", None)] * 2
    assert lines == ([COMPILING] if module.startswith("placekit_") else [])


@inner
def _twice(x: Any) -> Any:
    return 2 * x


@njit
def _twice_and_one(x: Any) -> Any:
    return _twice(x) + 1


def test_what_only_compiled_code_calls_refuses_python() -> None:
    assert [_twice_and_one(2), _twice_and_one(2.5)] == [5, 6.0]
    with pytest.raises(TypeError, match="_twice can only be called by compiled code"):
        _twice(2)


@pytest.mark.slow
def test_numba_loads_compiled_code_without_scipy(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import sys
from placekit_scheduling.jit import compiled
function = compiled(lambda x: x + 1)
assert function(1) == 2
assert "scipy.linalg" not in sys.modules
import numpy as np, numba
assert numba.njit(lambda a, b: np.dot(a, b))(np.ones(3), np.ones(3)) == 3.0
assert numba.njit(lambda a: np.linalg.inv(a))(2.0 * np.eye(2))[0, 0] == 0.5
""")
    pytest.importorskip("scipy", reason="numba's linear algebra is scipy's")
    subprocess.run([sys.executable, script], check=True)
