"""The heuristics: what each promises beyond the contract, on a backend whose value is the largest load."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from placekit_heuristics.list_scheduling import CriticalPath, Heft, Peft
from placekit_heuristics.simple import Random, RoundRobin, SingleDevice
from placekit_scheduling import ListScheduler, b_level, group_priority
from placekit_testing.strategies import Case, problems

from placekit_core import (
    Cluster,
    ClusterError,
    CostTable,
    Graph,
    GraphBuilder,
    Ledger,
    Measurements,
    Placement,
    Placements,
    Problem,
    Schedule,
    Session,
    Task,
)
from placekit_core.run.evaluator import BudgetedEvaluator


class LargestLoad(Session):
    """Value: seconds of the device with most work. Peak: persistent bytes."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.values: list[float] = []

    def evaluate(self, placements: Placements) -> Measurements:
        p, b = self.problem, len(placements)
        load, peak = np.zeros((b, p.cluster.size)), np.zeros((b, p.cluster.size))
        for i, device in enumerate(placements.device):
            np.add.at(load[i], device, p.group_s[np.arange(p.g), device])
            np.add.at(peak[i], device, p.group_persistent_bytes)
        self.values += load.max(axis=1).round(9).tolist()
        fits = np.asarray((peak <= p.cluster.memory_bytes).all(axis=1))
        return Measurements(load.max(axis=1), peak, fits, (None,) * b)

    def schedule(self, placement: Placement) -> Schedule:
        raise NotImplementedError


def task_of(problem: Problem, evaluations: int | None = None) -> Task:
    return Task(problem, BudgetedEvaluator(problem, LargestLoad(problem), Ledger(evaluations)))


def machine(gpus: int, cpus: int = 0, memory: int = 10**9) -> Cluster:
    rates = {"flops_per_s": {"float32": 1.0}, "memory_bytes": memory, "memory_bytes_per_s": 1.0}
    return Cluster.parse({
        "kinds": {"g": rates, "c": {**rates, "type": "cpu", "memory_bytes": 10**9}},
        "devices": [{"kind": "g", "count": gpus}] * (gpus > 0) + [{"kind": "c", "count": cpus}] * (cpus > 0),
        "links": [{"mesh": "*", "bytes_per_s": 1.0}] if gpus + cpus > 1 else [],
    })  # fmt: skip


def problem_of(graph: Graph, cluster: Cluster, gpu_s: Any, cpu_s: Any = None) -> Problem:
    columns = {"g": gpu_s, "c": gpu_s if cpu_s is None else cpu_s}
    table = np.stack([np.broadcast_to(np.asarray(columns[k], float), graph.n) for k in cluster.kind_names], axis=1)
    return Problem.of(graph, cluster, None, CostTable(cluster.kind_names, table.copy(), np.zeros(table.shape, bool)))


def independent(n: int, cpu_only: tuple[int, ...] = (), persistent: int = 0) -> Graph:
    b = GraphBuilder("independent")
    for i in range(n):
        b.add(f"op{i}", outputs=[0], allowed="cpu" if i in cpu_only else "", persistent_bytes=persistent)
    return b.build()


def place(policy: Any, problem: Problem, seed: int = 0) -> Placement:
    placement: Placement = policy.place(task_of(problem), np.random.default_rng(seed))
    return placement


def test_single_device() -> None:
    problem = problem_of(independent(4, cpu_only=(3,)), machine(2, 1), 1.0, 5.0)
    assert place(SingleDevice(), problem).device.tolist() == [0, 0, 0, 2]
    assert place(SingleDevice(device="g:1"), problem).device.tolist() == [1, 1, 1, 2]
    assert place(SingleDevice(device="c:0"), problem).device.tolist() == [2, 2, 2, 2]
    with pytest.raises(ClusterError, match=r"no device named 'g:7'[\s\S]*c:0, g:0, g:1"):
        place(SingleDevice(device="g:7"), problem)
    faster_cpu = problem_of(independent(4), machine(2, 1), 1.0, 0.5)
    assert place(SingleDevice(), faster_cpu).device.tolist() == [2, 2, 2, 2]


def test_single_device_that_holds_the_parameters() -> None:
    small = problem_of(independent(4, persistent=30), machine(2, 1, memory=100), 1.0, 5.0)
    assert place(SingleDevice(), small).device.tolist() == [2, 2, 2, 2]
    nowhere = problem_of(independent(4, persistent=30), machine(2, memory=100), 1.0)
    assert place(SingleDevice(), nowhere).device.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(("fitting", "device", "evaluations"), [((0, 1, 2), 0, 1), ((2,), 2, 1), ((), 2, 1)])
def test_single_device_on_which_it_fits(fitting: tuple[int, ...], device: int, evaluations: int) -> None:
    class Tight(LargestLoad):
        def evaluate(self, placements: Placements) -> Measurements:
            fits = np.isin(placements.device[:, 0], fitting)
            return replace(super().evaluate(placements), fits=fits)

    problem = problem_of(independent(4), machine(2, 1), 1.0, 5.0)
    task = Task(problem, BudgetedEvaluator(problem, session := Tight(problem)))
    assert SingleDevice().place(task, np.random.default_rng(0)).device.tolist() == [device] * 4
    assert len(session.values) == evaluations, "the GPUs are alike"


def test_random_is_uniform_over_allowed_devices() -> None:
    problem = problem_of(independent(4000, cpu_only=tuple(range(1000))), machine(3, 1), 1.0)
    device = place(Random(), problem).device
    assert set(device[:1000].tolist()) == {3}
    share = np.bincount(device[1000:], minlength=4) / 3000
    assert share == pytest.approx(np.full(4, 0.25), abs=0.04)
    assert not place(Random(), problem, 1).same_as(place(Random(), problem, 2))


def test_round_robin_in_topological_order() -> None:
    b = GraphBuilder("shuffled")
    for i in range(5):
        b.add(f"op{i}", outputs=[1])
    for i in (3, 2, 1, 0):  # op4 -> op3 -> ... -> op0
        b.operations[i].inputs.append(i + 1)
    problem = problem_of(b.build(), machine(2), 1.0)
    assert place(RoundRobin(), problem).device.tolist() == [0, 1, 0, 1, 0]
    mixed = problem_of(independent(6, cpu_only=(0, 1)), machine(2, 1), 1.0)
    assert place(RoundRobin(), mixed).device.tolist() == [2, 2, 2, 0, 1, 2]


@pytest.mark.parametrize(("policy", "rule"), [(CriticalPath, "critical_path"), (Heft, "heft"), (Peft, "peft")])
@given(case=problems(max_n=20))
@settings(max_examples=20, deadline=None)
def test_one_sample_is_the_list_schedule(policy: Any, rule: Any, case: Case) -> None:
    """Without evaluation, with b-levels as priorities."""
    task = task_of(case.problem)
    placement = policy(samples=1).place(task, np.random.default_rng(0))
    assert placement.device.tolist() == ListScheduler(case.problem).run(rule).devices().tolist()
    assert placement.priority.tolist() == group_priority(case.problem, b_level(case.problem)).tolist()
    assert task.evaluate.evaluations == 0


@pytest.mark.parametrize("policy", [Random, Heft])
def test_samples_take_the_best(policy: Any) -> None:
    rng = np.random.default_rng(0)
    problem = problem_of(independent(30), machine(3), rng.random(30))
    task = task_of(problem)
    placement = policy(samples=40).place(task, np.random.default_rng(0))
    assert task.evaluate.evaluations == 40
    assert task.evaluate.best is not None
    assert placement.same_as(task.evaluate.best.placement)
