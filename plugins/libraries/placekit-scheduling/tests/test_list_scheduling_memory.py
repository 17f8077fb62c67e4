"""list_scheduling.py: what is live where, what may go where, and favourite children."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from placekit_scheduling import RULES, ListScheduler, b_level
from schedule_problems import problem_of

from placekit_core import Cluster, GraphBuilder, PlacementError, Problem


def machine(memory: list[int], streams: int = 1) -> Cluster:
    """One device for each number of bytes, a channel per ordered pair, 1 byte/s."""
    rates = {"flops_per_s": {"float32": 1.0}, "memory_bytes_per_s": 1.0, "streams": streams}
    return Cluster.parse({
        "kinds": {f"d{i}": {**rates, "memory_bytes": m} for i, m in enumerate(memory)},
        "devices": [{"kind": f"d{i}"} for i in range(len(memory))],
        "links": [{"mesh": "*", "bytes_per_s": 1.0}] if len(memory) > 1 else [],
    })  # fmt: skip


def random_problem(rng: np.random.Generator, tightness: float | None = None) -> Problem:
    """Sources, shared storage, several outputs; `tightness` is memory per device over all bytes that there can be."""
    n = int(rng.integers(2, 30))
    b = GraphBuilder("random")
    tensors: list[int] = []
    for v in range(n):
        if rng.random() < 0.2:
            tensors.append(b.source(f"s{v}", int(rng.integers(1, 20)), colocate=int(rng.integers(-1, 3))))
            continue
        reads = [t for t in tensors if rng.random() < 3 / (len(tensors) + 1)]
        outputs = b.add(f"op{v}", inputs=reads, outputs=rng.integers(1, 20, int(rng.integers(1, 3))).tolist())
        if rng.random() < 0.3:
            outputs.append(b.output(v, 3, storage=outputs[0]))
        tensors += outputs
    graph = b.build()
    total = graph.persistent_bytes.sum() + graph.tensor_bytes.sum()
    memory = 10**9 if tightness is None else max(int(total * tightness), int(graph.persistent_bytes.sum()), 1)
    devices = int(rng.integers(1, 4))
    return problem_of(graph, machine([memory] * devices), np.where(graph.kernel, rng.integers(1, 9, n), 0))


def live_by_definition(p: Problem, placed: list[int], device: dict[int, int]) -> list[float]:
    """Bytes of outputs and copies that an operation not yet placed reads, per device."""
    graph, done = p.graph, set(placed)
    live = [0.0] * p.cluster.size
    for s in range(graph.t):
        group = [t for t in range(graph.t) if graph.tensor_storage[t] == s]
        u = int(graph.tensor_producer[s])
        left = any(c not in done for t in group for c in graph.consumers(t).tolist())
        if group and u in done and left and graph.kernel[u]:
            live[device[u]] += graph.tensor_bytes[s]
    for t in range(graph.t):
        u, readers = int(graph.tensor_producer[t]), graph.consumers(t).tolist()
        if any(c not in done for c in readers):
            there = {device[c] for c in readers if c in done} - {device.get(u)}
            for d in there:
                live[d] += graph.tensor_bytes[t]
    return live


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_live_bytes_by_definition(seed: int) -> None:
    """After every step, for random orders and devices; the peak is taken with outputs that nobody reads, inputs still there."""
    rng = np.random.default_rng(seed)
    p = random_problem(rng)
    graph, group = p.graph, p.grouping.group_of
    scheduler, placed, highest = ListScheduler(p), [], np.zeros(p.cluster.size)
    device: dict[int, int] = {}
    while not scheduler.done:
        op = int(rng.choice(scheduler.ready))
        d = int(rng.choice(np.flatnonzero(np.isfinite(scheduler.earliest_start(op)))))
        before = scheduler._state.live.copy()
        scheduler.place(op, d)
        device |= {int(v): int(scheduler.group_device[group[v]]) for v in np.flatnonzero(~graph.kernel)}
        copies = [
            t for t in graph.inputs(op).tolist()
            if device[int(graph.tensor_producer[t])] != d and not any(device.get(int(c)) == d for c in graph.consumers(t))
        ]  # fmt: skip
        device[op] = d
        outputs = [t for t in graph.outputs(op) if graph.tensor_storage[t] == t]
        most = before[d] + graph.tensor_bytes[copies].sum() + graph.tensor_bytes[outputs].sum()
        highest[d] = max(highest[d], most)
        placed.append(op)
        assert scheduler._state.live.tolist() == live_by_definition(p, placed, device)
    assert not scheduler._state.live.any()
    assert scheduler.peak_bytes.tolist() == (scheduler.used_bytes + highest).tolist()


@given(st.integers(0, 2**32), st.floats(0.2, 0.8), st.sampled_from([*RULES, "favourite"]))
@settings(max_examples=150, deadline=None)
def test_every_rule_ends_in_little_memory(seed: int, tightness: float, rule: Any) -> None:
    p = random_problem(np.random.default_rng(seed), tightness)
    scheduler = ListScheduler(p)
    if rule == "favourite":
        scheduler.run("etf", favourite=np.random.default_rng(seed).integers(-1, p.graph.n, p.graph.n))
    else:
        scheduler.run(rule)
    assert scheduler.done
    assert not scheduler._state.live.any()
    p.check(scheduler.placement().batch())


def chains(memory: list[int]) -> ListScheduler:
    """Two operations of 10 output bytes each, both read by a third, which starts late."""
    b = GraphBuilder("chains")
    (x,) = b.add("a", outputs=[10])
    (y,) = b.add("b", outputs=[10])
    b.add("c", inputs=[x, y])
    return ListScheduler(problem_of(b.build(), machine(memory), [1, 5, 1]))


def test_a_device_that_is_too_small_for_an_output() -> None:
    for rule in RULES:
        scheduler = chains([9, 100]).run(rule)
        assert scheduler.group_device[:2].tolist() == [1, 1]
        assert scheduler.peak_bytes.tolist() == [0, 20]
        assert set(chains([100, 100]).run(rule).group_device[:2].tolist()) == {0, 1}
    scheduler = chains([9, 100])
    assert scheduler.earliest_start(0).tolist() == [np.inf, 0]
    scheduler.place(0, 1)
    scheduler.place(1, 1)
    assert scheduler.earliest_start(2).tolist() == [np.inf, 6]  # 20 bytes would have to be received


def test_sources_that_would_be_bound_need_room() -> None:
    """Two weights of one free group count once, and make the first device too small."""
    b = GraphBuilder("weights")
    pair = [b.source(f"w{i}", 4, colocate=0) for i in range(2)]
    b.add("op", inputs=pair)
    for memory, expected in (([7, 10], [np.inf, 0]), ([8, 10], [0, 0])):
        scheduler = ListScheduler(problem_of(b.build(), machine(memory), [0, 0, 1]))
        assert scheduler.earliest_start(2).tolist() == expected


def test_what_stays_must_fit_beside_what_was_live_most() -> None:
    """8 bytes are live on the device for a while; 3 persistent bytes would have been there all the time."""
    b = GraphBuilder("peak")
    (x,) = b.add("a", outputs=[8])
    b.add("b", inputs=[x])
    w = b.source("w", 3, colocate=0)
    b.add("late", inputs=[w], colocate=0)
    (y,) = b.add("c", outputs=[8])
    b.add("d", inputs=[y])
    scheduler = ListScheduler(problem_of(b.build(), machine([10, 10]), [1, 1, 0, 1, 1, 1]))
    scheduler.place(0, 0)
    assert scheduler.earliest_start(4).tolist() == [np.inf, 0]
    scheduler.place(1, 0)
    assert scheduler.earliest_start(4).tolist() == [2, 0]  # the 8 bytes are free again
    assert scheduler.earliest_start(3).tolist() == [np.inf, 0]


def test_etf_comes_back_to_what_had_no_room() -> None:
    """The big device is busy for long; `b` waits on the small one until `a`'s output is freed there, and starts at 2."""
    b = GraphBuilder("again")
    (x,) = b.add("a", outputs=[8])
    b.add("sink", inputs=[x])
    b.add("long", outputs=[30])
    (y,) = b.add("b", outputs=[9])
    b.add("end", inputs=[y])
    level = np.asarray([5.0, 3, 6, 4, 2])
    for favourite in (None, np.full(5, -1)):
        p = problem_of(b.build(), machine([40, 10]), [1, 1, 50, 1, 1])
        scheduler = ListScheduler(p).run("etf", level, favourite=favourite)
        assert scheduler.group_device.tolist() == [1, 1, 0, 1, 1]
        assert scheduler.start_s.tolist() == [0, 1, 0, 2, 3]
        assert scheduler.peak_bytes.tolist() == [30, 9]


