"""Every heuristic keeps to the contract of policies."""

from __future__ import annotations

from functools import partial

import pytest
from placekit_heuristics.list_scheduling import CriticalPath, Etf, Heft
from placekit_heuristics.simple import Random, RoundRobin, SingleDevice
from placekit_testing import PolicyContract
from placekit_testing.contract import Make


class TestSingleDevice(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return SingleDevice


class TestRandom(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return Random


class TestRoundRobin(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return RoundRobin


class TestCriticalPath(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return CriticalPath


class TestEtf(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return Etf


class TestHeft(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(Heft, samples=40)
