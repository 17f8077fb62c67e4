"""Both backends keep the contract of backends."""

from __future__ import annotations

from functools import partial

import pytest
from placekit_sim.simulator import BulkSynchronous, Simulator
from placekit_testing import BackendContract
from placekit_testing.contract import Make
from placekit_testing.evaluations import seeded_problem


class TestSimulator(BackendContract):
    @pytest.fixture
    def make(self) -> Make:
        return Simulator


class TestSimulatorOnThreads(BackendContract):
    seeds = range(23, 29)  # machines with multicast among them

    @pytest.fixture
    def make(self) -> Make:
        return partial(Simulator, threads=2, ready_order="random", seed=3)


class TestStreaming(BackendContract):
    seeds = tuple(seed for seed in range(40) if not seeded_problem(seed).cluster.multicast)[:8]

    @pytest.fixture
    def make(self) -> Make:
        return partial(Simulator, prefetch=1)


class TestBulkSynchronous(BackendContract):
    @pytest.fixture
    def make(self) -> Make:
        return BulkSynchronous


def test_there_is_multicast_among_the_machines() -> None:
    seen = [seeded_problem(seed).cluster for seed in TestSimulatorOnThreads.seeds]
    assert any(cluster.multicast and cluster.size > 2 for cluster in seen)


@pytest.mark.parametrize("order", ["priority", "fifo", "depth_first", "breadth_first", "random", "arrival"])
def test_says_in_which_order_priorities_matter(order: str) -> None:
    session = Simulator(ready_order=order).open(seeded_problem(0))
    assert session.priorities == (order == "priority")
