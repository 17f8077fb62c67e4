"""Policy `exact`: brute force over all placements agrees with value and bound."""

from __future__ import annotations

import copy
import itertools
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from placekit_scheduling.loads import HasLoads
from placekit_search import exact
from placekit_search.exact import Exact
from placekit_search.exact_model import LoadModel
from placekit_testing import PolicyContract, fakes
from placekit_testing.contract import Make
from placekit_testing.speed import mostly_slow

from placekit_core import (
    Cluster,
    CostTable,
    GraphBuilder,
    Grouping,
    Ledger,
    NotApplicable,
    NothingFits,
    PlacekitError,
    Placements,
    Problem,
    Session,
    Task,
    installed,
    place,
)
from placekit_core.run.evaluator import BudgetedEvaluator

pytest.importorskip("ortools")
pytest.importorskip("placekit_pipeline")

SAMPLES = os.environ.get("PLACEKIT_SAMPLES")
BACKENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "max_load": ("max_load", {}),
    "throughput": ("pipeline", {"objective": "throughput", "microbatches": 3}),
    "interleaved": ("pipeline", {"objective": "throughput", "schedule": "interleaved", "microbatches": 4}),
    "step": ("pipeline", {"objective": "step", "microbatches": 4}),
    "step, inference": ("pipeline", {"objective": "step", "schedule": "inference", "microbatches": 3}),
}
EXACT = ("max_load", "throughput")


def random_problem(rng: Generator, trains: bool) -> Problem:
    """Up to 5 layers with branches, on up to 3 devices: alike or not, one a CPU, some with little memory, some links unlike."""
    length, size = int(rng.integers(2, 6)), int(rng.integers(2, 4))
    b = GraphBuilder("random")
    made, layer, gradient = list[int](), list[int](), dict[int, int]()
    weights = [b.source(f"w{i}", int(rng.integers(1, 50))) for i in range(length)]
    layer += range(length)
    reads = {
        i: sorted(rng.choice(i, min(i, int(rng.integers(1, 3))), replace=False).tolist()) if i else []
        for i in range(length)
    }
    for i in range(length):
        [out] = b.add(f"f{i}", inputs=[weights[i], *(made[j] for j in reads[i])], outputs=[int(rng.integers(1, 30))])
        made.append(out)
        layer.append(i)
    for i in reversed(range(length)) if trains else ():
        after = [gradient[j] for j in range(i + 1, length) if i in reads[j]]
        [gradient[i]] = b.add(
            f"b{i}", inputs=[made[i], weights[i], *after], outputs=[int(rng.integers(1, 30))], phase="backward"
        )
        b.add(f"u{i}", inputs=[weights[i], gradient[i]], phase="update")
        layer += [i, i]
    graph = b.build()
    kinds = ["gpu"] * size
    if rng.random() < 0.5:
        kinds[-1] = "cpu"
    elif rng.random() < 0.5:
        kinds[0] = "other"
    tight = rng.random() < 0.5
    room = float(graph.persistent_bytes.sum()) * rng.uniform(1.0, 2.0) / size if tight else 1e9
    parts = {
        name: {
            "flops_per_s": {"float32": 1.0},
            "memory_bytes": int(room * (1 + (name == "cpu"))) + 40,
            "memory_bytes_per_s": 1.0,
            **({"type": "cpu"} if name == "cpu" else {}),
        }
        for name in sorted(set(kinds))
    }
    names = [f"d{d}" for d in range(size)]
    links: list[dict[str, Any]] = [{"a": "d*", "b": "hub", "bytes_per_s": 20.0, "latency_s": 0.125}]
    if rng.random() < 0.5:
        links = [
            {"a": x, "b": y, "bytes_per_s": float(rng.integers(5, 50)), "latency_s": float(rng.integers(0, 3)) / 8}
            for x, y in itertools.combinations(names, 2)
        ]
    cluster = Cluster.parse(
        {
            "kinds": parts,
            "devices": [{"kind": kind, "name": name} for kind, name in zip(kinds, names, strict=True)],
            "links": links,
        }
    )
    op_s = np.where(graph.kernel[:, None], rng.integers(1, 9, (graph.n, len(cluster.kind_names))) / 4, 0.0)
    costs = CostTable(cluster.kind_names, op_s, np.zeros(op_s.shape, np.bool_))
    return Problem(graph, Grouping(np.asarray(layer, np.int32)), cluster, costs)


