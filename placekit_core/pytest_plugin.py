"""Loaded by pytest wherever placekit is installed (entry point `pytest11`); light for those who use none of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from placekit_core.problem import Problem, Task
    from placekit_core.testing.fakes import FakeLearnable

pytest.register_assert_rewrite(
    *(
        f"placekit_core.testing.{m}"
        for m in (
            "contract", "importers", "groupers", "policies", "learnable", "trainers", "backends", "observed", "fakes",
            "children", "evaluations", "schedules",
        )
    )
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: Any, name: str, obj: object) -> None:
    """An error of the collection for a contract class of which a check is put out of action."""
    kit = sys.modules.get("placekit_core.testing.contract")
    if kit is None or not isinstance(obj, type) or not issubclass(obj, kit.Contract):
        return
    if not collector.classnamefilter(name):
        return
    if problem := kit.marks_refused(collector.iter_markers()):
        raise collector.CollectError(f"the checks of {name} are put out of action for its whole module: {problem}")
    if problem := kit.refusal(obj):
        raise collector.CollectError(problem)


@pytest.fixture
def placekit_problem() -> Problem:
    """The diamond on two equal GPUs: six operations, each a group of its own."""
    from placekit_core.testing import fakes

    return fakes.diamond()


@pytest.fixture
def placekit_mixed_problem() -> Problem:
    """Twelve operations on a chain, some of which may run on the CPU or on the two GPUs only."""
    from placekit_core.testing import fakes

    return fakes.mixed()


@pytest.fixture
def placekit_task() -> Task:
    """Eight operations on three unequal devices, 200 evaluations on a backend whose `lower_bound` is the optimum."""
    from placekit_core.testing import fakes

    return fakes.fake_task(fakes.unequal())


@pytest.fixture
def placekit_learnable_policy() -> FakeLearnable:
    """A learnable policy for tests of trainers; call its `build` first."""
    from placekit_core.testing import fakes

    return fakes.FakeLearnable()
