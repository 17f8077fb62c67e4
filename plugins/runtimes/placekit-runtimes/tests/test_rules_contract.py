"""The rules and `given` keep to the contract of policies; where a rule does not apply, everything goes on one device."""

from __future__ import annotations

from functools import partial

import pytest
from placekit_runtimes.accelerate.rule import AccelerateAuto, AccelerateSequential
from placekit_runtimes.exo import ExoMemory
from placekit_runtimes.given import Given
from placekit_runtimes.llamacpp import LlamaCppLayers
from placekit_runtimes.rules_of_thumb import BandwidthShare, FastestFirst
from placekit_runtimes.torchtitan import TorchtitanWeights
from placekit_runtimes.vllm import VllmEven
from placekit_testing import PolicyContract
from placekit_testing.contract import Make


class TestRule(PolicyContract):
    """All rules share `Rule.place`: one full contract, and a short one for each of the others."""

    @pytest.fixture
    def make(self) -> Make:
        return partial(VllmEven, otherwise="single_device")


class TestOtherRules(PolicyContract):
    short = True

    @pytest.fixture(
        params=[
            AccelerateAuto, AccelerateSequential, BandwidthShare, ExoMemory, FastestFirst, LlamaCppLayers, TorchtitanWeights,
        ]
    )  # fmt: skip
    def make(self, request: pytest.FixtureRequest) -> Make:
        return partial(request.param, otherwise="single_device")


class TestGiven(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(Given, map={"": 0})
