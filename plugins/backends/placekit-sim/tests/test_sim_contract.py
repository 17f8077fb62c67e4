"""Both backends keep the contract of backends."""

from __future__ import annotations

from functools import partial

import pytest
from placekit_sim.simulator import BulkSynchronous, Simulator

from placekit_core.testing import BackendContract
from placekit_core.testing.contract import Make


class TestSimulator(BackendContract):
    @pytest.fixture
    def make(self) -> Make:
        return Simulator


class TestSimulatorOnThreads(BackendContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(Simulator, threads=2, ready_order="random", seed=3)


class TestBulkSynchronous(BackendContract):
    @pytest.fixture
    def make(self) -> Make:
        return BulkSynchronous
