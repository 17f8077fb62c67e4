"""makespan.py: values by hand."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from placekit_scheduling import (
    ROUNDING,
    RULES,
    ListScheduler,
    all_bounds,
    binding_argument,
    critical_path_bound,
    makespan_bound,
)
from placekit_scheduling.bounds import makespan
from placekit_scheduling.bounds.makespan import group_bound, launch_bound
from placekit_scheduling.bounds.relaxation import THRESHOLDS, Relaxation
from placekit_scheduling.bounds.work import best_prices
from schedule_problems import problem_of
from scipy.optimize import linprog

from placekit_core import Cluster, Graph, GraphBuilder, Problem


def bound(name: str, problem: Problem) -> float:
    """One of the bounds alone, before rounding."""
    return float(getattr(makespan, f"{name}_bound")(Relaxation.of(problem)))


def machine(
    gpus: int, cpus: int = 0, streams: Any = 1, rate: float = 1e15, memory: int = 10**9, **link: Any
) -> Cluster:
    """Devices of `memory` bytes with direct links of `rate`: by default, communication takes almost nothing."""
    rates = {"flops_per_s": {"float32": 1.0}, "memory_bytes": memory, "memory_bytes_per_s": 1.0, "streams": streams}
    way = {"bytes_per_s": rate, "concurrent": "unlimited", **link}
    return Cluster.parse({
        "kinds": {"g": rates, "c": {**rates, "type": "cpu", "memory_bytes": 10**9}},
        "devices": [{"kind": "g", "count": gpus}] * (gpus > 0) + [{"kind": "c", "count": cpus}] * (cpus > 0),
        "links": [{"mesh": "*", **way}] if gpus + cpus > 1 else [],
    })  # fmt: skip


def chain(n: int, **properties: Any) -> Graph:
    b = GraphBuilder("chain")
    tensor = [b.source("x", 1)]
    for i in range(n):
        tensor = [b.add(f"op{i}", inputs=[tensor[-1]], outputs=[1], **properties)[0]]
    return b.build()


def independent(n: int, allowed: tuple[str, ...] = ("",)) -> Graph:
    b = GraphBuilder("independent")
    for i in range(n):
        b.add(f"op{i}", outputs=[1], allowed=allowed[i % len(allowed)])
    return b.build()


def test_chain() -> None:
    """One after another, each on the device that is faster for it; the source takes no time."""
    p = problem_of(chain(3), machine(2, 1), [[0, 0], [5, 1], [2, 3], [4, 4]])
    assert critical_path_bound(p) == 1 + 2 + 4
    assert makespan_bound(p) == pytest.approx(7)
    only_gpu = problem_of(chain(3, allowed="gpu"), machine(2, 1), [[0, 0], [5, 1], [2, 3], [4, 4]])
    assert critical_path_bound(only_gpu) == 11


def test_work() -> None:
    for gpus, streams in ((1, 1), (2, 1), (2, 2)):
        p = problem_of(independent(8), machine(gpus, streams=streams), [1] * 8)
        assert bound("work", p) == pytest.approx(8 / (gpus * streams))
        assert makespan_bound(p) == pytest.approx(8 / (gpus * streams))
    unlimited = problem_of(independent(8), machine(2, streams="unlimited"), [1] * 8)
    assert makespan_bound(unlimited) == pytest.approx(1)


def test_work_on_unequal_devices() -> None:
    """100 operations of 1 s on the GPU, 9 s on the CPU: 90 and 10 of them take 90 s. Least times over two streams say 50."""
    p = problem_of(independent(100), machine(1, 1), [[1, 9]] * 100)
    assert bound("work", p) == pytest.approx(90, rel=1e-3)
    assert bound("work", p) <= 90 * (1 + ROUNDING)
    # where half may run on the CPU only, that half is the bottleneck
    tied = problem_of(independent(100, ("", "cpu")), machine(1, 1), [[1, 9]] * 100)
    assert bound("work", tied) == pytest.approx(450, rel=1e-3)


def test_prices_of_two_kinds_with_memory_for_everything_are_the_best() -> None:
    """As high as the linear program over shares of groups, by another solver."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        n, streams = int(rng.integers(1, 30)), rng.integers(1, 5, 2).astype(float)
        seconds = rng.exponential(1.0, (n, 2)) * (rng.random((n, 2)) > 0.2)
        only = rng.choice(3, n, p=[0.15, 0.15, 0.7])
        seconds[only == 0, 1] = seconds[only == 1, 0] = np.inf
        found = best_prices(seconds, streams, rng.random(n), np.full(2, 1e9))
        allowed = np.isfinite(seconds)
        work = np.zeros((2, 2 * n + 1))
        for k in range(2):
            work[k, k:-1:2], work[k, -1] = np.where(allowed, seconds, 0.0)[:, k], -streams[k]
        whole = np.hstack([np.repeat(np.eye(n), 2, axis=1), np.zeros((n, 1))])
        limits = [*((0.0, float(x)) for x in allowed.ravel()), (0.0, None)]
        answer = linprog([0.0] * 2 * n + [1.0], work, [0.0, 0.0], whole, np.ones(n), limits)
        assert found.bound_s == pytest.approx(answer.fun, rel=1e-9, abs=1e-12)
        assert found.time @ streams == pytest.approx(1)
        assert (found.time >= 0).all()
        assert not found.memory.any()
    # two halves that are tied to their kinds: any prices are as good, and other bounds gain by equal ones
    tied = np.array([[np.inf, 4.0], [4.0, np.inf]])
    assert best_prices(tied, np.ones(2), np.ones(2), np.full(2, 1e9)).time.tolist() == [0.5, 0.5]


