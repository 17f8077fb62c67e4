"""The compiled kernel and the second opinion agree to the last bit on value, memory and every event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import machine_model
import numpy as np
import pytest
from numpy.random import Generator
from placekit_sim.simulator import BulkSynchronous, Simulator, SimulatorSession
from placekit_testing.strategies import random_graph, random_placements
from second_opinion import Trial, differences, draw, tiny

from placekit_core import (
    Backend,
    Cluster,
    CostTable,
    Measurements,
    Placement,
    Placements,
    Problem,
    Schedule,
    Session,
)


def build(name: str, options: dict[str, Any]) -> Backend:
    return {"simulator": Simulator, "bulk_synchronous": BulkSynchronous}[name](**options)


def agree(make: Callable[[Generator], Trial], seeds: range) -> None:
    """Kernel and second opinion say the same of a trial for each seed."""
    for seed in seeds:
        trial = make(np.random.default_rng(seed))
        assert differences(trial, build) == [], f"seed {seed}: {trial}"


def test_kernel_agrees_with_the_second_opinion() -> None:
    agree(draw, range(120))


def test_every_placement_of_tiny_problems_is_above_the_bound() -> None:
    agree(tiny, range(1000, 1050))


@pytest.mark.slow
@pytest.mark.long
def test_kernel_agrees_with_the_second_opinion_thousands_of_times() -> None:
    agree(draw, range(10_000, 11_000))
    agree(lambda rng: draw(rng, 60, 8), range(20_000, 20_040))
    agree(tiny, range(30_000, 30_100))


def test_hundreds_of_pending_events() -> None:
    """More events, many at the same time, than the sorted list of events has room for."""
    rng = np.random.default_rng(0)
    graph = random_graph(rng, 250)
    kind = {
        "type": "gpu",
        "flops_per_s": {"float32": 1e9},
        "memory_bytes": 2**40,
        "memory_bytes_per_s": 1e9,
        "streams": 200,
    }
    link = {"mesh": "a:*", "bytes_per_s": 1e9, "concurrent": "unlimited"}
    cluster = Cluster.parse({"kinds": {"a": kind}, "devices": [{"kind": "a", "count": 3}], "links": [link]})
    op_s = rng.integers(1, 9, (graph.n, 1)) * graph.kernel[:, None] * 0.125
    problem = Problem.of(graph, cluster, costs=CostTable(("a",), op_s, np.zeros((graph.n, 1), np.bool_)))
    placements = random_placements(rng, problem, 1, True)
    for order, noise in (("priority", 0.0), ("priority", 0.3), ("fifo", 0.0), ("arrival", 0.3)):
        rules = machine_model.Rules(ready_order=order, noise=noise)
        assert differences(Trial(problem, placements, rules), build) == [], (order, noise)


class WrongSession(SimulatorSession):
    """Sessions with an error: one value, one byte, the start of operations, the end of transfers, or a bound too high."""

    error = ""

    def evaluate(self, placements: Placements) -> Measurements:
        m = super().evaluate(placements)
        if self.error == "value":
            return replace(m, value_s=np.nextafter(m.value_s, np.inf))
        return replace(m, peak_bytes=m.peak_bytes + 1) if self.error == "bytes" else m

    def schedule(self, placement: Placement) -> Schedule:
        s = super().schedule(placement)
        if self.error == "operation":
            return replace(s, op_start_s=np.nextafter(s.op_start_s, np.inf))
        return replace(s, transfer_end_s=s.transfer_end_s + 1) if self.error == "transfer" else s

    def lower_bound(self) -> float | None:
        bound = super().lower_bound()
        return 2 * (bound or 0) + 1 if self.error == "bound" else bound


class Wrong(Simulator):
    """The simulator with such sessions."""

    def __init__(self, error: str, **options: Any) -> None:
        super().__init__(**options)
        self.error = error

    def open(self, problem: Problem, executable: Any = None) -> Session:
        session = WrongSession(problem, self.options, self.bulk)
        session.error = self.error
        return session


def test_errors_are_found() -> None:
    trials = [trial for trial in map(draw, map(np.random.default_rng, range(12))) if not trial.rules.bulk]
    for error in ("value", "bytes", "operation", "transfer", "bound"):
        assert any(differences(trial, lambda _, o, e=error: Wrong(e, **o)) for trial in trials), error
