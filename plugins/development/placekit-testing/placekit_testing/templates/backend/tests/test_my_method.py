"""Backend `my_method`: the contract of backends, and what is its own."""

from __future__ import annotations

import pytest
from placekit_my_method.my_method import MyMethod
from placekit_testing import BackendContract, fakes

from placekit_core import Placements


class TestMyMethod(BackendContract):
    @pytest.fixture
    def make(self) -> type[MyMethod]:
        return MyMethod


def test_the_value_is_the_sum_of_operations_and_transfers() -> None:
    session = MyMethod().open(fakes.diamond())  # w (4 MB), x, then a -> (b, c) -> d; 20 ms of operations, 1 ms per MB
    together, apart = session.evaluate(Placements.of([[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0]])).value_s
    assert together == pytest.approx(0.020)
    assert apart == pytest.approx(0.020 + 0.004 + 0.001 + 0.001)  # w and a to b, and b back to d
