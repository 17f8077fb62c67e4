"""list_scheduling.py: the step interface, which machine it models, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from placekit_scheduling import RULES, ListScheduler
from schedule_problems import check_schedule, machine, problem_of, random_problem, topcuoglu

from placekit_core import Cluster, GraphBuilder, PlacementError


@pytest.mark.slow
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_steps_predict_what_they_do(seed: int, tight: bool, insertion: bool) -> None:
    """`earliest_start` changes nothing, `place` starts at that time, and any order gives a valid schedule."""
    rng = np.random.default_rng(seed)
    scheduler = ListScheduler(random_problem(rng, tight))
    scheduler.reset(insertion)
    while not scheduler.done:
        op = int(rng.choice(scheduler.ready))
        logs = ("counts", "fresh", "waiting")
        before = {
            k: v.copy() for k, v in scheduler._state._asdict().items() if not k.startswith("log") and k not in logs
        }
        start = scheduler.earliest_start(op)
        for key, value in before.items():
            assert np.array_equal(value, getattr(scheduler._state, key)), key
        device = int(rng.choice(np.flatnonzero(np.isfinite(start))))
        assert scheduler.place(op, device) == start[device]
    check_schedule(scheduler)


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
    assert scheduler.earliest_start(2).tolist() == [1, 6]


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


def test_one_allowed_device_each_fixes_a_placement() -> None:
    p = topcuoglu()
    device = np.asarray([2, 0, 2, 1, 2, 1, 2, 0, 1, 1])
    scheduler = ListScheduler(p, np.arange(3) == device[:, None])
    with pytest.raises(PlacementError, match=r"group 'n1' may not run on p1:0[\s\S]*p3:0"):
        scheduler.place(0, 0)
    assert scheduler.run("etf").devices().tolist() == device.tolist()


def test_a_run_continues_what_was_begun() -> None:
    p = topcuoglu()
    for rule in RULES:
        scheduler = ListScheduler(p)
        scheduler.place(0, 0)
        scheduler.place(3, 0)
        scheduler.run(rule)
        assert scheduler.group_device[[0, 3]].tolist() == [0, 0]
        check_schedule(scheduler)


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
    names = "ListScheduler, all_bounds, b_level, kernel_signature"
    code = f"import sys; from placekit_scheduling import {names}; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
