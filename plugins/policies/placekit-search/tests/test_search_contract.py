"""Every search keeps to the contract of policies."""

from __future__ import annotations

import pytest
from placekit_search.annealing import Annealing
from placekit_search.portfolio import Portfolio
from placekit_testing import PolicyContract
from placekit_testing.contract import Make


class TestAnnealing(PolicyContract):
    finds_optimum = True

    @pytest.fixture
    def make(self) -> Make:
        return Annealing


class TestPortfolio(PolicyContract):
    finds_optimum = True

    @pytest.fixture
    def make(self) -> Make:
        return Portfolio
