"""Policy `exact`: brute force never goes below its bound, and it reaches what the simulator can reach."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import sys
from typing import Any

import numpy as np
import pytest
from placekit_search import exact as exact_module
from placekit_search.exact import Exact
from placekit_search.exact_machine import alike, in_ticks, op_ticks
from placekit_testing import PolicyContract, fakes
from placekit_testing.contract import Make
from placekit_testing.speed import mostly_slow

from placekit_core import (
    BudgetExhausted,
    Cluster,
    Graph,
    GraphBuilder,
    Grouping,
    Ledger,
    Measurements,
    PlacekitError,
    Placements,
    Problem,
    Schedule,
    Session,
    Task,
    installed,
)
from placekit_core.run.evaluator import BudgetedEvaluator

pytest.importorskip("ortools")
pytest.importorskip("placekit_sim")

KIND = {
    "flops_per_s": {"float32": 1e12},
    "memory_bytes": 2**30,
    "memory_bytes_per_s": 1e15,
    "efficiency": {"other": {"compute": 1.0, "memory": 1.0}},
}
SWITCH = [{"a": "*", "b": "hub", "bytes_per_s": 1e9, "latency_s": 1e-4}]
MACHINES: dict[str, dict[str, Any]] = {
    "switch": {"devices": [{"kind": "gpu", "count": 2}], "links": SWITCH},
    "three": {"devices": [{"kind": "gpu", "count": 3}], "links": SWITCH},
    "unequal": {"devices": [{"kind": "gpu"}, {"kind": "slow"}], "links": SWITCH},
    "half duplex": {
        "devices": [{"kind": "gpu", "count": 2}],
        "links": [{"mesh": "gpu:*", "bytes_per_s": 1e9, "duplex": "half"}],
    },
    "no contention": {
        "devices": [{"kind": "gpu", "count": 2}],
        "links": [{"mesh": "gpu:*", "bytes_per_s": 1e9, "concurrent": "unlimited"}],
    },
    "two lanes": {"devices": [{"kind": "wide", "count": 2}], "links": [{**SWITCH[0], "concurrent": 2}]},
    "multicast": {
        "devices": [{"kind": "gpu", "count": 3}],
        "links": [{**SWITCH[0], "reverse": {"bytes_per_s": 1e30, "concurrent": "unlimited"}}],
        "multicast": True,
    },
}  # fmt: skip


def machine(**parts: Any) -> Cluster:
    kinds = {
        "gpu": KIND,
        "slow": {**KIND, "flops_per_s": {"float32": 4e11}},
        "wide": {**KIND, "streams": 2},
        "cpu": {**KIND, "type": "cpu", "flops_per_s": {"float32": 2e11}},
    }
    return Cluster.parse({"kinds": kinds, **parts})


def random_graph(seed: int, kernels: int = 5) -> Graph:
    rng = np.random.default_rng(seed)
    b = GraphBuilder("random")
    tensors = [b.source("x", 2_000_000, op_type="input")]
    for i in range(kernels):
        inputs = rng.choice(tensors, min(len(tensors), int(rng.integers(1, 3))), replace=False).tolist()
        sizes = [int(rng.integers(1, 6)) * 10**6 for _ in range(int(rng.integers(1, 3)))]
        tensors += b.add(f"op{i}", inputs=inputs, outputs=sizes, flops=float(rng.integers(1, 9)) * 1e9)
    return b.build()


def open_on(problem: Problem, name: str = "simulator", **options: Any) -> Session:
    entry = installed().get("backend", name)
    return entry.build(entry.component.config(**options)).open(problem)


def task_of(problem: Problem, budget: int | None = 2000, seconds: float | None = None, **options: Any) -> Task:
    session = open_on(problem, **options)
    return Task(problem, BudgetedEvaluator(problem, session, Ledger(budget, seconds), objective="makespan"))


def solve(problem: Problem, **options: Any) -> BudgetedEvaluator:
    task = task_of(problem)
    Exact(**options).place(task, np.random.default_rng(0))
    return task.evaluate


def everything(problem: Problem) -> float:
    """The best value of all placements with all orders of the groups as priorities."""
    orders = np.asarray(list(itertools.permutations(range(problem.g))), np.float32)
    session, best = open_on(problem), np.inf
    for row in itertools.product(*(np.flatnonzero(allowed).tolist() for allowed in problem.allowed)):
        measured = session.evaluate(Placements.of(np.tile(row, (len(orders), 1)), orders))
        best = min(best, float(np.where(measured.fits, measured.value_s, np.inf).min()))
    return best


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("seed", mostly_slow(range(2), [1]))
def test_bound_and_value_enclose_the_optimum_of_everything(name: str, seed: int) -> None:
    problem = Problem.of(random_graph(seed), machine(**MACHINES[name]))
    evaluate = solve(problem)
    optimum = everything(problem)
    assert evaluate.best is not None
    assert evaluate.proven_s is not None
    assert evaluate.proven_s <= optimum * (1 + 1e-12)
    assert evaluate.best.value_s >= optimum * (1 - 1e-12)
    assert evaluate.best.value_s == pytest.approx(optimum, rel=1e-6), (
        "a work-conserving order of the optimum exists here"
    )
    assert evaluate.proven_s == pytest.approx(optimum, rel=1e-5), "and nothing that waits is better"


def test_waiting_is_better_than_any_work_conserving_order() -> None:
    """The CPU has to start `long` at once, and is busy when `short` comes, for which `last` waits: 1 + 10 + 1 + 10 ms.

    Who waits for `short` needs 1 + 1 + 10 ms.
    """
    b = GraphBuilder("wait")
    [first] = b.add("first", outputs=[8], flops=1e9, allowed="gpu")
    b.add("long", flops=2e9, allowed="cpu")
    [short] = b.add("short", inputs=[first], outputs=[8], flops=2e8, allowed="cpu")
    b.add("last", inputs=[short], flops=1e10, allowed="gpu")
    links = [{"a": "*", "b": "hub", "bytes_per_s": 1e12}]
    problem = Problem.of(b.build(), machine(devices=[{"kind": "gpu"}, {"kind": "cpu"}], links=links))
    evaluate = solve(problem)
    assert evaluate.best is not None
    assert evaluate.best.value_s == pytest.approx(everything(problem), rel=1e-9) == pytest.approx(21e-3, rel=1e-5)
    assert evaluate.proven_s == pytest.approx(12e-3, rel=1e-5)


def test_groups_and_allowed_devices() -> None:
    b = GraphBuilder("mixed")
    x = b.source("x", 1000, op_type="input")
    for i in range(6):
        b.add(f"op{i}", inputs=[x], outputs=[1000], flops=1e9, allowed="cpu" if i % 3 == 0 else "gpu")
    graph = b.build()
    cluster = machine(devices=[{"kind": "gpu", "count": 2}, {"kind": "cpu"}], links=SWITCH)
    problem = Problem.of(graph, cluster, Grouping.of(np.array([0, 1, 2, 2, 1, 3, 3])))
    evaluate = solve(problem)
    assert evaluate.best is not None
    assert evaluate.best.value_s == pytest.approx(everything(problem), rel=1e-6)


def test_persistent_memory_limits_the_model() -> None:
    """Each device holds two of the four parameters, which stay with their readers: one transfer is forced."""
    b = GraphBuilder("tight")
    before = b.source("x", 8, op_type="input")
    for i in range(4):
        w = b.source(f"w{i}", 400)
        [before] = b.add(f"op{i}", inputs=[before, w], outputs=[8], flops=1e9)
    kinds = {"gpu": {**KIND, "memory_bytes": 1000}}
    cluster = Cluster.parse({"kinds": kinds, "devices": [{"kind": "gpu", "count": 2}], "links": SWITCH})
    problem = Problem.of(b.build(), cluster, Grouping.of(np.array([0, 1, 1, 2, 2, 3, 3, 4, 4])))
    evaluate = solve(problem)
    assert evaluate.best is not None
    assert evaluate.proven_s is not None
    assert evaluate.best.value_s == pytest.approx(4e-3 + 2e-4 + 8e-9, rel=1e-5)
    assert evaluate.proven_s == pytest.approx(evaluate.best.value_s, rel=1e-5)


def test_proves_a_planted_optimum() -> None:
    entry = installed().get("importer", "planted")
    [program] = entry.build(entry.component.config(layers=2, devices=3, strands=1)).load()
    assert program.cluster is not None
    evaluate = solve(Problem.of(program.graph, program.cluster, None, program.costs))
    assert evaluate.best is not None
    assert evaluate.best.value_s == program.graph.attributes["optimal_makespan_s"]
    assert evaluate.proven_s == pytest.approx(evaluate.best.value_s, rel=1e-6)


def test_too_large_is_refused_before_any_work() -> None:
    problem = fakes.independent(7)
    task = task_of(problem)
    with pytest.raises(PlacekitError, match="at most 6 kernels, 'independent7' has 7") as caught:
        Exact(max_operations=6).place(task, np.random.default_rng(0))
    assert caught.value.hint.startswith("use policy=portfolio; or raise policy.max_operations")
    assert task.evaluate.evaluations == 0


def test_without_ortools_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools", None)
    with pytest.raises(PlacekitError, match="needs OR-tools") as caught:
        Exact()
    assert 'pip install "placekit-search[exact]"' in str(caught.value.hint)


def test_no_bound_where_values_are_noisy() -> None:
    task = task_of(fakes.chain(), noise=0.1)
    Exact(deterministic_limit=0.1).place(task, np.random.default_rng(0))
    assert task.evaluate.proven_s is None


class Faster(Session):
    """A simulator of another machine: half of the seconds, and a schedule to match."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.of = problem, open_on(problem)

    def evaluate(self, placements: Placements) -> Measurements:
        m = self.of.evaluate(placements)
        return Measurements(m.value_s / 2, m.peak_bytes, m.fits, m.error)

    def schedule(self, placement: Any) -> Any:
        return self.of.schedule(placement)

    def lower_bound(self) -> float:
        return 0.0


