"""Loaded by pytest wherever placekit is installed (entry point `pytest11`); light for those who use none of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from placekit_core.problem import Problem, Task
    from placekit_core.testing.fakes import FakeLearnable

pytest.register_assert_rewrite(
    *(
        f"placekit_core.testing.{m}"
        for m in (
            "contract", "importers", "groupers", "policies", "learnable", "trainers", "backends", "observed", "fakes",
        )
    )
)  # fmt: skip


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
