"""Python runs the loops of small problems: the results are those of compiled code, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from placekit_scheduling import RULES, ListScheduler, all_bounds, b_level, cache_keys, jit, t_level
from placekit_scheduling.cache_keys import KeyedCache
from placekit_testing.strategies import random_problem

from placekit_core import Problem

PROBLEMS = 12
IS_STORED = KeyedCache.is_stored


@pytest.fixture(autouse=True)
def _nothing_is_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyedCache, "is_stored", lambda _: False)


def _problem(seed: int) -> Problem:
    return random_problem(np.random.default_rng(seed), n=24)


@pytest.mark.parametrize("rule", RULES)
def test_schedules_are_the_same(rule: str) -> None:
    for seed in range(PROBLEMS):
        problem, ties = _problem(seed), None if seed % 2 else seed
        assert problem.graph.n * problem.cluster.size <= jit.SMALL
        few, many = (ListScheduler(problem, few=few).run(rule, seed=ties) for few in (True, False))  # type: ignore[arg-type]
        assert few.devices().tolist() == many.devices().tolist()
        assert few.finish_s.tobytes() == many.finish_s.tobytes()
        assert few.peak_bytes.tobytes() == many.peak_bytes.tobytes()


def test_favourites_are_the_same() -> None:
    for seed in range(PROBLEMS):
        problem = _problem(seed)
        favourite = np.full(problem.graph.n, -1)
        few, many = (ListScheduler(problem, few=few).run("etf", favourite=favourite) for few in (True, False))
        assert few.finish_s.tobytes() == many.finish_s.tobytes()


def test_bounds_and_levels_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> list[object]:
        problems = [_problem(seed) for seed in range(PROBLEMS)]
        levels = [f(p).tobytes() for p in problems for f in (b_level, t_level)]
        return [*levels, *(all_bounds(p) for p in problems)]

    small = found()
    monkeypatch.setattr(jit, "SMALL", 0)
    assert found() == small


def test_python_runs_copies_and_the_compiled_functions_stay() -> None:
    from placekit_scheduling.list_scheduling import kernel

    plain = jit.interpreted(kernel.run_level)
    assert plain is jit.interpreted(kernel.run_level)
    assert plain is not kernel.run_level.py_func
    assert plain.__globals__["place"] is jit.interpreted(kernel.place)
    assert kernel.run_level.py_func.__globals__["place"] is kernel.place
    assert jit.interpreted(len) is len


def test_small_problems_use_compiled_code_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from placekit_scheduling.list_scheduling import kernel

    assert jit.by_size(kernel.place, jit.SMALL) is not kernel.place
    assert jit.by_size(kernel.place, jit.SMALL + 1) is kernel.place
    monkeypatch.setattr(KeyedCache, "is_stored", lambda _: True)
    assert jit.by_size(kernel.place, 1) is kernel.place


def test_code_of_another_version_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a small problem would compile after an upgrade, while the clock of its budget runs."""
    from placekit_scheduling.list_scheduling.level_kernel import to_exit

    monkeypatch.setattr(jit, "SMALL", 0)
    b_level(_problem(0))
    assert IS_STORED(to_exit._cache)
    monkeypatch.setattr(to_exit, "overloads", {})
    assert IS_STORED(to_exit._cache)
    monkeypatch.setattr(cache_keys, "digest", lambda _: "of another version")
    assert not IS_STORED(to_exit._cache)
