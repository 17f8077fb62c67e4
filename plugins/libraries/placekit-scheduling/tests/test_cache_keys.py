"""Compiled code on disk follows changes in the files that it takes something from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from placekit_scheduling.cache_keys import digest
from placekit_scheduling.jit import njit

RULES = """
from typing import NamedTuple
import numpy as np
from numba import types
from placekit_scheduling.jit import njit
FACTOR = 3.0
TABLE = np.arange(4)
WIDE = types.int64
OTHER = 1.0
class Pair(NamedTuple):
    a: float
    b: float
@njit(cache=True)
def half(x):
    return x / 2
@njit(cache=True)
def double(x, times=4):
    return times * half(x)
BOTH = half, double
@njit(cache=True)
def unused(x):
    return x
"""
KERNEL = """
import {rules} as rules
from {rules} import BOTH, FACTOR, TABLE, WIDE, Pair, double
from placekit_scheduling.jit import njit
@njit(cache=True)
def scaled(x):
    return Pair(double(x) * FACTOR + rules.FACTOR + 0 * BOTH[0](x), TABLE[WIDE(1)])
"""


def _scaled(source: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    modules = {name: ModuleType(name) for name in ("keyed_rules", "keyed_kernel")}
    for module, text in zip(modules.values(), (source, KERNEL.format(rules="keyed_rules")), strict=True):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(text, __file__, "exec"), module.__dict__)
    return modules["keyed_kernel"].__dict__["scaled"]


CHANGES = {
    "a constant": ("FACTOR = 3.0", "FACTOR = 4.0"),
    "its type": ("FACTOR = 3.0", "FACTOR = 3"),
    "an array": ("arange(4)", "arange(5)"),
    "a called function": ("times * half(x)", "half(x) * times"),
    "its default": ("times=4", "times=5"),
    "its module": ("BOTH =", "half.py_func.__module__ = 'elsewhere'\nBOTH ="),
    "an order": ("half, double", "double, half"),
    "a type": ("types.int64", "types.int32"),
    "one that it calls": ("x / 2", "x / 3"),
    "an option": ("@njit(cache=True)\ndef half", "@njit(cache=True, fastmath={'nsz', 'reassoc'})\ndef half"),
    "a field": ("b: float\n", "b: float = 1.0\n    c: float = 0.0\n"),
}


def test_a_key_changes_with_what_is_used_and_with_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(_scaled(RULES, monkeypatch))
    unused = {
        "a comment": ("OTHER = 1.0", "# a comment\nOTHER = 2.0"),
        "an unused function": ("return x\n", "return -x\n"),
    }
    for name, (old, new) in {**CHANGES, **unused}.items():
        assert old in RULES
        assert (digest(_scaled(RULES.replace(old, new), monkeypatch)) == before) == (name in unused), name


def test_what_a_closure_holds_is_used() -> None:
    def adding(term: Any) -> Any:
        return njit(cache=True)(lambda x: x + term)

    assert digest(adding(1)) == digest(adding(1)) != digest(adding(2))
    assert digest(adding(np.zeros(2))) != digest(adding(np.ones(2)))


def _printed(script: Path) -> list[float]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": "", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, script], env=environment, check=True, capture_output=True, text=True)
    return [float(x) for x in done.stdout.split()]


@pytest.mark.slow
def test_code_on_disk_follows_other_files(tmp_path: Path) -> None:
    """The times of files are kept, so that only the key can tell."""
    rules, kernel, script = (tmp_path / f"{name}.py" for name in ("disk_rules", "disk_kernel", "script"))
    kernel.write_text(KERNEL.format(rules="disk_rules"))
    script.write_text("from disk_kernel import scaled\nprint(scaled(1.0).a, sum(scaled.stats.cache_misses.values()))")

    def run(source: str) -> list[float]:
        rules.write_text(source)
        os.utime(rules, (1.8e9, 1.8e9))
        return _printed(script)

    assert run(RULES) == [9.0, 1]
    assert run(RULES) == [9.0, 0], "loaded"
    assert run(RULES.replace("times=4", "times=6")) == [12.0, 1]
    assert run(RULES) == [9.0, 0], "what was there before is found again"


def test_njit_is_called_with_options() -> None:
    with pytest.raises(TypeError, match=r"write @njit\(\)"):
        njit(lambda x: x)
