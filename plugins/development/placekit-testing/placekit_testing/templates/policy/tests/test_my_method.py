"""Policy `my_method`: the contract of policies, and what is its own."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import numpy as np
import pytest
from placekit_my_method.my_method import MyMethod
from placekit_testing import PolicyContract, fakes

from placekit_core import BudgetExhausted


class TestMyMethod(PolicyContract):
    @pytest.fixture
    def make(self) -> partial[MyMethod]:
        return partial(MyMethod, samples=50)


def best_s(samples: int) -> float:
    """The value of the best placement that was drawn, in seconds."""
    task = fakes.fake_task(fakes.unequal(), budget=1000)
    with suppress(BudgetExhausted):
        MyMethod(samples=samples).place(task, np.random.default_rng(0))
    assert task.evaluate.best is not None
    return task.evaluate.best.value_s


def test_more_samples_find_a_better_placement() -> None:
    assert best_s(100) < best_s(1)
