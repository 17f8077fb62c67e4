"""Trainer `my_method` and policy `my_method_softmax`: their contracts, and what is their own."""

from __future__ import annotations

import numpy as np
import pytest
from placekit_my_method.my_method import MyMethod
from placekit_my_method.softmax import MyMethodSoftmax
from placekit_testing import LearnablePolicyContract, TrainerContract, fakes

from placekit_core import BudgetExhausted


class TestMyMethod(TrainerContract):
    @pytest.fixture
    def make(self) -> type[MyMethod]:
        return MyMethod


class TestMyMethodSoftmax(LearnablePolicyContract):
    @pytest.fixture
    def make(self) -> type[MyMethodSoftmax]:
        return MyMethodSoftmax


def test_together_they_find_the_optimum() -> None:
    task = fakes.fake_task(fakes.unequal(), budget=2000)
    policy, rng = MyMethodSoftmax(), np.random.default_rng(0)
    policy.build([task.problem], rng)
    with pytest.raises(BudgetExhausted):
        MyMethod().fit(policy, [task], rng)
    assert task.evaluate.best is not None
    assert task.evaluate.best.placement.device.tolist() == fakes.session_of(task).optimum().tolist()
