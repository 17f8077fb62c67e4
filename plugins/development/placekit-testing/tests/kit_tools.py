"""Runs the checks of a contract on right and wrong implementations."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from placekit_testing import Contract
from placekit_testing.contract import checks_of, run_check

Make = Callable[..., Any]
Wrong = tuple[str, Make, str]
"""A check, a wrong implementation, and words of the error that the check must raise."""


def own_checks(contract: type[Contract], base: type[Contract] = Contract) -> list[str]:
    """The checks that a contract adds to its base."""
    return [name for name in checks_of(contract) if name not in checks_of(base)]


def outcome(contract: type[Contract], name: str, make: Make, tmp_path: Path) -> str:
    """`passed`, `skipped: ...`, or the error of a check."""
    try:
        run_check(contract(), name, make, Path(tempfile.mkdtemp(dir=tmp_path)))
    except pytest.skip.Exception as e:
        return f"skipped: {e}"
    except (Exception, pytest.fail.Exception) as e:
        return f"{type(e).__name__}: {e}"
    return "passed"


def skipped(contract: type[Contract], names: Iterable[str], make: Make, tmp_path: Path) -> set[str]:
    """The checks that are skipped for an implementation; it passes the others."""
    found = {name: outcome(contract, name, make, tmp_path) for name in names}
    failed = {name: said for name, said in found.items() if said != "passed" and not said.startswith("skipped")}
    assert failed == {}, failed
    return {name for name, said in found.items() if said != "passed"}


def catches(contract: type[Contract], names: Iterable[str], wrong: Iterable[Wrong], tmp_path: Path) -> None:
    """Each wrong implementation fails its check with the expected words, and each of the checks `names` finds one."""
    wrong = list(wrong)
    assert set(names) <= {name for name, _, _ in wrong}, "a check finds no wrong implementation"
    found = [(name, says, outcome(contract, name, make, tmp_path)) for name, make, says in wrong]
    missed = [f"{name}: expected {says!r}, got {said[:300]}" for name, says, said in found if says not in said]
    assert missed == [], "\n".join(missed)


def writable(array: Any) -> Any:
    """A shared array that is read-only, made writable through the array behind it, as no plugin does by mistake."""
    if array.base is not None:
        array.base.setflags(write=True)
    array.setflags(write=True)
    return array


def changed(base: type, name: str = "Changed", **members: Any) -> Any:
    """A subclass with these members."""
    return type(name, (base,), members)