def open_on(problem: Problem, name: str) -> tuple[Session, str]:
    kind, options = BACKENDS[name]
    entry = installed().get("backend", kind)
    backend = entry.build(entry.component.config(**options))
    return backend.open(problem), backend.objective


def task_of(problem: Problem, name: str, budget: int | None = 2000) -> Task:
    session, objective = open_on(problem, name)
    return Task(problem, BudgetedEvaluator(problem, session, Ledger(budget, None), objective=objective))


def everything(problem: Problem, session: Session) -> tuple[Placements, np.ndarray[Any, Any]]:
    """All placements, and their values; infinite where they do not fit."""
    rows = itertools.product(*(np.flatnonzero(allowed).tolist() for allowed in problem.allowed))
    placements = Placements.of(np.asarray(list(rows), np.int16))
    measured = session.evaluate(placements)
    return placements, np.where(measured.fits, measured.value_s, np.inf)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("seeds", mostly_slow((2, 8), (2,)))
def test_value_and_bound_enclose_the_best_of_all_placements(name: str, seeds: int) -> None:
    for seed in range(seeds):
        check_value_and_bound(name, seed)


def check_value_and_bound(name: str, seed: int) -> None:
    rng = np.random.default_rng([sorted(BACKENDS).index(name), seed])
    problem = random_problem(rng, trains=name != "step, inference" and bool(seed % 2))
    task = task_of(problem, name)
    _, values = everything(problem, task.evaluate.session)
    optimum = float(values.min())
    Exact(deterministic_limit=2.0).place(task, rng)
    found = task.evaluate.best
    if np.isinf(optimum):
        assert found is None
        return
    assert found is not None
    assert task.evaluate.proven_s is not None
    assert task.evaluate.proven_s <= optimum * (1 + 1e-12)
    assert found.value_s >= optimum * (1 - 1e-12)
    if name in EXACT:
        assert found.value_s == pytest.approx(optimum, rel=1e-5)
    if name == "max_load":
        assert task.evaluate.proven_s == pytest.approx(optimum, rel=1e-4)


@pytest.mark.parametrize("name", BACKENDS)
def test_loads_are_never_more_than_values(name: str) -> None:
    """And every placement that fits, with its devices renamed, is a solution of the program."""
    for seed in range(3):
        check_loads(name, seed)


def check_loads(name: str, seed: int) -> None:
    from ortools.sat.python import cp_model

    rng = np.random.default_rng([7, sorted(BACKENDS).index(name), seed])
    problem = random_problem(rng, trains=bool(seed % 2))
    session, _ = open_on(problem, name)
    assert isinstance(session, HasLoads)
    loads = session.loads()
    assert loads is not None
    placements, values = everything(problem, session)
    rows = np.flatnonzero(np.isfinite(values))
    for row in rng.permutation(rows)[:30].tolist():
        device = placements.device[row]
        load_s = loads.largest_s(device)
        assert load_s <= values[row] * (1 + 1e-12)
        if name == "max_load":
            assert load_s == pytest.approx(values[row], rel=1e-12)
        tick_s = values[row] / 10_000
        none = np.zeros((0, problem.g), np.int16)
        model = LoadModel(problem, loads, tick_s, 0, int(loads.most_s / tick_s) + 1, 0.0, none)
        renamed = model.named(device)
        for on, d in zip(model.on, renamed.tolist(), strict=True):
            model.cp.add(on[d] == 1)
        solver = cp_model.CpSolver()
        assert solver.solve(model.cp) == cp_model.OPTIMAL, f"{device} as {renamed}"
        assert solver.objective_value <= 10_001
        assert solver.objective_value == pytest.approx(load_s / tick_s, abs=problem.g + len(loads.charges))


def test_what_it_does_not_model_is_refused() -> None:
    problem = fakes.chain()
    for name, options in (("pipeline", {"objective": "token"}), ("blocking_latency", {}), ("simulator", {})):
        entry = installed().get("backend", name)
        backend = entry.build(entry.component.config(**options))
        task = Task(problem, BudgetedEvaluator(problem, backend.open(problem), Ledger(10), objective=backend.objective))
        with pytest.raises(NotApplicable, match="models the objectives max_load, throughput and step"):
            Exact().place(task, np.random.default_rng(0))
        assert task.evaluate.evaluations == 0


