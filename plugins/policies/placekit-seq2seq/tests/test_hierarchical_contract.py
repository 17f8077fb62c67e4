"""The policy `hierarchical` keeps the contract of learnable policies."""

from __future__ import annotations

import pytest
from placekit_seq2seq.hierarchical import Hierarchical
from placekit_testing import LearnablePolicyContract


class TestHierarchical(LearnablePolicyContract):
    recomputes_log_prob = True
    reports_kl = False
    step = 3e-3

    @pytest.fixture(params=[4, 256], ids=["4 groups", "256 groups"])
    def make(self, request: pytest.FixtureRequest):
        return lambda: Hierarchical(
            groups=request.param, grouper_hidden=8, hidden=8, attention=4, type_size=4, type_buckets=16
        )