def unsent(s: Schedule) -> Schedule:
    keys = [f"transfer_{key}" for key in ("tensor", "src", "dst", "start_s", "end_s")]
    return dataclasses.replace(s, **{key: getattr(s, key)[:0] for key in keys})


class Tight(Faster):
    """A simulator of which only placements on one device fit."""

    def evaluate(self, placements: Placements) -> Measurements:
        m = self.of.evaluate(placements)
        fits = (placements.device == placements.device[:, :1]).all(axis=1)
        return Measurements(m.value_s, m.peak_bytes, fits, tuple(None if x else "over" for x in fits))


def test_an_optimum_that_does_not_fit_is_told() -> None:
    """The bound holds, and what fits is what the list schedules found."""
    problem = Problem.of(random_graph(3), machine(**MACHINES["no contention"]))
    task = Task(problem, BudgetedEvaluator(problem, Tight(problem), Ledger(2000), objective="makespan"))
    found = Exact().place(task, np.random.default_rng(0))
    assert len(set(found.device.tolist())) == 1
    assert task.evaluate.notes == [exact_module.UNFIT]


def test_an_optimum_that_fits_is_not_told() -> None:
    """Also if a solution that is better by the rounding of ticks does not."""
    problem = Problem.of(random_graph(3), machine(**MACHINES["no contention"]))
    saved: list[Any] = []
    Exact().place(task_of(problem), np.random.default_rng(0), None, lambda state: saved.append(dict(state)))
    assert saved[-1]["done"]
    task = task_of(problem)
    Exact().place(task, np.random.default_rng(0), {**saved[-1], "done": False, "unfit": True})
    assert task.evaluate.notes == []


