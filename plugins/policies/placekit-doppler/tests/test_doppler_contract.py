"""The policy `doppler` and the trainer `three_stage` keep their contracts."""

from __future__ import annotations

from functools import partial

import pytest
from placekit_doppler.doppler import Doppler
from placekit_doppler.three_stage import ThreeStage
from placekit_testing import LearnablePolicyContract
from placekit_testing.trainers import TrainerContract

SMALL = {"size": 8, "hidden": 8, "rounds": 2, "noise": 0}  # the density of noise is not in `log_prob`


class TestDoppler(LearnablePolicyContract):
    distinguishes_devices = False

    @pytest.fixture
    def make(self):
        return partial(Doppler, **SMALL)


@pytest.mark.slow
@pytest.mark.long
class TestPlain(LearnablePolicyContract):
    short = True
    distinguishes_devices = False

    @pytest.fixture
    def make(self):
        return partial(Doppler, **SMALL, engine="plain")


class TestThreeStage(TrainerContract):
    @pytest.fixture
    def make(self):
        return partial(ThreeStage, stages=[2], learning_rate=0.1, samples=10, near_best_from=None)