def etf_with_favourites_by_definition(scheduler: ListScheduler, favourite: list[int], level: Any) -> None:
    last: dict[int, int] = {}
    problem = scheduler.problem
    while not scheduler.done:
        ready = scheduler.ready.tolist()
        start = {v: scheduler.earliest_start(v) for v in ready}
        awaited = {}
        for d, v in last.items():
            child = favourite[v]
            free = child in start and scheduler.group_device[problem.grouping.group_of[child]] < 0
            if free and start[child][d] == start[child].min():
                awaited[d] = child
        pairs = []
        for v in ready:
            urgent = start[v][np.isfinite(start[v])].max()
            for d in np.flatnonzero(np.isfinite(start[v])).tolist():
                turn = max(start[v][d], urgent) if awaited.get(d, v) != v else start[v][d]
                pairs.append((turn, awaited.get(d) != v, -level[v], v, d))
        _, _, _, op, device = min(pairs)
        scheduler.place(op, device)
        last[device] = op


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_favourites_by_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = random_problem(rng)
    level = np.round(b_level(p, communication=0.0), 6)
    favourite = np.full(p.graph.n, -1)
    for u, v in zip(*p.graph.op_edges, strict=True):
        if p.graph.kernel[u] and rng.random() < 0.5:
            favourite[u] = v
    fast, slow = ListScheduler(p).run("etf", level, favourite=favourite), ListScheduler(p)
    etf_with_favourites_by_definition(slow, favourite.tolist(), level)
    assert fast.start_s.tolist() == slow.start_s.tolist()
    assert fast.devices().tolist() == slow.devices().tolist()