class Unsent(Faster):
    """A simulator without transfers: what an operation reads is there when it is made."""

    def __init__(self, problem: Problem) -> None:
        links = [{"a": "*", "b": "hub", "bytes_per_s": 1e30}]
        free = Problem.of(problem.graph, Cluster.parse({**problem.cluster.model_dump(), "links": links}))
        self.problem, self.of = problem, open_on(free)

    def evaluate(self, placements: Placements) -> Measurements:
        return self.of.evaluate(placements)

    def schedule(self, placement: Any) -> Any:
        return unsent(self.of.schedule(placement))


@pytest.mark.parametrize("session", [Faster, Unsent])
@pytest.mark.parametrize("spread", [True, False])
def test_no_bound_where_the_machine_is_another(
    session: type[Session], spread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen at once, or, `spread` False, only when the first bound is proven."""
    problem = Problem.of(random_graph(0), machine(**MACHINES["switch"]))
    if not spread:
        one = problem.placement(np.zeros(problem.g, np.int16))
        monkeypatch.setattr(exact_module, "_spread", lambda _: one)
    task = Task(problem, BudgetedEvaluator(problem, session(problem), Ledger(100), objective="makespan"))  # type: ignore[call-arg]
    Exact(deterministic_limit=0.1).place(task, np.random.default_rng(0))
    assert task.evaluate.best is not None
    assert task.evaluate.proven_s is None
    assert task.evaluate.notes == [exact_module.OTHER]


@pytest.mark.parametrize("before_s", [None, 1e-9])
def test_what_was_proven_of_another_machine_is_taken_back(
    before_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its fourth schedule on the backend sends nothing: that is when the second slice starts.

    What was proven before the policy began stays, also where the second slice is that of a resumed run.
    """

    class Late(Faster):
        calls = 0

        def evaluate(self, placements: Placements) -> Measurements:
            return self.of.evaluate(placements)

        def schedule(self, placement: Any) -> Any:
            self.calls += 1
            s = self.of.schedule(placement)
            return s if self.calls < 4 else unsent(s)

    monkeypatch.setattr(exact_module, "FIRST_SLICE", 0.01)
    problem = Problem.of(random_graph(8, 30), machine(**MACHINES["three"]))
    task, again = (
        Task(problem, BudgetedEvaluator(problem, Late(problem), Ledger(2000), objective="makespan")) for _ in range(2)
    )
    if before_s is not None:
        task.evaluate.prove(before_s)
    saved: list[Any] = []
    exact, rng = Exact(deterministic_limit=0.1), np.random.default_rng(0)
    exact.place(task, rng, None, lambda state: saved.append(copy.deepcopy((dict(state), task.evaluate.state()))))
    proven = [evaluator["proven_s"] for _, evaluator in saved]
    assert proven[0] == before_s
    assert proven[1] > (before_s or 0)
    assert proven[2:] == [before_s] * (len(proven) - 2) != []
    assert task.evaluate.notes == [exact_module.OTHER]
    policy, evaluator = saved[1]
    again.evaluate.restore(evaluator)
    again.evaluate.session.calls = 3  # type: ignore[attr-defined]
    exact.place(again, np.random.default_rng(99), policy)
    assert again.evaluate.proven_s == before_s


@pytest.mark.parametrize("key", ["op_start_s", "transfer_start_s"])
def test_what_starts_before_its_input_is_of_another_machine(key: str) -> None:
    problem = Problem.of(random_graph(5, 20), machine(**MACHINES["switch"]))
    schedule = open_on(problem).schedule(problem.placement(np.arange(problem.g) % 2))
    assert in_ticks(problem, schedule, 1e-9, schedule.value_s) is not None
    turned = dataclasses.replace(schedule, **{key: -getattr(schedule, key)})
    assert in_ticks(problem, turned, 1e-9, schedule.value_s) is None


def test_bulk_synchronous_values_are_not_below_the_bound() -> None:
    problem = Problem.of(random_graph(3), machine(**MACHINES["switch"]))
    task = task_of(problem, name="bulk_synchronous")
    Exact().place(task, np.random.default_rng(0))
    assert task.evaluate.best is not None
    assert task.evaluate.proven_s is not None
    assert 0 < task.evaluate.proven_s <= task.evaluate.best.value_s * (1 + 1e-12)


def test_alike_devices() -> None:
    def classes(**parts: Any) -> list[list[int]]:
        return alike(Problem.of(random_graph(0), machine(**parts)))

    assert classes(**MACHINES["three"]) == [[0, 1, 2]]
    assert classes(**MACHINES["unequal"]) == []
    pairs = [
        {"a": "gpu:[01]", "b": "left", "bytes_per_s": 1e9},
        {"a": "gpu:[23]", "b": "right", "bytes_per_s": 1e9},
        {"a": "left", "b": "right", "bytes_per_s": 1e9},
    ]
    assert classes(devices=[{"kind": "gpu", "count": 4}], links=pairs) == [[0, 1], [2, 3]]
    one = [
        {"a": "gpu:0", "b": "hub", "bytes_per_s": 1e9, "concurrent": 2},
        {"a": "gpu:[12]", "b": "hub", "bytes_per_s": 1e9},
    ]
    assert classes(devices=[{"kind": "gpu", "count": 3}], links=one) == [[1, 2]]


@pytest.mark.parametrize("name", MACHINES)
def test_schedules_in_ticks_are_no_later(name: str) -> None:
    problem = Problem.of(random_graph(5, 20), machine(**MACHINES[name]))
    session, rng = open_on(problem), np.random.default_rng(0)
    for _ in range(20):
        placement = problem.placement(rng.integers(0, problem.cluster.size, problem.g), rng.random(problem.g))
        schedule = session.schedule(placement)
        for tick_s in (schedule.value_s / 50, schedule.value_s / 1e7):
            timed = in_ticks(problem, schedule, tick_s, schedule.value_s)
            assert timed is not None
            assert timed.makespan <= np.floor(schedule.value_s / tick_s * (1 + 1e-12))
            assert timed.makespan >= op_ticks(problem, tick_s)[np.arange(problem.graph.n), timed.device].max()
        assert timed.makespan == pytest.approx(1e7, rel=1e-4)


def test_same_seed_same_bits() -> None:
    problem = Problem.of(random_graph(7, 12), machine(**MACHINES["three"]))
    first, second = (solve(problem, deterministic_limit=0.2) for _ in range(2))
    assert [r[2:] for r in first.history] == [r[2:] for r in second.history]
    assert first.proven_s == second.proven_s


@pytest.mark.slow
def test_resumes_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_module, "FIRST_SLICE", 0.01)
    problem = Problem.of(random_graph(8, 30), machine(**MACHINES["three"]))
    saved: list[Any] = []
    whole, rng = task_of(problem), np.random.default_rng(0)

    def checkpoint(state: Any) -> None:
        saved.append(copy.deepcopy((dict(state), whole.evaluate.state())))

    Exact(deterministic_limit=0.1).place(whole, rng, None, checkpoint)
    assert len(saved) > 3
    for policy, evaluator in (saved[0], saved[2]):
        again = task_of(problem)
        again.evaluate.restore(evaluator)
        Exact(deterministic_limit=0.1).place(again, np.random.default_rng(99), policy, lambda _: None)
        assert [(r[0], *r[2:]) for r in again.evaluate.history] == [(r[0], *r[2:]) for r in whole.evaluate.history]
        assert again.evaluate.proven_s == whole.evaluate.proven_s


def test_budget_ends_the_solver() -> None:
    problem = Problem.of(random_graph(9, 30), machine(**MACHINES["three"]))
    task = task_of(problem, budget=3)
    with pytest.raises(BudgetExhausted):
        Exact(starts=1).place(task, np.random.default_rng(0))
    assert task.evaluate.evaluations == 3
    solve(problem, deterministic_limit=0.01)  # on a fresh machine compiling alone takes longer than 10 s
    task = task_of(problem, budget=None, seconds=0.5)
    with contextlib.suppress(BudgetExhausted):  # raised only if the seconds end in an evaluation, not in the solver
        Exact().place(task, np.random.default_rng(0))
    assert task.evaluate.ledger.seconds < 10
    assert task.evaluate.best is not None


class TestExact(PolicyContract):
    resumable = True

    @pytest.fixture
    def make(self) -> Make:
        return lambda: Exact(deterministic_limit=0.05)