def test_group() -> None:
    """Three independent operations in one group run one after another."""
    p = problem_of(independent(4), machine(4), [1] * 4, [0, 0, 0, 1])
    assert group_bound(p) == 3
    assert makespan_bound(p) == pytest.approx(3)
    two = problem_of(independent(4), machine(4, streams=2), [1] * 4, [0, 0, 0, 1])
    assert group_bound(two) == 1.5
    # of five groups of 3 s on four devices, two share one
    assert group_bound(problem_of(independent(6), machine(4), [3, 3, 3, 3, 3, 1])) == 6


def test_window() -> None:
    """2 s before and 3 s after eight operations of 1 s on two devices: 2 + 4 + 3, more than path (6) or work (6.5)."""
    b = GraphBuilder("window")
    (x,) = b.add("first", outputs=[1])
    middle = [b.add(f"op{i}", inputs=[x], outputs=[1])[0] for i in range(8)]
    b.add("last", inputs=middle)
    p = problem_of(b.build(), machine(2), [2, *[1] * 8, 3])
    assert critical_path_bound(p) == 6
    assert bound("work", p) == pytest.approx(6.5)
    assert bound("window", p) == pytest.approx(9)
    assert makespan_bound(p) == pytest.approx(9)
    assert ListScheduler(p).run("etf").makespan_s == pytest.approx(9)


def fork_join(branches: int, length: int, bytes_: int) -> Graph:
    """Kernel `fork`, chains of kernels that read from it, kernel `join`; all tensors of `bytes_`."""
    b = GraphBuilder("fork-join")
    [x] = b.add("fork", outputs=[bytes_])
    ends = [x] * branches
    for i, j in itertools.product(range(branches), range(length)):
        [ends[i]] = b.add(f"op{i}.{j}", inputs=[ends[i]], outputs=[bytes_])
    b.add("join", inputs=ends)
    return b.build()


@pytest.mark.parametrize("length", [1, 3, 6])
def test_branches_are_sent_or_made_one_after_another(length: int) -> None:
    """Two branches of 6 s, a fork and a join of 1 s, transfers of c: 14 s on one device, at best 8 + c on two."""
    seconds = [1, *[6 / length] * (2 * length), 1]
    for c, least in ((1, 9), (4, 12), (100, 14)):
        p = problem_of(fork_join(2, length, c), machine(2, rate=1), seconds)
        assert critical_path_bound(p) == 8
        assert bound("communication", p) == pytest.approx(least)
        assert ListScheduler(p).run("etf").makespan_s >= least
    # the branch that leaves has to come back: two transfers; only the suppositions of `forced` follow it both ways
    p = problem_of(fork_join(2, length, 4), machine(2, rate=1), seconds)
    assert all_bounds(p)["forced"] <= 14 * (1 + ROUNDING)
    two_streams = problem_of(fork_join(2, length, 100), machine(2, streams=2, rate=1), seconds)
    assert bound("communication", two_streams) == pytest.approx(8)


