"""The policy `gdp` keeps its contract."""

from __future__ import annotations

from functools import partial

import pytest
from placekit_gdp.gdp import GDP
from placekit_testing import LearnablePolicyContract

SMALL = {"hidden": 8, "heads": 2, "rounds": 2, "layers": 2, "type_size": 4, "type_buckets": 16}
WITHOUT = {"superposition": {"superposition": False}, "attention": {"attention": False, "segment": 5}}


class TestGDP(LearnablePolicyContract):
    @pytest.fixture
    def make(self):
        return partial(GDP, **SMALL)  # in one segment: with several, no gradient goes back, so differences err


@pytest.mark.slow
class TestAblations(LearnablePolicyContract):
    short = True

    @pytest.fixture(params=WITHOUT)
    def make(self, request: pytest.FixtureRequest):
        return partial(GDP, **SMALL, **WITHOUT[request.param])
