"""The further list schedulers keep to the contract of policies."""

from __future__ import annotations

from functools import partial

import pytest
from placekit_heuristics.baechi import MEtf, MSct, MTopo
from placekit_heuristics.list_scheduling import Cpop, Peft
from placekit_testing import PolicyContract
from placekit_testing.contract import Make


class TestCpop(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return Cpop


class TestPeft(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(Peft, samples=40)


class TestMTopo(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return MTopo


class TestMEtf(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return MEtf


class TestMSct(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return MSct