def test_channel() -> None:
    """Four tensors of 5 s must leave the CPU, which sends one at a time; a kernel of 2 s before, one of 1 s after."""
    b = GraphBuilder("feed")
    for i in range(4):
        [x] = b.add(f"load{i}", outputs=[5], allowed="cpu")
        b.add(f"use{i}", inputs=[x], allowed="gpu")
    for concurrent, least in ((1, 2 + 4 * 5 + 1), (2, 2 + 2 * 5 + 1), ("unlimited", 0)):
        cluster = machine(1, 1, streams="unlimited", rate=1, concurrent=concurrent)
        p = problem_of(b.build(), cluster, [2, 1] * 4)
        assert bound("channel", p) == pytest.approx(least)
        assert bound("communication", p) == 8
    two = problem_of(b.build(), machine(2, 1, streams="unlimited", rate=1, concurrent=1), [2, 1] * 4)
    assert bound("channel", two) == 0  # each GPU has its own link to the CPU


def test_memory_forces_work_to_the_cpu() -> None:
    """Ten weights of 10 bytes, 60 bytes on the GPU: four of the ten kernels run on the CPU, 9 s each."""
    b = GraphBuilder("weights")
    for i in range(10):
        b.add(f"op{i}", persistent_bytes=10)
    little = problem_of(b.build(), machine(1, 1, memory=60), [[1, 9]] * 10)
    assert bound("work", little) == pytest.approx(36)
    plenty = problem_of(b.build(), machine(1, 1, memory=100), [[1, 9]] * 10)
    assert bound("work", plenty) == pytest.approx(9)
    # one kernel that writes more than the GPU holds
    b.add("large", outputs=[70])
    assert makespan_bound(problem_of(b.build(), machine(1, 1, memory=60), [[1, 9]] * 10 + [[1, 50]])) >= 50


def test_memory_forces_communication() -> None:
    """Two kernels that do not fit on one device: what one reads from the other is sent."""
    b = GraphBuilder("two halves")
    [x] = b.add("first", outputs=[4], persistent_bytes=30)
    b.add("last", inputs=[x], persistent_bytes=30)
    seconds = [1, 1]
    assert makespan_bound(problem_of(b.build(), machine(2, rate=1, memory=64), seconds)) == pytest.approx(2)
    apart = problem_of(b.build(), machine(2, rate=1, memory=63), seconds)
    assert makespan_bound(apart) == pytest.approx(
        2
    )  # 60 bytes and a tensor of 4 would not fit, but their sum is not known
    apart = problem_of(b.build(), machine(2, rate=1, memory=59), seconds)
    assert 5.99 <= makespan_bound(apart) <= 6


def test_where_nothing_fits_bounds_are_finite() -> None:
    b = GraphBuilder("too large")
    [x] = b.add("first", outputs=[100], persistent_bytes=10)
    b.add("last", inputs=[x], persistent_bytes=60)
    b.add("other", persistent_bytes=60)
    p = problem_of(b.build(), machine(2, 1, rate=1, memory=70), [1, 1, 1])
    assert all(np.isfinite(bound) for bound in all_bounds(p).values())
    cramped = problem_of(independent(3, ("gpu",)), machine(2, memory=0 + 1), [1, 1, 1])
    assert np.isfinite(makespan_bound(cramped))


