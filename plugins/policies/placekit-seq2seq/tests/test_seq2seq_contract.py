"""The policy `seq2seq` keeps the contract of learnable policies."""

from __future__ import annotations

from functools import partial

import pytest
from placekit_seq2seq.seq2seq import Seq2Seq
from placekit_testing import LearnablePolicyContract

SMALL = {"hidden": 8, "attention": 4, "type_size": 4, "type_buckets": 16}


class TestSeq2Seq(LearnablePolicyContract):
    @pytest.fixture
    def make(self):
        return partial(Seq2Seq, **SMALL, aligned=True)


class TestUnaligned(LearnablePolicyContract):
    short = True

    @pytest.fixture
    def make(self):
        return partial(Seq2Seq, **SMALL, aligned=False)


class TestPlain(LearnablePolicyContract):
    short = True

    @pytest.fixture
    def make(self):
        return partial(Seq2Seq, **SMALL, engine="plain")