def test_a_device_waits_for_its_favourite_child() -> None:
    """At 1, `other` could start on the first device, which `child` needs: `a`'s output takes 9 s to the other one.

    `child` also reads what `b` sends until 3. `other` needs 5 s to be urgent, because `x` has to reach the second device.
    """
    b = GraphBuilder("wait")
    (x,) = b.add("a", outputs=[9])
    (y,) = b.add("b", outputs=[2])
    b.add("child", inputs=[x, y])
    b.add("other", inputs=[x])
    p = problem_of(b.build(), machine([100, 100]), [1, 1, 4, 4])
    level = np.asarray([4.0, 3, 1, 2])
    plain = ListScheduler(p).run("etf", level)
    assert plain.start_s.tolist() == [0, 0, 5, 1]
    waiting = ListScheduler(p).run("etf", level, favourite=np.asarray([2, -1, -1, -1]))
    assert waiting.start_s.tolist() == [0, 0, 3, 7]


def test_favourites_are_checked() -> None:
    p = chains([100]).problem
    for wrong in ([0, 1], [0, 1, 3], [0, 1, -2]):
        with pytest.raises(PlacementError, match="favourite must hold 3 operations, or -1"):
            ListScheduler(p).run("etf", favourite=np.asarray(wrong))
    with pytest.raises(PlacementError, match="'heft' does not support favourite children"):
        ListScheduler(p).run("heft", favourite=np.full(3, -1))
