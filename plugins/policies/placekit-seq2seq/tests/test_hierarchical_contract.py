"""The policy `hierarchical` keeps the contract of learnable policies."""

from __future__ import annotations

from functools import partial

import pytest
from placekit_seq2seq.hierarchical import Hierarchical
from placekit_testing import LearnablePolicyContract

SMALL = {"grouper_hidden": 8, "hidden": 8, "attention": 4, "type_size": 4, "type_buckets": 16}


class TestHierarchical(LearnablePolicyContract):
    step = 3e-3

    @pytest.fixture
    def make(self):
        return partial(Hierarchical, **SMALL, groups=4)


class TestMoreGroupsThanOperations(LearnablePolicyContract):
    short = True
    step = 3e-3

    @pytest.fixture
    def make(self):
        return partial(Hierarchical, **SMALL, groups=256)
