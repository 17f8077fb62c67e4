"""list_scheduling.py: levels, the step interface, and the rules against published and brute-force schedules."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placekit_core.bounds import makespan_bound
from placekit_core.cluster import Cluster
from placekit_core.costs import CostTable
from placekit_core.errors import PlacementError
from placekit_core.graph import Graph, GraphBuilder
from placekit_core.grouping import Grouping
from placekit_core.list_scheduling import (
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
from placekit_core.problem import Problem


def machine(
    gpus: int = 2, cpus: int = 0, memory: int = 10**9, bytes_per_s: float = 1.0, streams: int | str = 1, **link: Any
) -> Cluster:
    """Devices g:0.. and c:0.., a channel per ordered pair."""
    rates = {"flops_per_s": {"float32": 1.0}, "memory_bytes": memory, "memory_bytes_per_s": 1.0, "streams": streams}
    return Cluster.parse({
        "kinds": {"g": rates, "c": {**rates, "type": "cpu"}},
        "devices": [{"kind": "g", "count": gpus}] + [{"kind": "c", "count": cpus}] * (cpus > 0),
        "links": [{"mesh": "*", "bytes_per_s": bytes_per_s, **link}] if gpus + cpus > 1 else [],
    })  # fmt: skip


def problem_of(graph: Graph, cluster: Cluster, seconds: Any, grouping: Grouping | None = None) -> Problem:
    """A problem with these seconds per operation (or per operation and device kind)."""
    kinds = cluster.kind_names
    table = np.broadcast_to(np.asarray(seconds, float).reshape(graph.n, -1), (graph.n, len(kinds))).copy()
    return Problem.of(graph, cluster, grouping, CostTable(kinds, table, np.zeros(table.shape, bool)))


def topcuoglu() -> Problem:
    """The example of Topcuoglu et al. 2002 (Fig. 2): ten tasks, three processors, every edge with its own data."""
    edges = {
        (1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14, (2, 8): 19, (2, 9): 16, (3, 7): 23, (4, 8): 27,
        (4, 9): 23, (5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11, (9, 10): 13,
    }  # fmt: skip
    seconds = [
        [14, 16, 9], [13, 19, 18], [11, 13, 19], [13, 8, 17], [12, 13, 10], [13, 16, 9], [7, 15, 11], [5, 11, 14],
        [18, 12, 20], [21, 7, 16],
    ]  # fmt: skip
    b = GraphBuilder("topcuoglu")
    for i in range(1, 11):
        b.add(f"n{i}")
    for (u, v), size in edges.items():
        b.operations[v - 1].inputs.append(b.output(u - 1, size))
    kind = {"flops_per_s": {"float32": 1.0}, "memory_bytes": 1000, "memory_bytes_per_s": 1.0}
    cluster = Cluster.parse({
        "kinds": {f"p{i}": kind for i in (1, 2, 3)}, "devices": [{"kind": f"p{i}"} for i in (1, 2, 3)],
        "links": [{"mesh": "*", "bytes_per_s": 1, "concurrent": "unlimited"}],
    })  # fmt: skip
    return problem_of(b.build(), cluster, seconds)


def random_problem(rng: np.random.Generator, tight: bool = False) -> Problem:
    """Sources, several outputs, co-located sets, groups, device types, several streams and lanes."""
    n = int(rng.integers(1, 40))
    b = GraphBuilder("random")
    tensors: list[int] = []
    for v in range(n):
        set_ = int(rng.integers(0, 4)) if rng.random() < 0.2 else -1
        if rng.random() < 0.25:
            tensors.append(b.source(f"s{v}", int(rng.integers(1, 20)), colocate=set_))
            continue
        reads = [t for t in tensors if rng.random() < 3 / (len(tensors) + 1)]
        outputs = rng.integers(0, 20, int(rng.integers(1, 3))).tolist()
        only = "cpu" if rng.random() < 0.1 else ""
        tensors += b.add(f"op{v}", inputs=reads, outputs=outputs, colocate=set_, allowed=only)
    graph = b.build()
    cluster = machine(
        int(rng.integers(1, 4)), 1, memory=max(int(graph.persistent_bytes.sum()), 1) if tight else 10**9,
        bytes_per_s=2.0 ** int(rng.integers(0, 5)),  # times are exact: ties are ties
        streams=("unlimited", 1, 1, 2)[rng.integers(4)],
        latency_s=float(rng.integers(0, 2)), concurrent=("unlimited", 1, 1, 2)[rng.integers(4)],
    )  # fmt: skip
    seconds = np.where(graph.kernel[:, None], rng.integers(0, 9, (n, 2)), 0)
    return problem_of(graph, cluster, seconds)


def check_schedule(scheduler: ListScheduler) -> None:
    """Every operation is on an allowed device, after what it reads, and streams run one operation at a time."""
    p, placement = scheduler.problem, scheduler.placement()
    graph, device = p.graph, p.expand(placement.device)
    start, finish = scheduler.start_s, scheduler.finish_s
    assert np.allclose(finish, start + p.op_s[np.arange(graph.n), device])
    latency, inverse = p.cluster.routes.latency_s, p.cluster.routes.s_per_byte
    for v in np.flatnonzero(graph.kernel):
        for t in graph.inputs(int(v)):
            u = graph.tensor_producer[t]
            sent = latency[device[u], device[v]] + graph.tensor_bytes[t] * inverse[device[u], device[v]]
            assert start[v] >= finish[u] + (sent if device[u] != device[v] else 0) - 1e-9
    for d in range(p.cluster.size):
        here = np.flatnonzero(graph.kernel & (device == d) & (finish > start))
        for v in here:
            running = (start[here] <= start[v]) & (finish[here] > start[v])
            assert running.sum() <= p.cluster.streams[d]
    assert scheduler.makespan_s >= makespan_bound(p)
    bound = scheduler.group_device >= 0
    used = np.bincount(scheduler.group_device[bound], p.group_persistent_bytes[bound], minlength=p.cluster.size)
    assert scheduler.used_bytes.tolist() == used.tolist()


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


def test_costs_are_of_allowed_devices() -> None:
    b = GraphBuilder("types")
    b.add("any")
    b.add("cpu", allowed="cpu")
    p = problem_of(b.build(), machine(3, 1), [[1, 5], [1, 7]])
    assert b_level(p).tolist() == [2, 7]
    assert b_level(p, "min").tolist() == [1, 7]


def test_group_priority() -> None:
    b = GraphBuilder("priority")
    w = b.source("w", 1)
    (x,) = b.add("a", inputs=[w], outputs=[1])
    b.add("b", inputs=[x])
    b.source("unread", 1)
    grouping = Grouping(np.asarray([0, 1, 0, 2], np.int32))
    p = problem_of(b.build(), machine(), [0, 1, 1, 0], grouping)
    assert group_priority(p, np.asarray([9.0, 5.0, 3.0, 2.0])).tolist() == [3, 5, 2]


@given(st.integers(0, 2**32), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_steps_predict_what_they_do(seed: int, tight: bool, insertion: bool) -> None:
    """`times` changes nothing, `place` starts when `earliest_start` said, and any order gives a valid schedule."""
    rng = np.random.default_rng(seed)
    scheduler = ListScheduler(random_problem(rng, tight))
    scheduler.reset(insertion)
    while not scheduler.done:
        op = int(rng.choice(scheduler.ready))
        logs = ("counts", "fresh", "waiting")
        before = {
            k: v.copy() for k, v in scheduler._state._asdict().items() if not k.startswith("log") and k not in logs
        }
        inputs, start = scheduler.times(op)
        for key, value in before.items():
            assert np.array_equal(value, getattr(scheduler._state, key)), key
        assert (inputs <= start).all()
        device = int(rng.choice(np.flatnonzero(np.isfinite(start))))
        assert scheduler.place(op, device) == start[device]
    check_schedule(scheduler)


@given(st.integers(0, 2**32), st.booleans(), st.sampled_from(RULES), st.sampled_from([None, 1]))
@settings(max_examples=120, deadline=None)
def test_rules_give_valid_schedules(seed: int, tight: bool, rule: Any, ties: int | None) -> None:
    problem = random_problem(np.random.default_rng(seed), tight)
    scheduler = ListScheduler(problem).run(rule, seed=ties)
    check_schedule(scheduler)
    first = scheduler.placement()
    scheduler.reset()
    assert scheduler.run(rule, seed=ties).placement().same_as(first)


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


@given(st.integers(0, 2**32), st.sampled_from(RULES))
@settings(max_examples=150, deadline=None)
def test_rules_by_definition(seed: int, rule: Any) -> None:
    problem = random_problem(np.random.default_rng(seed))
    fast, slow = ListScheduler(problem).run(rule), ListScheduler(problem)
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


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_the_critical_path_is_a_longest_path(seed: int) -> None:
    p = random_problem(np.random.default_rng(seed))
    path, graph = critical_path(p).tolist(), p.graph
    assert graph.kernel[path].all()
    longest = (b_level(p) + t_level(p))[graph.kernel]
    assert (b_level(p) + t_level(p))[path] == pytest.approx(longest.max(initial=0.0))
    edges = {(int(graph.tensor_producer[t]), int(v)) for v in range(graph.n) for t in graph.inputs(v)}
    assert all(e in edges for e in pairwise(path))
    assert len(path) or not graph.kernel.any()


# recorded with the scheduler that looked at persistent bytes only
BEFORE = {
    "critical_path": "c758f7590b9b8d96", "earliest_finish": "41134479e46f6841", "etf": "395725dd08bd5432",
    "heft": "41ac465e68b55675",
}  # fmt: skip


@pytest.mark.parametrize("rule", BEFORE)
def test_schedules_with_ample_memory_have_not_changed(rule: Any) -> None:
    digest = hashlib.sha256()
    for i in range(40):
        scheduler = ListScheduler(random_problem(np.random.default_rng(i)))
        for seed in (None, 1):
            scheduler.reset()
            scheduler.run(rule, seed=seed)
            digest.update(scheduler.devices().tobytes())
            digest.update(scheduler.start_s.tobytes())
    assert digest.hexdigest()[:16] == BEFORE[rule]


def test_independent_operations_spread() -> None:
    b = GraphBuilder("independent")
    for i in range(12):
        b.add(f"op{i}")
    for rule in RULES:
        for seed in (None, 0):
            assert ListScheduler(problem_of(b.build(), machine(4), [1] * 12)).run(rule, seed=seed).makespan_s == 3


def test_streams() -> None:
    b = GraphBuilder("independent")
    for i in range(6):
        b.add(f"op{i}")
    for streams, makespan in ((1, 6), (2, 3), (4, 2), ("unlimited", 1)):
        p = problem_of(b.build(), machine(1, streams=streams), [1] * 6)
        for rule in RULES:
            assert ListScheduler(p).run(rule).makespan_s == makespan


def fan(cluster: Cluster, readers: int = 2) -> ListScheduler:
    """`a` (1 s, 4 bytes) is placed on device 0; r0, r1, ... read it."""
    b = GraphBuilder("fan")
    (x,) = b.add("a", outputs=[4])
    for i in range(readers):
        b.add(f"r{i}", inputs=[x])
    scheduler = ListScheduler(problem_of(b.build(), cluster, [1] * (readers + 1)))
    assert scheduler.ready.tolist() == [0]
    scheduler.place(0, 0)
    return scheduler


def test_a_tensor_is_sent_once_per_destination() -> None:
    scheduler = fan(machine(2))
    assert scheduler.earliest_start(1).tolist() == [1, 5]
    assert scheduler.place(1, 1) == 5
    inputs, start = scheduler.times(2)
    assert inputs.tolist() == [1, 5]
    assert start.tolist() == [1, 6]
    assert scheduler.device_free_s.tolist() == [1, 6]


def test_transfers_wait_for_shared_channels() -> None:
    """Both destinations are behind the one egress of g:0; two lanes take both at once; a bus is held by one send."""
    rates = {"flops_per_s": {"float32": 1.0}, "memory_bytes": 100, "memory_bytes_per_s": 1.0}

    def start(multicast: bool = False, **link: Any) -> float:
        cluster = Cluster.parse({
            "kinds": {"g": rates}, "devices": [{"kind": "g", "count": 3}], "multicast": multicast,
            "links": [{"a": "g:*", "b": "hub", "bytes_per_s": 1, "reverse": {"bytes_per_s": 1, "concurrent": "unlimited"},
                       **link}],
        })  # fmt: skip
        scheduler = fan(cluster)
        scheduler.place(1, 1)
        return scheduler.place(2, 2)

    assert start() == 9
    assert start(concurrent=2) == 5
    assert start(concurrent="unlimited") == 5
    assert start(multicast=True) == 5


def test_heft_fills_gaps() -> None:
    """Device 0 waits for `far` until 12; `small`, placed later, runs before it there."""
    b = GraphBuilder("gap")
    (x,) = b.add("far", outputs=[10])
    b.add("late", inputs=[x])
    b.add("small")
    for insertion, start in ((False, 13), (True, 0)):
        scheduler = ListScheduler(problem_of(b.build(), machine(2), [2, 1, 3]))
        scheduler.reset(insertion)
        scheduler.place(0, 1)
        assert scheduler.place(1, 0) == 12
        assert scheduler.earliest_start(2)[0] == start
        scheduler.place(2, 0)
        assert scheduler.makespan_s == (13 if insertion else 16)
        check_schedule(scheduler)


def test_first_consumer_binds_sources() -> None:
    b = GraphBuilder("weights")
    w = b.source("w", 6, colocate=0)
    (x,) = b.add("first", inputs=[w], outputs=[1])
    b.add("second", inputs=[w])
    b.add("update", inputs=[w, x], colocate=0)
    scheduler = ListScheduler(problem_of(b.build(), machine(2), [0, 1, 1, 1]))
    assert scheduler.earliest_start(1).tolist() == [0, 0]
    scheduler.place(1, 1)
    assert scheduler.group_device.tolist() == [1, 1, -1]
    assert scheduler.used_bytes.tolist() == [0, 6]
    assert scheduler.earliest_start(2).tolist() == [6, 1]  # w is on device 1 now
    assert scheduler.earliest_start(3).tolist() == [np.inf, 1]  # and so is its update


def test_sources_tied_to_another_type_stay_there() -> None:
    b = GraphBuilder("embedding")
    w = b.source("w", 6, colocate=0)
    b.add("lookup", inputs=[w], colocate=0, allowed="cpu")
    b.add("decode", inputs=[w], allowed="gpu")
    scheduler = ListScheduler(problem_of(b.build(), machine(1, 1), [0, 1, 1]))
    assert scheduler.earliest_start(2).tolist() == [6, np.inf]
    scheduler.place(2, 0)
    assert scheduler.group_device.tolist() == [1, 0]


def test_groups_go_where_their_persistent_bytes_fit() -> None:
    """Two groups of 6 bytes on devices of 10: the second goes to the other device, a third wherever it may."""
    b = GraphBuilder("memory")
    for i in range(3):
        w = b.source(f"w{i}", 6, colocate=i)
        b.add(f"op{i}", inputs=[w], colocate=i)
    p = problem_of(b.build(), machine(2, memory=10), [0, 1] * 3)
    scheduler = ListScheduler(p)
    scheduler.place(1, 0)
    assert scheduler.earliest_start(3).tolist() == [np.inf, 0]
    scheduler.place(3, 1)
    assert scheduler.earliest_start(5).tolist() == [1, 1]
    for rule in RULES:
        fresh = ListScheduler(p).run(rule)
        assert set(fresh.group_device[:2].tolist()) == {0, 1}
        assert fresh.done


def test_sources_avoid_full_devices() -> None:
    b = GraphBuilder("spill")
    tensors = [b.source(f"w{i}", 6) for i in range(2)]
    b.add("op", inputs=tensors)
    scheduler = ListScheduler(problem_of(b.build(), machine(2, memory=10), [0, 0, 1]))
    scheduler.place(2, 0)
    assert scheduler.group_device.tolist() == [0, 1, 0]
    assert scheduler.start_s[2] == 6


def test_bind_fixes_a_placement() -> None:
    p = topcuoglu()
    device = np.asarray([2, 0, 2, 1, 2, 1, 2, 0, 1, 1])
    scheduler = ListScheduler(p)
    for group in range(p.g):
        scheduler.bind(group, int(device[group]))
    scheduler.bind(0, 2)  # again: nothing changes
    assert scheduler.run("etf").devices().tolist() == device.tolist()
    with pytest.raises(PlacementError, match="group 'n1' is on p3:0, not on p1:0"):
        scheduler.bind(0, 0)


def test_a_run_continues_what_was_begun() -> None:
    p = topcuoglu()
    for rule in RULES:
        scheduler = ListScheduler(p)
        scheduler.place(0, 0)
        scheduler.place(3, 0)
        scheduler.run(rule)
        assert scheduler.group_device[[0, 3]].tolist() == [0, 0]
        check_schedule(scheduler)


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


def test_levels_of_the_caller_and_priorities() -> None:
    b = GraphBuilder("two")
    b.add("a")
    b.add("b")
    p = problem_of(b.build(), machine(1), [1, 1])
    scheduler = ListScheduler(p).run("critical_path", level=np.asarray([1.0, 2.0]))
    assert scheduler.start_s.tolist() == [1, 0]
    priority = scheduler.placement().priority
    assert priority is not None
    assert priority.tolist() == [1, 2]
    other = scheduler.placement(-scheduler.start_s).priority
    assert other is not None
    assert other.tolist() == [-1, 0]
    with pytest.raises(PlacementError, match=r"levels have shape \(3,\)"):
        ListScheduler(p).run(level=np.zeros(3))


def test_unread_sources_are_placed() -> None:
    b = GraphBuilder("unread")
    for i in range(3):
        b.source(f"w{i}", 6)
    scheduler = ListScheduler(problem_of(b.build(), machine(3, memory=10), [0] * 3))
    assert scheduler.done
    assert sorted(scheduler.placement().device.tolist()) == [0, 1, 2]


def test_errors() -> None:
    b = GraphBuilder("errors")
    w = b.source("w", 1)
    (x,) = b.add("a", inputs=[w], outputs=[1], colocate=0)
    b.add("b", inputs=[x], colocate=0)
    b.add("c", allowed="cpu")
    scheduler = ListScheduler(problem_of(b.build(), machine(2, 1), [0, 1, 1, 1]))
    for op in (0, 2, 4, -1):
        with pytest.raises(PlacementError, match="is not ready"):
            scheduler.place(op, 0)
    with pytest.raises(PlacementError, match="no device 3"):
        scheduler.place(1, 3)
    with pytest.raises(PlacementError, match=r"may not run on g:0[\s\S]*c:0"):
        scheduler.place(3, 0)
    scheduler.place(1, 0)
    with pytest.raises(PlacementError, match="is on g:0, not on g:1"):
        scheduler.place(2, 1)
    with pytest.raises(PlacementError, match="2 operations of 'errors' are not placed yet"):
        scheduler.placement()
    with pytest.raises(PlacementError, match="no list scheduling rule 'best'"):
        scheduler.run("best")  # type: ignore[arg-type]


def test_importing_the_module_imports_no_numba() -> None:
    code = "import sys, placekit_core.list_scheduling, placekit_core.bounds; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_etf_with_thousands_of_ready_operations() -> None:
    """All are placed, and the devices share the work nearly evenly."""
    b = GraphBuilder("wide")
    (x,) = b.add("first", outputs=[1])
    for i in range(4000):
        b.add(f"op{i}", inputs=[x], outputs=[3])
    rng = np.random.default_rng(0)
    p = problem_of(b.build(), machine(4), rng.integers(1, 9, 4001))
    schedule = ListScheduler(p).run("etf")
    assert makespan_bound(p) <= schedule.makespan_s <= makespan_bound(p) * 1.1
    work = np.bincount(schedule.placement().device, p.group_s[:, 0], minlength=4)
    assert work.min() > 0.9 * work.max()
