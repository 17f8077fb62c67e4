"""Policy `my_method`: the contract of learnable policies, and that it learns."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from placekit_learn.ppo import PPO
from placekit_my_method.my_method import MyMethod
from placekit_testing import LearnablePolicyContract, fakes

from placekit_core import BudgetExhausted


class TestMyMethod(LearnablePolicyContract):
    @pytest.fixture
    def make(self) -> partial[MyMethod]:
        return partial(MyMethod, hidden=16)


def test_it_learns_where_each_group_is_fastest() -> None:
    """Without exploration, the trained policy places every group of a small graph on its fastest device."""
    task = fakes.fake_task(fakes.unequal(), budget=1000)
    policy, rng = MyMethod(), np.random.default_rng(0)
    policy.build([task.problem], rng)
    with pytest.raises(BudgetExhausted):
        PPO(samples=20, learning_rate=0.01).fit(policy, [task], rng)
    assert policy.place(task, rng).device.tolist() == fakes.session_of(task).optimum().tolist()
