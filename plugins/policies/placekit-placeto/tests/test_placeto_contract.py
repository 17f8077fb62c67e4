"""The policy `placeto` and the trainer `stepwise` keep their contracts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
from numpy.random import Generator
from placekit_placeto.placeto import Placeto
from placekit_placeto.stepwise import Stepwise
from placekit_testing import LearnablePolicyContract, fakes
from placekit_testing.trainers import TrainerContract

from placekit_core import LearnablePolicy, Placements, Problem, Rollouts

SMALL = {
    "size": 6,
    "rounds": 3,
    "start": "one_device",
}  # other starts meet more kinks of LeakyReLU, where differences err


class TestPlaceto(LearnablePolicyContract):
    @pytest.fixture
    def make(self):
        return partial(Placeto, **SMALL)


@pytest.mark.slow
class TestPaper(LearnablePolicyContract):
    short = True

    @pytest.fixture
    def make(self):
        return partial(Placeto, **SMALL, head="paper")


class Improving(fakes.FakeLearnable):
    """The fake policy, as one that improves a placement."""

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        start = np.tile(problem.allowed.argmax(axis=1).astype(np.int16), (n, 1))
        return replace(super().rollout(problem, n, rng, explore), start=Placements.of(start))


class TestStepwise(TrainerContract):
    policy: ClassVar[type[LearnablePolicy]] = Improving

    @pytest.fixture
    def make(self):
        return partial(Stepwise, learning_rate=0.1, samples=10)
