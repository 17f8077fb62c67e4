"""The trainers keep to the contract."""

from __future__ import annotations

from functools import partial

import pytest
from placekit_learn.policy_gradient import Reinforce
from placekit_learn.ppo import PPO
from placekit_testing.trainers import TrainerContract

FAST = {"learning_rate": 0.1}  # the policy of these checks has one parameter per decision, not a network


class TestReinforce(TrainerContract):
    @pytest.fixture
    def make(self):
        return partial(Reinforce, **FAST)


class TestReinforceWithEverything(TrainerContract):
    short = True

    @pytest.fixture
    def make(self):
        return partial(
            Reinforce, **FAST, reward="scaled", failing="signal", baseline_start="failing", only_fitting_after=10,
            normalise=True, max_gradient_norm=1.0, entropy_weight=0.01, entropy_weight_end=0.0, learning_rate_end=0.01,
            explore_end=0.5,
        )  # fmt: skip


class TestReinforceBySteepestAscent(TrainerContract):
    short = True

    @pytest.fixture
    def make(self):
        return partial(Reinforce, optimiser="sgd", learning_rate=1.0, reward="linear")


class TestClippedPPO(TrainerContract):
    @pytest.fixture
    def make(self):
        return partial(PPO, **FAST)


class TestPenalisedPPO(TrainerContract):
    short = True

    @pytest.fixture
    def make(self):
        return partial(PPO, **FAST, clip=None, kl_target=0.03)
