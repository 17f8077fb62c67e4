"""The backends as the rest of placekit uses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from placekit_sim.compiled_variants import compiled
from placekit_sim.simulator import BulkSynchronous, Simulator
from placekit_testing.strategies import random_placements, random_problem

from placekit_core import Placements, Problem

BACKENDS = (Simulator, BulkSynchronous)


def some_problem(seed: int = 5, n: int = 60) -> Problem:
    """A problem with three or more devices."""
    rng = np.random.default_rng(seed)
    while True:
        problem = random_problem(rng, n, 4)
        if problem.cluster.size > 2 and problem.g > 20:
            return problem


def batch(problem: Problem, b: int, priorities: bool = True) -> Placements:
    return random_placements(np.random.default_rng(1), problem, b, priorities)


def test_threads_do_not_change_a_bit() -> None:
    problem = some_problem()
    placements = batch(problem, 2000)
    streamed: dict[str, Any] = {} if problem.cluster.multicast else {"prefetch": 2}
    for backend, options in ((Simulator, {}), (Simulator, streamed), (BulkSynchronous, {})):
        results = []
        for threads in (1, 2, 3):
            session = backend(threads=threads, **options).open(problem)
            results.append(session.evaluate(placements))
            session.close()
        for other in results[1:]:
            assert other.value_s.tobytes() == results[0].value_s.tobytes()
            assert other.peak_bytes.tobytes() == results[0].peak_bytes.tobytes()


def test_opening_compiles_all_that_a_search_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise compiling would take seconds of the search's budget."""
    rng = np.random.default_rng(3)
    problems = {multicast: random_problem(rng, 20, 3) for multicast in (False, True)}
    for multicast in problems:
        while problems[multicast].cluster.multicast is not multicast:
            problems[multicast] = random_problem(rng, 20, 3)
    loaded, called = list[str](), list[str]()
    monkeypatch.setattr("placekit_sim.simulator.compiled", loaded.append)
    monkeypatch.setattr("placekit_sim.packing.compiled", lambda name: [called.append(name), compiled(name)][1])
    cases: list[tuple[type[Simulator], dict[str, Any], bool]] = [
        (Simulator, {}, False), (Simulator, {}, True), (Simulator, {"noise": 0.1}, False), (Simulator, {"prefetch": 2}, False),
        (BulkSynchronous, {}, False),
    ]  # fmt: skip
    for backend, options, multicast in cases:
        loaded.clear()
        called.clear()
        session = backend(**options).open(problems[multicast])
        assert session.evaluate(batch(problems[multicast], 2)).value_s.shape == (2,)
        session.kernel()
        session.schedule(problems[multicast].placement(problems[multicast].allowed.argmax(axis=1)))
        assert set(called) <= set(loaded), (backend, options, multicast)


def test_noise_is_the_same_for_a_seed() -> None:
    problem = some_problem()
    placements = batch(problem, 10)

    def values(**options: Any) -> np.ndarray[Any, Any]:
        return Simulator(**options).open(problem).evaluate(placements).value_s

    exact = values()
    first = values(noise=0.1, seed=1)
    np.testing.assert_array_equal(first, values(noise=0.1, seed=1))
    assert (first != exact).all()
    assert (first != values(noise=0.1, seed=2)).all()
    np.testing.assert_array_equal(values(noise=0.0, noise_repeats=7, seed=3), exact)


def test_repeated_noise_has_a_mean_and_a_spread() -> None:
    problem = some_problem()
    placements = batch(problem, 4)
    assert Simulator(noise=0.1).open(problem).evaluate(placements).spread_s is None
    session = Simulator(noise=0.1, noise_repeats=40).open(problem)
    result = session.evaluate(placements)
    exact = Simulator().open(problem).evaluate(placements).value_s
    assert result.spread_s is not None
    assert (result.spread_s > 0).all()
    assert (abs(result.value_s / exact - 1) < 0.2).all()
    assert session.lower_bound() is None
    assert session.kernel() is None


def test_the_bound_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policies and reports ask a session for it, some several times."""
    asked = []

    def counted(problem: Problem) -> float:
        asked.append(problem)
        return 2.0

    monkeypatch.setattr("placekit_sim.simulator.makespan_bound", counted)
    for session in [Simulator().open(some_problem()) for _ in range(2)]:
        assert [session.lower_bound(), session.lower_bound()] == [2.0, 2.0]
    assert len(asked) == 2
