"""Searches that go on from marks and end evaluations early: the same placements and values to the last bit, with less work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from placekit_scheduling import Kernel
from placekit_search.chain import TRIALS_FROM, Chain, Moves
from placekit_search.kinds import KINDS
from placekit_search.moves import DEVICES, PRIORITIES, new_log, propose
from placekit_search.neighbourhood import flow, neighbourhood
from placekit_search.options import MoveOptions
from placekit_search.reuse import mark_before, reuse
from placekit_testing.strategies import random_problem
from search_helpers import machine, random_layers

from placekit_core import Ledger, Placements, Problem, Task, installed
from placekit_core.run.evaluator import BudgetedEvaluator

pytest.importorskip("placekit_sim")


def session_of(problem: Problem) -> Any:
    entry = installed().get("backend", "simulator")
    return entry.build(entry.component.config(threads=1)).open(problem)


def a_chain(problem: Problem, priorities: bool, trial: bool, seed: int) -> Chain:
    """A search from a random placement, whose evaluations are trials or not."""
    session, rng = session_of(problem), np.random.default_rng(seed)
    task = Task(problem, BudgetedEvaluator(problem, session, Ledger(10**6)))
    moves = Moves(task, MoveOptions(level_moves=0.2).weights(), 0.5)
    assert moves.kernel is not None
    moves.kernel = moves.kernel if trial else replace(moves.kernel, trial=None)
    moves.reuse = reuse(problem, moves.kernel)
    device = (problem.allowed * rng.random((problem.g, problem.cluster.size))).argmax(axis=1).astype(np.int16)
    order = rng.random(problem.g).astype(np.float32) if priorities else None
    placement = Placements.of(device[None], None if order is None else order[None])
    value_s = float(session.evaluate(placement).value_s[0])
    over = float((session.evaluate(placement).peak_bytes / problem.cluster.memory_bytes - 1).clip(0).sum())
    state = Chain.begin(device, order, value_s, over, 20 * value_s, np.array([seed], np.uint64))
    return Chain(moves, state)


@pytest.mark.parametrize("priorities", [False, True])
@pytest.mark.parametrize("memory", [1.0, 0.4])
@pytest.mark.parametrize("seed", [3, 4, 5, 7, 8, 11])
def test_trials_change_nothing(seed: int, memory: float, priorities: bool) -> None:
    """Random graphs on random machines, with restarts, hot and cold, where memory is short and where it is not."""
    problem = random_problem(np.random.default_rng(seed), 60, 4)
    if memory < 1:
        least = int(problem.graph.persistent_bytes.sum() + problem.graph.owned_bytes.sum()) + 1
        kinds = {
            name: kind.model_copy(update={"memory_bytes": max(1, int(memory * least))})
            for name, kind in problem.cluster.kinds.items()
        }
        problem = Problem(
            problem.graph, problem.grouping, problem.cluster.model_copy(update={"kinds": kinds}), problem.costs
        )
    positions = []
    for trial in (True, False):
        chain = a_chain(problem, priorities, trial, seed)
        chain.at.restart[:2] = 40, 3
        hood = neighbourhood(problem)
        assert len(hood.movable) > 1, "choose another seed"
        assert chain.moves.reuse.possible == trial, "choose another seed"
        for temperature in (0.3, 0.01, 0.0):
            chain.walk(hood, 150, temperature * chain.start_s, 0.99)
        positions.append(chain.at)
    for name, with_trials, without in zip(positions[0]._fields, *positions, strict=True):
        assert np.array_equal(with_trials, without), f"{name} is another one"


def trial_of(kernel: Kernel) -> Any:
    """The trial as a function (device, mark, limit) to (value, peaks, operations begun), after the kernel was run."""
    assert kernel.trial is not None
    assert kernel.trace is not None
    t = kernel.trial()
    ints, floats = np.zeros(kernel.scratch_ints, np.int32), np.zeros(kernel.scratch_floats)
    none = np.empty(0, np.float32)

    def run(device: Any, size: int, go_on: int) -> Any:
        peak = np.empty(size)
        ints[t.kernel_go_on] = go_on
        return kernel.function(device, none, kernel.ints, kernel.floats, ints, floats, peak), peak

    def trial(device: Any, size: int, mark: int, limit: float) -> Any:
        peak = np.empty(size)
        ints[t.go_on], floats[t.limit_s] = mark, limit
        value = t.function(device, none, t.ints, t.floats, ints, floats, peak)
        return value, peak, int(ints[t.worked])

    return run, trial, ints, floats


def test_moves_go_on_from_marks_with_the_same_result() -> None:
    """Every single move of a layered graph: from the last mark before its first effect, the value and the peaks are exact."""
    problem = Problem.of(random_layers(depth=20), machine(3))
    kernel = session_of(problem).kernel()
    size, hood, flow_, graph = (
        problem.cluster.size,
        neighbourhood(problem),
        flow(problem, kernel),
        reuse(problem, kernel),
    )
    run, trial, ints, floats = trial_of(kernel)
    rng, random = np.random.default_rng(0), np.array([7], np.uint64)
    device = rng.integers(0, size, problem.g).astype(np.int16)
    log = new_log(len(hood.allowed), problem.g, flow_.tasks, problem.graph.n)
    shares, used, worked = np.cumsum([0.5, 0.5, *[0.0] * (len(KINDS) - 2)]), list[int](), list[float]()
    for _ in range(200):
        run(device, size, -1)
        log.before[:] = device
        moved = device.copy()
        propose(random, moved, np.empty(0, np.float32), hood, flow_, shares, 0.0, log)
        if not log.counts[DEVICES] + log.counts[PRIORITIES]:
            continue
        mark = int(mark_before(flow_, graph, moved, log, ints, floats))
        value, peak, begun = trial(moved, size, mark, np.inf)
        again, peak_again = run(moved, size, mark if mark > 0 else -1)
        expected, expected_peak = run(moved, size, 0)
        assert value == again == expected
        assert peak.tolist() == peak_again.tolist() == expected_peak.tolist()
        used.append(mark)
        worked.append(begun / problem.graph.kernel.sum())
        device = moved
    assert np.mean(np.array(used) > 0) > 0.5, "hardly any move used a mark"
    assert np.mean(worked) < 0.8


def test_a_trial_ends_early_only_above_its_limit() -> None:
    problem = Problem.of(random_layers(), machine(3))
    kernel = session_of(problem).kernel()
    run, trial, _, _ = trial_of(kernel)
    rng, size, early = np.random.default_rng(0), problem.cluster.size, 0
    for _ in range(100):
        device = rng.integers(0, size, problem.g).astype(np.int16)
        exact, peak = run(device, size, 0)
        for share in (0.5, 0.9, 0.999, 1.0, 1.1):
            value, trial_peak, _ = trial(device, size, 0, share * exact)
            if value == exact:
                assert trial_peak.tolist() == peak.tolist()
            else:
                assert share * exact < value < exact * (1 + 1e-9)
                assert share < 1
                early += 1
    assert early > 100, "hardly any ended early"


def test_where_memory_may_be_short_a_trial_does_not_end_early() -> None:
    """The caller has to know how much is missing: that is part of the search."""
    graph = random_layers()
    most = int(graph.owned_bytes.sum() + graph.tensor_bytes.sum() + graph.persistent_bytes.sum())
    for memory_bytes, early in ((most, True), (most // 3, False)):
        problem = Problem.of(graph, machine(3, memory_bytes=memory_bytes))
        run, trial, _, _ = trial_of(session_of(problem).kernel())
        device = np.random.default_rng(0).integers(0, 3, problem.g).astype(np.int16)
        exact, peak = run(device, 3, 0)
        value, trial_peak, _ = trial(device, 3, 0, 0.5 * exact)
        assert (value != exact) == early
        assert early or trial_peak.tolist() == peak.tolist()


def test_a_long_search_makes_trials_and_a_short_one_does_not_load_them() -> None:
    problem = Problem.of(random_layers(), machine(3))
    chain = a_chain(problem, priorities=False, trial=True, seed=1)
    moves = chain.moves
    moves.reuse = reuse(problem)
    moves.count(100)
    assert not moves.reuse.possible
    moves.count(TRIALS_FROM // problem.graph.n + 1)
    assert moves.reuse.possible
    chain.walk(neighbourhood(problem), 100, 0.0, 1.0)
