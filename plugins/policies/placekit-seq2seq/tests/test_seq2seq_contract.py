"""The policy `seq2seq` keeps the contract of learnable policies."""

from __future__ import annotations

import pytest
from placekit_seq2seq.seq2seq import Seq2Seq
from placekit_testing import LearnablePolicyContract


class TestSeq2Seq(LearnablePolicyContract):
    recomputes_log_prob = True
    reports_kl = True

    @pytest.fixture(params=[True, False], ids=["aligned", "unaligned"])
    def make(self, request: pytest.FixtureRequest):
        return lambda: Seq2Seq(hidden=8, attention=4, type_size=4, type_buckets=16, aligned=request.param)
