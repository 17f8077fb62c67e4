"""Both policies keep to the contract of policies."""

from __future__ import annotations

import pytest
from placekit_scotch.mapping import MinCut, Scotch
from placekit_testing import PolicyContract
from placekit_testing.contract import Make

pytest.importorskip("pyscotch")


class TestScotch(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return Scotch


class TestMinCut(PolicyContract):
    short = True

    @pytest.fixture
    def make(self) -> Make:
        return MinCut
