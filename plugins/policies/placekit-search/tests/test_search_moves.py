"""The neighbourhoods, moves and coarsening that all local searches share."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st
from placekit_search.coarsening import coarse, coarsen
from placekit_search.move_kinds import KINDS
from placekit_search.moves import DEVICES, PATH, PRIORITIES, Log, new_log, propose, undo
from placekit_search.neighbourhood import flow, neighbourhood
from placekit_search.walk import read_path
from placekit_testing.strategies import Case, problems, random_placements, random_problem
from search_helpers import machine, open_simulator

from placekit_core import GraphBuilder, Problem


def shares(**weight: float) -> np.ndarray:
    values = np.cumsum([weight.get(kind, 0.0) for kind in KINDS])
    return values / values[-1]


def with_path(problem: Problem, log: Log, device: np.ndarray, priority: np.ndarray) -> None:
    """Note the critical path of a placement in the log."""
    kernel = open_simulator(problem).kernel()
    assert kernel is not None
    ints, floats = np.zeros(kernel.scratch_ints, np.int32), np.zeros(kernel.scratch_floats)
    peak = np.empty(problem.cluster.size)
    kernel.function(device, priority, kernel.ints, kernel.floats, ints, floats, peak)
    read_path(flow(problem, kernel), ints, log)


@settings(max_examples=60, deadline=None)
@given(case=problems(max_n=24, max_devices=4), kind=st.sampled_from(KINDS), coarsened=st.booleans())
def test_a_move_goes_where_it_may_and_can_be_taken_back(case: Case, kind: str, coarsened: bool) -> None:
    problem = case.problem
    levels = coarsen(problem)
    hood = neighbourhood(problem, levels[-1] if coarsened and levels else None)
    if not len(hood.movable):
        return
    graph = flow(problem, None)
    log = new_log(len(hood.allowed), problem.g, problem.graph.n + problem.graph.e, problem.graph.n)
    placements = random_placements(case.rng, problem, 1, priorities=True)
    device, priority = placements.device[0].copy(), placements.priority[0].copy()  # type: ignore[index]
    with_path(problem, log, device, priority)
    state = np.array([case.rng.integers(2**62)], np.uint64)
    for _ in range(30):
        before, order = device.copy(), priority.copy()
        propose(state, device, priority, hood, graph, shares(**{kind: 1.0}), log)
        assert problem.allowed[np.arange(problem.g), device].all()
        moved = np.flatnonzero(device != before)
        assert set(moved) <= set(log.group[: log.counts[DEVICES]].tolist())
        undo(device, priority, log)
        np.testing.assert_array_equal(device, before)
        np.testing.assert_array_equal(priority, order)


def test_every_kind_of_move_changes_something() -> None:
    problem = Problem.of(random_problem(np.random.default_rng(3), 60).graph, machine(3, flops_per_s=1e9))
    hood, graph = neighbourhood(problem), flow(problem, None)
    log = new_log(problem.g, problem.g, problem.graph.n + problem.graph.e, problem.graph.n)
    placements = random_placements(np.random.default_rng(0), problem, 1, priorities=True)
    device, priority = placements.device[0].copy(), placements.priority[0].copy()  # type: ignore[index]
    with_path(problem, log, device, priority)
    for kind in KINDS:
        state, devices, priorities = np.array([7], np.uint64), 0, 0
        for _ in range(50):
            propose(state, device, priority, hood, graph, shares(**{kind: 1.0}), log)
            devices += int(log.counts[DEVICES] > 0)
            priorities += int(log.counts[PRIORITIES] > 0)
            undo(device, priority, log)
        if kind in ("order", "level"):
            assert (devices, priorities) == (0, 50), kind
        else:
            assert devices > 25, kind
            assert priorities == 0, kind


def test_guided_moves_are_about_the_critical_path() -> None:
    """Two chains on two devices, one twice as long: only operations of the long one are moved."""
    b = GraphBuilder("chains")
    for chain, flops in (("long", 2e9), ("short", 1e9)):
        t = b.add(f"{chain}0", outputs=[8], flops=flops)
        for i in range(1, 10):
            t = b.add(f"{chain}{i}", inputs=t, outputs=[8], flops=flops)
    problem = Problem.of(b.build(), machine(2, flops_per_s=1e9))
    hood, graph = neighbourhood(problem), flow(problem, None)
    log = new_log(problem.g, problem.g, problem.graph.n + problem.graph.e, problem.graph.n)
    device, priority = np.repeat([0, 1], 10).astype(np.int16), np.zeros(20, np.float32)
    with_path(problem, log, device, priority)
    assert log.counts[PATH] == 10
    state, moved = np.array([1], np.uint64), 0
    for _ in range(100):
        propose(state, device, priority, hood, graph, shares(critical=1.0), log)
        moved += int(log.counts[DEVICES])
        assert log.counts[DEVICES] == 0 or log.group[0] < 10, "a swap begins with a critical operation too"
        undo(device, priority, log)
    assert moved > 60


def test_a_transfer_move_ends_the_transfer() -> None:
    b = GraphBuilder("pair")
    t = b.add("a", outputs=[10**9], flops=1e9)
    b.add("b", inputs=t, flops=1e9)
    problem = Problem.of(b.build(), machine(2, flops_per_s=1e9))
    hood, graph, log = neighbourhood(problem), flow(problem, None), new_log(2, 2, 10, 2)
    device, priority, state = np.array([0, 1], np.int16), np.zeros(2, np.float32), np.array([1], np.uint64)
    with_path(problem, log, device, priority)
    assert log.counts[PATH] == 3
    seen = set()
    for _ in range(50):
        propose(state, device, priority, hood, graph, shares(transfer=1.0), log)
        assert device[0] == device[1]
        seen.add(int(device[0]))
        undo(device, priority, log)
    assert seen == {0, 1}, "the producer moves, or the reader"


def test_parameters_follow_what_reads_them() -> None:
    b = GraphBuilder("weights")
    shared, own = b.source("shared", 100), b.source("own", 100)
    b.add("a", inputs=[shared, own], flops=1e9)
    b.add("b", inputs=[shared], flops=1e9)
    problem = Problem.of(b.build(), machine(2, flops_per_s=1e9))
    names = list(problem.graph.op_name)
    device = np.zeros(4, np.int16)
    hood, graph, log = neighbourhood(problem), flow(problem, None), new_log(4, 4, 1, 4)
    priority, state = np.zeros(0, np.float32), np.array([1], np.uint64)
    for _ in range(30):
        propose(state, device, priority, hood, graph, shares(single=1.0), log)
        moved = {names[i] for i in np.flatnonzero(device)}
        if "a" in moved:
            assert moved == {"a", "own"}
        elif "b" in moved:
            assert moved == {"b"}, "another operation still reads the shared one where it is"
        undo(device, priority, log)


@settings(max_examples=60, deadline=None)
@given(case=problems(max_n=60, max_devices=3))
def test_coarsening_partitions_the_groups_into_fewer_and_fewer_units(case: Case) -> None:
    problem = case.problem
    before, count = np.arange(problem.g), problem.g
    for unit_of in coarsen(problem):
        units = int(unit_of.max()) + 1
        assert set(unit_of.tolist()) == set(range(units))
        assert units < count
        for unit in range(units):
            inside = unit_of == unit
            assert problem.allowed[inside].all(axis=0).any(), "some device may run the whole unit"
        for old in range(count):
            assert len(set(unit_of[before == old].tolist())) == 1, "units of the level below stay whole"
        assert coarse(problem, unit_of).g == units
        before, count = unit_of, units