def test_what_must_be_together_runs_one_after_another() -> None:
    """Nine kernels of 1 s that cannot communicate within the 9 s that one device takes."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("tied")
    tensors = [b.add("op0", outputs=[50])[0]]
    for i in range(1, 9):
        tensors += b.add(f"op{i}", inputs=[tensors[int(rng.integers(len(tensors)))]], outputs=[50])
    p = problem_of(b.build(), machine(3, rate=1), [1] * 9)
    assert max(all_bounds(p)[name] for name in ("critical_path", "work")) < 8
    assert 8.99 <= makespan_bound(p) <= 9


def test_by_name() -> None:
    p = problem_of(chain(3), machine(2), [0, 1, 2, 4])
    found = all_bounds(p)
    assert makespan_bound(p) == found["forced"] * (1 - ROUNDING)
    assert found.pop("forced") == makespan.forced_bound(Relaxation.of(p), max(found.values()))
    assert found.pop("critical_path") == critical_path_bound(p)
    assert found.pop("group") == group_bound(p)
    assert found.pop("launch") == 0.0
    assert found == {name: bound(name, p) for name in found}
    assert set(found) == {"work", "communication", "detour", "tree", "window", "channel", "chain"}


def hosted(devices: int, **fields: Any) -> Cluster:
    """A machine whose hosts take 3 s per launch."""
    data = {**machine(devices).model_dump(), "hosts": [{"launch_s": 3.0}], **fields}
    return Cluster.parse(data)


def test_launches_by_hand() -> None:
    one = problem_of(chain(3), hosted(2), [0, 1, 2, 4])  # seconds of four operations in a row; the first is a source
    kernels = int(one.graph.kernel.sum())
    found = all_bounds(one)
    assert found["critical_path"] == 7
    assert found["launch"] == max(3 * (i + 1) + sum([1, 2, 4][i:]) for i in range(3)) == 3 * kernels + 4
    assert found["communication"] == found["launch"]  # heads begin at the launches
    each = problem_of(chain(3), hosted(2, launching="per_device"), [0, 1, 2, 4])
    assert launch_bound(each) == 3 + 7
    many = problem_of(chain(9), hosted(2, launching="per_device"), [0, *[0] * 9])
    assert launch_bound(many) == 9 * 3 / 2
    assert launch_bound(problem_of(chain(3), hosted(2, launching="graph"), [0, 1, 2, 4])) == 0


def test_the_first_argument_that_proves_as_much_binds() -> None:
    assert binding_argument(all_bounds(problem_of(chain(3), machine(2), [0, 1, 2, 4]))) == "critical_path"
    assert binding_argument(all_bounds(problem_of(independent(8), machine(2), [1] * 8))) == "group"
    assert binding_argument(all_bounds(problem_of(independent(8), machine(2), [4, *[1] * 7]))) == "work"
    apart = problem_of(fork_join(2, 1, 2), machine(3, rate=1), [0, 3, 5, 0])
    assert binding_argument(all_bounds(apart)) == "detour"
    assert binding_argument({"work": 1.0, "window": 1.0, "forced": 1.00005}) == "work"
    assert binding_argument({"work": 1.0, "window": 1.0, "forced": 1.001}) == "forced"


def test_no_kernels() -> None:
    b = GraphBuilder("sources")
    b.source("w", 1)
    assert makespan_bound(problem_of(b.build(), machine(2), [0])) == 0
    empty = Problem.of(GraphBuilder("empty").build(), machine(2))
    assert makespan_bound(empty) == 0
    for rule in RULES:
        assert ListScheduler(empty).run(rule).placement().device.tolist() == []


def test_long_chains_have_more_values_than_thresholds() -> None:
    n = 3 * THRESHOLDS
    p = problem_of(chain(n), machine(2), [0, *[1] * n])
    assert bound("window", p) <= n * (1 + 1e-9)
    assert makespan_bound(p) == pytest.approx(n)


@pytest.mark.slow
def test_fifty_thousand_operations() -> None:
    rng = np.random.default_rng(0)
    b = GraphBuilder("large")
    tensors: list[int] = []
    for i in range(50_000):
        reads = {tensors[-1 - int(k)] for k in rng.integers(0, min(len(tensors), 40), 3)} if tensors else ()
        tensors += b.add(f"op{i}", inputs=reads, outputs=[1])
    p = problem_of(b.build(), machine(4, 1), rng.exponential(1.0, (50_000, 2)) * [1, 9])
    proven = makespan_bound(p)
    assert proven >= max(critical_path_bound(p), bound("work", p)) * (1 - 1e-6) > 0
    assert proven <= p.group_s[:, 0].sum()  # everything on one device, one after another
