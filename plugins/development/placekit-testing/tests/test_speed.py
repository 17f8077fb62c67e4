"""Which parameters are left to `make test-all`."""

from __future__ import annotations

import pytest
from placekit_testing.speed import mostly_slow


def test_all_but_the_fast_ones_are_marked() -> None:
    assert mostly_slow(["a", "b"], ["b"]) == [pytest.param("a", marks=pytest.mark.slow), "b"]
    assert mostly_slow([(1, 2), (3, 4)], [(3, 4)]) == [pytest.param(1, 2, marks=pytest.mark.slow), (3, 4)]


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="'c' is not a parameter of this test; parameters: a, b"):
        mostly_slow(["a", "b"], ["c"])