def test_nothing_is_faster_than_no_time() -> None:
    problem = fakes.independent(3)
    free = CostTable(
        problem.costs.kinds, np.zeros_like(problem.costs.op_s), np.zeros(problem.costs.op_s.shape, np.bool_)
    )
    task = task_of(Problem(problem.graph, problem.grouping, problem.cluster, free), "max_load")
    Exact().place(task, np.random.default_rng(0))
    assert task.evaluate.best is not None
    assert task.evaluate.best.value_s == 0


def test_too_many_groups_are_refused_before_any_work() -> None:
    problem = fakes.independent(7)
    task = task_of(problem, "max_load")
    with pytest.raises(NotApplicable, match="at most 6 groups, 'independent7' has 7"):
        Exact(max_groups=6).place(task, np.random.default_rng(0))
    assert task.evaluate.evaluations == 0


def test_says_what_is_proven_of_a_step_and_that_nothing_fits() -> None:
    rng = np.random.default_rng(3)
    task = task_of(random_problem(rng, trains=True), "step")
    Exact(deterministic_limit=0.2).place(task, rng)
    assert exact.PARTLY in task.evaluate.notes
    b = GraphBuilder("large")
    for i in range(3):
        w = b.source(f"w{i}", 600 * 2**20)
        b.add(f"op{i}", inputs=[w], outputs=[8], flops=1e9)
    task = task_of(Problem.of(b.build(), _of_one_gibibyte()), "max_load")
    Exact(deterministic_limit=1.0).place(task, rng)
    assert task.evaluate.best is None
    assert task.evaluate.notes == [exact.NONE_FITS]


def _of_one_gibibyte() -> Cluster:
    kind = {"flops_per_s": {"float32": 1e12}, "memory_bytes": 2**30, "memory_bytes_per_s": 1e15}
    links = [{"a": "*", "b": "hub", "bytes_per_s": 1e9}]
    return Cluster.parse({"kinds": {"gpu": kind}, "devices": [{"kind": "gpu", "count": 2}], "links": links})


def test_says_that_activations_in_flight_do_not_fit(tmp_path: Path) -> None:
    """A device has room for one activation of a layer; the first stage keeps two."""
    b = GraphBuilder("deep")
    x, kept = b.source("x", 8), list[int]()
    for i in range(2):
        x, activation = b.add(f"f{i}", inputs=[x], outputs=[8, 600 * 2**20], flops=1e9, colocate=i)
        kept.append(activation)
    for i in (1, 0):
        [x] = b.add(f"b{i}", inputs=[x, kept[i]], outputs=[8], flops=2e9, phase="backward", colocate=i)
    backend = {"name": "pipeline", "objective": "throughput", "microbatches": 4}
    with pytest.raises(NothingFits, match=r"(?s)closest needs 176.*activations of one micro-batch"):
        place(b.build(), cluster=_of_one_gibibyte(), policy="exact", backend=backend, run_dir=tmp_path / "r")


def test_same_seed_same_bits_and_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "FIRST_SLICE", 0.001)
    problem = random_problem(np.random.default_rng(12), trains=True)
    saved: list[Any] = []
    whole, rng = task_of(problem, "step"), np.random.default_rng(0)

    def checkpoint(state: Any) -> None:
        saved.append(copy.deepcopy((dict(state), whole.evaluate.state())))

    Exact(deterministic_limit=0.1).place(whole, rng, None, checkpoint)
    assert len(saved) > 3
    for policy, evaluator in (saved[0], saved[2]):
        again = task_of(problem, "step")
        again.evaluate.restore(evaluator)  # type: ignore[attr-defined]
        Exact(deterministic_limit=0.1).place(again, np.random.default_rng(99), policy, lambda _: None)
        assert [(r[0], *r[2:]) for r in again.evaluate.history] == [(r[0], *r[2:]) for r in whole.evaluate.history]  # type: ignore[attr-defined]
        assert again.evaluate.proven_s == whole.evaluate.proven_s


def test_ortools_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools", None)
    with pytest.raises(PlacekitError, match="needs OR-tools") as error:
        Exact()
    assert "placekit-search[exact]" in str(error.value.hint)


class TestExact(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(Exact, deterministic_limit=0.05)
