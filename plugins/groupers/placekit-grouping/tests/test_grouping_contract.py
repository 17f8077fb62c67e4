"""The groupers keep the contract of groupers."""

from __future__ import annotations

from functools import partial

import pytest
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
    limit_option = "max_groups"

    @pytest.fixture
    def make(self) -> Make:
        return ColocationGrouper


class TestColocationThatKeepsBranches(GrouperContract):
    short = True
    limit_option = "max_groups"

    @pytest.fixture
    def make(self) -> Make:
        return partial(ColocationGrouper, keep_branches=True)


class TestModule(GrouperContract):
    limit_option = "max_groups"

    @pytest.fixture
    def make(self) -> Make:
        return ModuleGrouper


class TestModuleThatMerges(GrouperContract):
    short = True
    limit_option = "max_groups"

    @pytest.fixture
    def make(self) -> Make:
        return partial(ModuleGrouper, depth=1, min_share=0.1)


class TestModuleWithBlocks(GrouperContract):
    short = True
    limit_option = "max_groups"

    @pytest.fixture
    def make(self) -> Make:
        return partial(ModuleGrouper, blocks=["a", "c.*", "m1*"])


class TestChains(GrouperContract):
    limit_option = "max_groups"

    @pytest.fixture
    def make(self) -> Make:
        return partial(ChainsGrouper, max_share=0.2)


class TestHeavyEdge(GrouperContract):
    limit_option = "max_groups"

    @pytest.fixture
    def make(self) -> Make:
        return HeavyEdgeGrouper


class TestMetis(GrouperContract):
    limit_option = "max_groups"

    @pytest.fixture
    def make(self) -> Make:
        return MetisGrouper
