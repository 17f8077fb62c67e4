"""Grouper `my_method`: the contract of groupers, and what is its own."""

from __future__ import annotations

import numpy as np
import pytest
from placekit_my_method.my_method import MyMethod
from placekit_testing import GrouperContract, fakes


class TestMyMethod(GrouperContract):
    @pytest.fixture
    def make(self) -> type[MyMethod]:
        return MyMethod


def test_a_chain_is_cut_into_equal_pieces() -> None:
    graph = fakes.chain(12).graph  # a source, and twelve operations that follow it
    groups = MyMethod(max_groups=3).group(graph, np.random.default_rng(0))
    assert groups.group_of.tolist() == [0] + [0] * 4 + [1] * 4 + [2] * 4
