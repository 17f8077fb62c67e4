"""list_scheduling.py: levels, costs and rules against published schedules, and against their definitions."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from placekit_scheduling import (
    RULES,
    ListScheduler,
    b_level,
    critical_path,
    critical_path_device,
    group_priority,
    mean_optimistic_cost,
    optimistic_cost,
    t_level,
    transfer_cost,
)
from schedule_problems import check_schedule, machine, problem_of, random_problem, topcuoglu

from placekit_core import GraphBuilder


def test_upward_rank_of_the_heft_paper() -> None:
    ranks = [108.000, 77.000, 80.000, 80.000, 69.000, 63.333, 42.667, 35.667, 44.333, 14.667]
    assert b_level(topcuoglu()).tolist() == pytest.approx(ranks, abs=5e-4)


def test_heft_schedule_of_the_paper() -> None:
    """Topcuoglu et al. 2002, Fig. 3a: schedule length 80, the processor and start of every task."""
    scheduler = ListScheduler(topcuoglu()).run("heft")
    assert scheduler.makespan_s == 80
    assert (scheduler.group_device + 1).tolist() == [3, 1, 3, 2, 3, 2, 3, 1, 2, 2]
    assert scheduler.start_s.tolist() == [0, 27, 9, 18, 28, 26, 38, 57, 56, 73]
    check_schedule(scheduler)


def test_cpop_schedule_of_the_paper() -> None:
    """Fig. 3b: schedule length 86; n1, n2, n9 and n10 are the critical path, on P2, which runs it in 54."""
    p = topcuoglu()
    assert critical_path(p).tolist() == [0, 1, 8, 9]
    assert critical_path_device(p, np.asarray([0, 1, 8, 9])) == 1
    scheduler = ListScheduler(p).run("cpop")
    assert scheduler.makespan_s == 86
    assert scheduler.group_device[[0, 1, 8, 9]].tolist() == [1, 1, 1, 1]
    check_schedule(scheduler)


def test_levels_by_hand() -> None:
    """w -> a (2 s, 4 bytes) -> b (3 s), c (1 s); 2 bytes/s: sending a's output takes 2 s plus 1 s of latency."""
    b = GraphBuilder("levels")
    w = b.source("w", 100)
    (x,) = b.add("a", inputs=[w], outputs=[4])
    b.add("b", inputs=[x])
    b.add("c", inputs=[x])
    p = problem_of(b.build(), machine(bytes_per_s=2, latency_s=1), [0, 2, 3, 1])
    assert transfer_cost(p).tolist() == [0, 3]
    assert b_level(p).tolist() == [8, 8, 3, 1]
    assert b_level(p, communication=0).tolist() == [5, 5, 3, 1]
    assert t_level(p).tolist() == [0, 0, 5, 5]
    assert t_level(p, communication=0).tolist() == [0, 0, 2, 2]
    assert transfer_cost(problem_of(p.graph, machine(1), [0, 2, 3, 1])).tolist() == [0, 0]


def test_group_priority() -> None:
    b = GraphBuilder("priority")
    w = b.source("w", 1)
    (x,) = b.add("a", inputs=[w], outputs=[1])
    b.add("b", inputs=[x])
    b.source("unread", 1)
    p = problem_of(b.build(), machine(), [0, 1, 1, 0], [0, 1, 0, 2])
    assert group_priority(p, np.asarray([9.0, 5.0, 3.0, 2.0])).tolist() == [3, 5, 2]


def run_by_definition(scheduler: ListScheduler, rule: Any) -> None:
    """Place step by step, looking at everything; ties as documented."""
    level, ahead = scheduler.default_level(rule), np.zeros(scheduler.problem.op_s.shape)
    home = dict.fromkeys(range(scheduler.problem.graph.n), -1)
    scheduler.reset(insertion=rule in ("heft", "cpop", "peft"))
    if rule == "peft":
        ahead = optimistic_cost(scheduler.problem)
    if rule == "cpop":
        path = critical_path(scheduler.problem)
        home |= dict.fromkeys(path.tolist(), critical_path_device(scheduler.problem, path))
    while not scheduler.done:
        ready = scheduler.ready
        if rule != "etf":
            ready = ready[[np.lexsort((ready, -np.round(level[ready], 6)))[0]]]
        pairs = []
        for op in ready:
            start = scheduler.earliest_start(op)
            end = np.round(start + scheduler.problem.op_s[op] + ahead[op], 6)
            can = np.flatnonzero(np.isfinite(start))
            for d in [home[op]] if home[op] in can else can:
                key = {
                    "etf": (start[d], -round(level[op], 6), op, d), "critical_path": (start[d], end[d], d),
                }.get(rule, (end[d], start[d], d))  # fmt: skip
                pairs.append((key, op, d))
        _, op, device = min(pairs)
        scheduler.place(int(op), int(device))


@pytest.mark.slow
@given(st.integers(0, 2**32), st.sampled_from(RULES))
@settings(max_examples=150, deadline=None)
def test_rules_by_definition(seed: int, rule: Any) -> None:
    problem = random_problem(np.random.default_rng(seed))
    fast, slow = ListScheduler(problem).run(rule), ListScheduler(problem)
    check_schedule(fast)
    run_by_definition(slow, rule)
    assert fast.start_s.tolist() == slow.start_s.tolist()
    assert fast.devices().tolist() == slow.devices().tolist()


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_optimistic_cost_by_definition(seed: int) -> None:
    """Arabnejad and Barbosa 2014, Eq. 4, as it is written, and Eq. 5."""
    p = random_problem(np.random.default_rng(seed))
    allowed, sent, graph = p.allowed[p.grouping.group_of], transfer_cost(p), p.graph

    @cache
    def oct_of(v: int, d: int) -> float:
        return max(
            (
                min(
                    oct_of(c, w) + p.op_s[c, w] + (sent[t] if w != d else 0.0)
                    for w in range(p.cluster.size)
                    if allowed[c, w]
                )
                for t in graph.outputs(v)
                for c in graph.consumers(t).tolist()
            ),
            default=0.0,
        )

    expected = np.asarray([[oct_of(v, d) for d in range(p.cluster.size)] for v in range(graph.n)])
    assert optimistic_cost(p) == pytest.approx(expected)
    mean = [row[ok].mean() for row, ok in zip(expected, allowed, strict=True)]
    assert mean_optimistic_cost(p, expected) == pytest.approx(np.asarray(mean))


def test_seeds_decide_ties_only() -> None:
    b = GraphBuilder("ties")
    for i in range(8):
        b.add(f"op{i}")
    p = problem_of(b.build(), machine(4), [1] * 8)
    devices = {tuple(ListScheduler(p).run("critical_path", seed=s).devices().tolist()) for s in range(20)}
    assert len(devices) > 10
    assert ListScheduler(p).run("critical_path").devices().tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    distinct = problem_of(b.build(), machine(4), np.arange(8) + 1)  # of levels; which device is still a tie
    expected = ListScheduler(distinct).run("critical_path").start_s.tolist()
    for seed in range(9):
        assert ListScheduler(distinct).run("critical_path", seed=seed).start_s.tolist() == expected
