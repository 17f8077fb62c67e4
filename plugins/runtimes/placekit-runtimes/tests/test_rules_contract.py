"""The rules keep to the contract of policies; where a rule does not apply, everything goes on one device."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from placekit_runtimes.accelerate.rule import AccelerateAuto, AccelerateSequential
from placekit_runtimes.exo import ExoMemory
from placekit_runtimes.interface import Rule
from placekit_runtimes.llamacpp import LlamaCppLayers
from placekit_runtimes.rules_of_thumb import BandwidthShare, FastestFirst
from placekit_runtimes.torchtitan import TorchtitanWeights
from placekit_runtimes.vllm import VllmEven
from placekit_testing import PolicyContract, fakes
from placekit_testing.contract import Make

RULES = [
    AccelerateAuto,
    AccelerateSequential,
    ExoMemory,
    BandwidthShare,
    FastestFirst,
    LlamaCppLayers,
    TorchtitanWeights,
]


class TestVllmEven(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(VllmEven, otherwise="single_device")


@pytest.mark.parametrize("rule", RULES)
def test_others_place_groups_on_devices_that_may_run_them(rule: type[Rule]) -> None:
    for problem in (fakes.mixed(), fakes.diamond(devices=1), fakes.unequal(12)):
        found = [
            rule(otherwise="single_device").place(fakes.fake_task(problem), np.random.default_rng(s)) for s in (0, 1)
        ]
        problem.check(found[0].batch())
        assert found[0].same_as(found[1]), "it draws nothing"
