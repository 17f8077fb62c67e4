"""The policy `gdp` and the trainer `ppo_gdp` keep their contracts."""

from __future__ import annotations

from functools import partial

import pytest
from placekit_gdp.gdp import GDP
from placekit_gdp.trainer import GDPTrainer
from placekit_testing import LearnablePolicyContract
from placekit_testing.speed import mostly_slow
from placekit_testing.trainers import TrainerContract

SMALL = {"hidden": 8, "heads": 2, "rounds": 2, "layers": 2, "type_size": 4, "type_buckets": 16}
NETWORKS = {
    "gdp": {},  # in one segment: no gradient goes back into an earlier one, so with several, differences err
    "no superposition": {"superposition": False},
    "no attention": {"attention": False, "segment": 5},
}


class TestGDP(LearnablePolicyContract):
    recomputes_log_prob = True
    reports_kl = True

    @pytest.fixture(params=mostly_slow(list(NETWORKS), ["gdp"]))
    def make(self, request: pytest.FixtureRequest):
        return partial(GDP, **SMALL, **NETWORKS[request.param])


class TestGDPTrainer(TrainerContract):
    @pytest.fixture
    def make(self):
        return partial(GDPTrainer, learning_rate=0.1, samples=10, epochs=4)
