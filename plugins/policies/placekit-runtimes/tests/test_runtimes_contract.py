"""The rules keep to the contract of policies; where a rule does not apply, everything goes on one device."""

from __future__ import annotations

from functools import partial

import pytest
from placekit_runtimes.accelerate import AccelerateAuto, AccelerateSequential
from placekit_runtimes.rules import (
    BandwidthShare,
    ExoMemory,
    FastestFirst,
    LlamaCppLayers,
    TorchtitanWeights,
    VllmEven,
)
from placekit_testing import PolicyContract
from placekit_testing.contract import Make


class TestAccelerateAuto(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(AccelerateAuto, otherwise="single_device")


class TestAccelerateSequential(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(AccelerateSequential, otherwise="single_device")


class TestExoMemory(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(ExoMemory, otherwise="single_device")


class TestBandwidthShare(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(BandwidthShare, otherwise="single_device")


class TestFastestFirst(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(FastestFirst, otherwise="single_device")


class TestLlamaCppLayers(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(LlamaCppLayers, otherwise="single_device")


class TestVllmEven(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(VllmEven, otherwise="single_device")


class TestTorchtitanWeights(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(TorchtitanWeights, otherwise="single_device")
