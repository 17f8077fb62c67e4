"""Both backends keep the contract of backends."""

from __future__ import annotations

from functools import partial

import pytest
from placekit_sim.simulator import BulkSynchronous, Simulator
from placekit_testing import BackendContract
from placekit_testing.contract import Make
from placekit_testing.evaluations import check_unordered, seeded_placements, seeded_problem

from placekit_core import Placements


class TestSimulator(BackendContract):
    @pytest.fixture
    def make(self) -> Make:
        return Simulator


class TestSimulatorOnThreads(BackendContract):
    short = True
    seeds = range(23, 29)  # machines with multicast among them

    @pytest.fixture
    def make(self) -> Make:
        return partial(Simulator, threads=2, ready_order="random", seed=3)


class TestStreaming(BackendContract):
    short = True
    seeds = tuple(seed for seed in range(40) if not seeded_problem(seed).cluster.multicast)[:8]

    @pytest.fixture
    def make(self) -> Make:
        return partial(Simulator, prefetch=1)


class TestBulkSynchronous(BackendContract):
    short = True

    @pytest.fixture
    def make(self) -> Make:
        return BulkSynchronous


def test_there_is_multicast_among_the_machines() -> None:
    seen = [seeded_problem(seed).cluster for seed in TestSimulatorOnThreads.seeds]
    assert any(cluster.multicast and cluster.size > 2 for cluster in seen)


def test_says_in_which_order_priorities_matter() -> None:
    for backend in (Simulator, BulkSynchronous):
        for order in ("priority", "fifo", "depth_first", "breadth_first", "random", "arrival"):
            changed = False
            for seed in range(8):
                problem = seeded_problem(seed)
                session = backend(ready_order=order).open(problem)
                assert session.priorities == (order == "priority")
                if order == "priority":
                    placements = seeded_placements(problem, 6)
                    plain = session.evaluate(Placements.of(placements.device))
                    changed = changed or (plain.value_s != session.evaluate(placements).value_s).any()
                else:
                    check_unordered(problem, session)
            assert changed == (order == "priority"), (backend, order)
