"""cpop, peft and Baechi's placers: what each promises beyond the contract."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray
from placekit_heuristics.baechi import MEtf, MSct, MTopo, edges, favourite_children
from placekit_heuristics.list_scheduling import Cpop, Etf, Peft
from placekit_heuristics.simple import accelerators
from placekit_scheduling import ListScheduler, b_level, group_priority
from placekit_testing.strategies import Case, problems

from placekit_core import Cluster, CostTable, Graph, GraphBuilder, PlacekitError, Placement, Problem, Task

POLICIES: list[Any] = [Cpop, Peft, MTopo, MEtf, MSct]


def machine(gpus: list[int], cpus: int = 0) -> Cluster:
    """GPUs with these bytes of memory, CPUs with much, a channel per ordered pair, 1 byte/s."""
    rates = {"flops_per_s": {"float32": 1.0}, "memory_bytes_per_s": 1.0}
    return Cluster.parse({
        "kinds": {
            **{f"g{i}": {**rates, "memory_bytes": m} for i, m in enumerate(gpus)},
            "c": {**rates, "type": "cpu", "memory_bytes": 10**9},
        },
        "devices": [{"kind": f"g{i}"} for i in range(len(gpus))] + [{"kind": "c", "count": cpus}] * (cpus > 0),
        "links": [{"mesh": "*", "bytes_per_s": 1.0}] if len(gpus) + cpus > 1 else [],
    })  # fmt: skip


def problem_of(graph: Graph, cluster: Cluster, seconds: Any) -> Problem:
    kinds = cluster.kind_names
    table = np.repeat(np.broadcast_to(np.asarray(seconds, float), graph.n)[:, None], len(kinds), axis=1)
    return Problem.of(graph, cluster, None, CostTable(kinds, table, np.zeros(table.shape, bool)))


def place(policy: Any, problem: Problem) -> Placement:
    placement: Placement = policy.place(Task(problem, None), np.random.default_rng(0))  # type: ignore[arg-type]
    return placement


def devices(policy: Any, problem: Problem) -> list[int]:
    result: list[int] = place(policy, problem).device.tolist()
    return result


def chain(n: int, out: int, cpu_only: tuple[int, ...] = (), persistent: int = 0) -> Graph:
    b = GraphBuilder("chain")
    last: list[int] = []
    for i in range(n):
        allowed = "cpu" if i in cpu_only else ""
        last = b.add(f"op{i}", inputs=last, outputs=[out], allowed=allowed, persistent_bytes=persistent)
    return b.build()


@given(problems(max_n=20))
@settings(max_examples=60, deadline=None)
def test_any_problem(case: Case) -> None:
    """Every group on an allowed device, b-levels as priorities, and the CPU only where there is no other."""
    problem = case.problem
    for policy in POLICIES:
        placement = place(policy(), problem)
        problem.check(placement.batch())
        assert placement.priority is not None
        assert placement.priority.tolist() == group_priority(problem, b_level(problem)).tolist()
        if policy in (MTopo, MEtf, MSct):
            read = ListScheduler(problem).run("etf").group_device >= 0
            assert accelerators(problem)[np.arange(problem.g), placement.device][read].all()


def test_m_topo_fills_one_device_after_another() -> None:
    """Baechi, section 3.1: a device takes total / devices + largest. 8 * 10 / 2 + 10 = 50: five operations, then three."""
    assert devices(MTopo(), problem_of(chain(8, 10), machine([100, 100]), 1)) == [0, 0, 0, 0, 0, 1, 1, 1]
    assert devices(MTopo(), problem_of(chain(8, 10), machine([100]), 1)) == [0] * 8
    assert devices(MTopo(), problem_of(chain(8, 10), machine([300, 100]), 1)) == [0, 0, 0, 0, 0, 0, 0, 1]
    assert devices(MTopo(), problem_of(chain(0, 10), machine([100, 100]), 1)) == []


def test_m_topo_leaves_a_device_where_persistent_bytes_do_not_fit() -> None:
    """40 in all, caps 40 * 12 / 60 + 10 = 18 and 42: two groups are 20, one is 10."""
    assert devices(MTopo(), problem_of(chain(4, 0, persistent=10), machine([12, 48]), 1)) == [0, 1, 1, 1]
    three = problem_of(chain(3, 0, persistent=10), machine([19, 19]), 1)  # nowhere is room for the third: most is left
    assert sorted(devices(MTopo(), three)[:2]) == [0, 1]


def test_m_etf_breaks_ties_in_topological_order() -> None:
    """Both can start at once; `second` has the longer path behind it, so it is first in `etf`."""
    b = GraphBuilder("ties")
    b.add("first")
    (x,) = b.add("second", outputs=[1])
    b.add("third", inputs=[x])
    problem = problem_of(b.build(), machine([100, 100]), 1)
    assert devices(MEtf(), problem)[:2] == [0, 1]
    assert devices(Etf(), problem)[:2] == [1, 0]


def fork_and_join() -> Graph:
    """a -> long -> end, a -> short -> end."""
    b = GraphBuilder("fork")
    (x,) = b.add("a", outputs=[4])
    (y,) = b.add("long", inputs=[x], outputs=[4])
    (z,) = b.add("short", inputs=[x], outputs=[4])
    b.add("end", inputs=[y, z])
    return b.build()


def test_favourites_are_on_the_longest_path() -> None:
    problem = problem_of(fork_and_join(), machine([100, 100]), [1, 20, 1, 1])
    assert favourite_children(problem).tolist() == [1, 3, -1, -1]
    b = GraphBuilder("fork")
    (x,) = b.add("a", outputs=[4])
    for i in range(2):
        b.add(f"equal{i}", inputs=[x])
    # each is the favourite by half, which is none
    assert favourite_children(problem_of(b.build(), machine([100, 100]), 1)).tolist() == [-1, -1, -1]


def paper(problem: Problem) -> tuple[float, NDArray[np.float64]]:
    """The program as section 3.3 writes it, densely: makespan, and x per edge."""
    from scipy.optimize import linprog

    n, (source, target, seconds) = problem.graph.n, edges(problem)
    e, own = len(source), problem.op_s.mean(axis=1)
    rows, limits = [], []

    def at_most(limit: float, **terms: dict[int, float]) -> None:
        row = np.zeros(e + n + 1)
        for name, entries in terms.items():
            for i, value in entries.items():
                row[{"x": 0, "s": e, "w": e + n}[name] + i] += value
        rows.append(row)
        limits.append(limit)

    for k in range(e):
        at_most(-own[source[k]], s={int(source[k]): 1, int(target[k]): -1}, x={k: seconds[k]})
    for v in range(n):
        at_most(-own[v], s={v: 1}, w={0: -1})
        for end in (source, target):
            mine = np.flatnonzero(end == v).tolist()
            if mine:
                at_most(1 - len(mine), x=dict.fromkeys(mine, -1))
    result = linprog(np.arange(e + n + 1) == e + n, np.stack(rows), limits, bounds=[(0, 1)] * e + [(0, None)] * (n + 1))
    return float(result.fun), result.x[:e]


def test_the_program_is_that_of_the_paper() -> None:
    """The favourites, taken as certain, are no worse than the optimum of the paper's program where it is integral."""
    integral = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        b = GraphBuilder("tree")  # every operation has one reader: in-trees have integral optima
        open_: list[int] = []
        for i in range(12):
            reads = [open_.pop(int(rng.integers(len(open_)))) for _ in range(min(int(rng.integers(0, 3)), len(open_)))]
            open_ += b.add(f"op{i}", inputs=reads, outputs=[int(rng.integers(1, 9))])
        problem = problem_of(b.build(), machine([100, 100]), rng.integers(1, 9, 12))
        optimum, x = paper(problem)
        if ((x > 1e-6) & (x < 1 - 1e-6)).any():
            continue
        integral += 1
        favourite, (source, target, seconds) = favourite_children(problem), edges(problem)
        end = np.zeros(12)
        for v in range(12):
            mine = target == v
            sent = np.where(favourite[source[mine]] == v, 0.0, seconds[mine])
            end[v] = problem.op_s[v, 0] + (end[source[mine]] + sent).max(initial=0.0)
        assert end.max() == pytest.approx(optimum)
    assert integral >= 5


def test_a_program_that_takes_too_long_is_an_error() -> None:
    rng = np.random.default_rng(0)
    b = GraphBuilder("wide")
    before: list[int] = []
    now: list[int] = []
    for i in range(2000):
        reads = [int(t) for t in rng.choice(before, 2)] if before else []
        now += b.add(f"op{i}", inputs=reads, outputs=[int(rng.integers(1, 9))])
        if len(now) == 20:
            before, now = now, []
    problem = problem_of(b.build(), machine([10**9, 10**9]), rng.random(2000))
    with pytest.raises(
        PlacekitError, match=r"m_sct: no optimum of the linear program of \d+ edges between groups in 0.01 s"
    ) as error:
        favourite_children(problem, lp_seconds=0.01)
    assert error.value.hint.startswith("use policy=m_etf")
