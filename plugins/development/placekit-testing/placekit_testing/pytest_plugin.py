"""Loaded by pytest wherever placekit is installed (entry point `pytest11`); light for projects that do not use it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from placekit_core import Problem, Task
    from placekit_testing.fakes import FakeLearnable

pytest.register_assert_rewrite(
    *(
        f"placekit_testing.{m}"
        for m in (
            "contract", "importers", "groupers", "policies", "learnable", "trainers", "backends", "observed", "fakes",
            "children", "evaluations", "schedules",
        )
    )
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: Any, name: str, obj: object) -> list[Any] | None:
    """Leave out checks that do not apply to a contract class; raise an error for a class that disables a check."""
    kit = sys.modules.get("placekit_testing.contract")
    if kit is None:
        return None
    if not isinstance(obj, type):
        contract = getattr(collector, "cls", None)
        claimed = contract is None or not issubclass(contract, kit.Contract) or kit.is_claimed(contract, obj)
        return None if claimed else []
    if not issubclass(obj, kit.Contract):
        return None
    if not collector.classnamefilter(name):
        return None
    if problem := kit.marks_refused(collector.iter_markers()):
        raise collector.CollectError(f"the tests of {name} are put out of action for its whole module: {problem}")
    if problem := kit.refusal(obj):
        raise collector.CollectError(problem)
    return None


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


@pytest.fixture
def placekit_problem() -> Problem:
    """The diamond on two equal GPUs: six operations, each a group of its own."""
    from placekit_testing import fakes

    return fakes.diamond()


@pytest.fixture
def placekit_mixed_problem() -> Problem:
    """Twelve operations on a chain, some of which may run on the CPU or on the two GPUs only."""
    from placekit_testing import fakes

    return fakes.mixed()


@pytest.fixture
def placekit_task() -> Task:
    """Eight operations on three unequal devices, 200 evaluations on a backend whose `lower_bound` is the optimum."""
    from placekit_testing import fakes

    return fakes.fake_task(fakes.unequal())


@pytest.fixture
def placekit_learnable_policy() -> FakeLearnable:
    """A learnable policy for tests of trainers; call its `build` first."""
    from placekit_testing import fakes

    return fakes.FakeLearnable()
