"""Every heuristic keeps to the contract of policies."""

from __future__ import annotations

from functools import partial

import pytest
from placekit_heuristics.baechi import MEtf, MSct, MTopo
from placekit_heuristics.list_scheduling import Cpop, CriticalPath, Etf, Heft, Peft
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


class TestHeft(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(Heft, samples=40)


class TestCriticalPath(PolicyContract):
    short = True

    @pytest.fixture
    def make(self) -> Make:
        return CriticalPath


class TestEtf(PolicyContract):
    short = True

    @pytest.fixture
    def make(self) -> Make:
        return Etf


class TestCpop(PolicyContract):
    short = True

    @pytest.fixture
    def make(self) -> Make:
        return Cpop


class TestPeft(PolicyContract):
    short = True

    @pytest.fixture
    def make(self) -> Make:
        return Peft


class TestMTopo(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return MTopo


class TestMSct(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return MSct


class TestMEtf(PolicyContract):
    short = True

    @pytest.fixture
    def make(self) -> Make:
        return MEtf
