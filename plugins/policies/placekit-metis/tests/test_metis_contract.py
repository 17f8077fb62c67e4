"""The policy keeps to the contract of policies."""

from __future__ import annotations

from functools import partial

import pytest
from placekit_metis.partition import Metis
from placekit_testing import PolicyContract
from placekit_testing.contract import Make

pytest.importorskip("pymetis")


class TestMetis(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return Metis


class TestMetisWithCpus(PolicyContract):
    short = True

    @pytest.fixture
    def make(self) -> Make:
        return partial(Metis, cpu=True)
