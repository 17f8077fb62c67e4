"""The groupers keep the contract of groupers."""

from __future__ import annotations

from functools import partial

import pytest
from placekit_grouping.auto import AutoGrouper
from placekit_grouping.groupers import (
    ChainsGrouper,
    ColocationGrouper,
    HeavyEdgeGrouper,
    MetisGrouper,
    ModuleGrouper,
    NoGrouper,
)
from placekit_testing import GrouperContract
from placekit_testing.contract import Make


class TestNone(GrouperContract):
    @pytest.fixture
    def make(self) -> Make:
        return NoGrouper


class TestColocation(GrouperContract):
    @pytest.fixture
    def make(self) -> Make:
        return ColocationGrouper


class TestModuleWithBlocks(GrouperContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(ModuleGrouper, blocks=["a", "c.*", "m1*"])


class TestChains(GrouperContract):
    @pytest.fixture
    def make(self) -> Make:
        return ChainsGrouper


class TestHeavyEdge(GrouperContract):
    @pytest.fixture
    def make(self) -> Make:
        return HeavyEdgeGrouper


class TestMetis(GrouperContract):
    @pytest.fixture
    def make(self) -> Make:
        return MetisGrouper


class TestAuto(GrouperContract):
    @pytest.fixture
    def make(self, monkeypatch: pytest.MonkeyPatch) -> Make:
        monkeypatch.setattr("placekit_layers.repeated.MIN_KERNELS", 1)
        monkeypatch.setattr("placekit_layers.repeated.MIN_LAYERS", 2)
        return AutoGrouper
