"""The contract of policies passes for right policies, and finds planted bugs."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit_tools import catches, changed, outcome, own_checks, skipped, writable
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_testing import PolicyContract
from placekit_testing.fakes import FakeLearnable

from placekit_core import (
    BudgetExhausted,
    Checkpoint,
    Placement,
    Placements,
    Policy,
    Problem,
    ResumablePolicy,
    State,
    Task,
)


class Climb(ResumablePolicy):
    """Changes one group at a time and keeps what is not worse, until the budget ends: a right policy."""

    name = "climb"

    def start(self, problem: Problem, rng: Generator) -> NDArray[Any]:
        return np.where(problem.allowed, rng.random(problem.allowed.shape), -1).argmax(axis=1)

    def score(self, task: Task, device: NDArray[Any]) -> float:
        return float(task.evaluate.scores(task.evaluate(Placements.of(device)))[0])

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        problem = task.problem
        device = self.start(problem, rng) if state is None else np.array(state["device"])
        best_s = np.inf if state is None else float(state["best_s"])
        while task.evaluate.remaining > 0:
            tried = device.copy()
            if best_s < np.inf:
                group = int(rng.integers(problem.g))
                tried[group] = rng.choice(np.flatnonzero(problem.allowed[group]))
            score = self.score(task, tried)
            if score <= best_s:
                device, best_s = tried, score
            if checkpoint is not None:
                checkpoint({"device": device, "best_s": best_s})
        return self.result(problem, device)

    def result(self, problem: Problem, device: NDArray[Any]) -> Placement:
        return problem.placement(device)


class Compiled(Climb):
    """Evaluates by the backend's compiled kernel where there is one: a right policy."""

    def score(self, task: Task, device: NDArray[Any]) -> float:
        kernel = task.evaluate.kernel()
        if kernel is None:
            return super().score(task, device)
        work_ints, work_floats = np.zeros(kernel.scratch_ints, np.int32), np.zeros(kernel.scratch_floats)
        devices, peak = np.asarray(device, np.int16), np.zeros(task.problem.cluster.size)
        priority = np.zeros(0, np.float32)
        value_s = kernel.function(devices, priority, kernel.ints, kernel.floats, work_ints, work_floats, peak)
        self.charge(task, Placements.of(device), value_s)
        return float(value_s if np.all(peak <= task.problem.cluster.memory_bytes) else task.evaluate.failing_signal_s)

    def charge(self, task: Task, placements: Placements, value_s: float) -> None:
        task.evaluate.charge(1, placements, value_s)


class Simple(Policy):
    """Evaluates nothing, and cannot be resumed."""

    name = "simple"

    def device(self, problem: Problem) -> Any:
        return problem.allowed.argmax(axis=1)

    def place(self, task: Task, rng: Generator, state: Any = None, checkpoint: Any = None) -> Placement:
        return task.problem.placement(self.device(task.problem))


class HashOrder(Climb):
    """Starts from the order of a set of names, which differs in every process."""

    def start(self, problem: Problem, rng: Generator) -> NDArray[Any]:
        names = list(set(problem.graph.op_name[:]))
        position = np.array([names.index(name) for name in problem.graph.op_name[:]])[: problem.g]
        return np.where(problem.allowed, (position[:, None] + np.arange(problem.cluster.size)) % 5, -1).argmax(axis=1)


class Remembering(Climb):
    """Compares with the best value of all its problems, not with the best value of this one."""

    least_s = np.inf

    def score(self, task: Task, device: NDArray[Any]) -> float:
        score_s = super().score(task, device)
        self.least_s = min(self.least_s, score_s)
        return score_s if score_s == self.least_s else 1e9


class Uncharged(Compiled):
    """Charges every third evaluation."""

    calls = 0

    def charge(self, task: Task, placements: Placements, value_s: float) -> None:
        self.calls += 1
        if self.calls % 3 == 0:
            super().charge(task, placements, value_s)


class Seldom(Climb):
    """Makes every hundredth checkpoint only, and ignores what it resumes from."""

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        states = []

        def hundredth(state: State) -> None:
            states.append(state)
            if checkpoint is not None and len(states) % 100 == 0:
                checkpoint(state)

        return super().place(task, rng, None, hundredth)


def placing(device: Callable[[Problem], Any]) -> type[Policy]:
    """A policy that puts the groups on these devices."""
    return changed(Simple, device=lambda self, problem: device(problem))


def around(base: type[Climb], change: Callable[..., Placement], when_compiled: bool = False) -> type[Policy]:
    """A policy that calls `change(right place, task, rng, state, checkpoint)`; `when_compiled`: on kernels only."""

    def place(self: Any, task: Task, rng: Generator, state: Any = None, checkpoint: Any = None) -> Placement:
        def right(*arguments: Any) -> Placement:
            return base.place(self, task, *arguments)

        if when_compiled and task.evaluate.kernel() is None:
            return right(rng, state, checkpoint)
        return change(right, task, rng, state, checkpoint)

    return changed(base, place=place)


def unseeded(right: Any, task: Task, rng: Generator, state: Any, checkpoint: Any) -> Placement:
    return right(np.random.default_rng(), state, checkpoint)


def global_numpy(right: Any, task: Task, rng: Generator, state: Any, checkpoint: Any) -> Placement:
    return right(np.random.default_rng(np.random.randint(2**31)), state, checkpoint)


def reseeding(right: Any, task: Task, rng: Generator, state: Any, checkpoint: Any) -> Placement:
    random.seed(0)
    return right(rng, state, checkpoint)


def counts_down(right: Any, task: Task, rng: Generator, state: Any, checkpoint: Any) -> Placement:
    int(task.evaluate.remaining)
    return right(rng, state, checkpoint)


def forgetful(right: Any, task: Task, rng: Generator, state: Any, checkpoint: Any) -> Placement:
    return right(rng, state and {**state, "best_s": np.inf}, checkpoint)


def unstorable(right: Any, task: Task, rng: Generator, state: Any, checkpoint: Any) -> Placement:
    return right(rng, state, checkpoint and (lambda s: checkpoint({**s, "rng": rng})))


def never_saved(right: Any, task: Task, rng: Generator, state: Any, checkpoint: Any) -> Placement:
    return right(rng, state)


def first_device(right: Any, task: Task, *rest: Any) -> Placement:
    problem = task.problem
    return Placement(np.zeros(problem.g, np.int16), None, problem.graph.fingerprint, problem.cluster.fingerprint)


def tireless(right: Any, task: Task, rng: Generator, *rest: Any) -> Placement:
    while True:
        try:
            task.evaluate(Placements.of(task.problem.allowed.argmax(axis=1)))
        except BudgetExhausted:
            continue


def one_per_device(problem: Problem) -> Any:
    device = np.zeros(problem.g, np.int16)
    for d in range(problem.cluster.size):
        device[d] = d
    return device


def meddling(problem: Problem) -> Any:
    writable(problem.group_s)[~problem.allowed] = np.inf
    return problem.group_s.argmin(axis=1)


def first_with_room(problem: Problem) -> Any:
    [first, *_] = np.flatnonzero(problem.cluster.memory_bytes >= problem.group_persistent_bytes.sum())
    return np.full(problem.g, first)


def only_the_value(self: Any, task: Task, device: NDArray[Any]) -> float:
    return float(np.nan_to_num(task.evaluate(Placements.of(device)).value_s[0], nan=1e9))


def optimist(self: Any, task: Task, device: NDArray[Any]) -> float:
    measured = task.evaluate(Placements.of(device))
    return float(measured.value_s[np.flatnonzero(measured.fits)[0]])


def bypass(self: Any, task: Task, device: NDArray[Any]) -> float:
    task.evaluate.session.evaluate(Placements.of(device))
    return Climb.score(self, task, device)


def quits(self: Any, task: Task, device: NDArray[Any]) -> float:
    raise BudgetExhausted(task.evaluate)


def as_int64(self: Any, problem: Problem, device: NDArray[Any]) -> Placement:
    return dataclasses.replace(problem.placement(device), device=device.astype(np.int64))


def mixed_up(self: Any, problem: Problem, device: NDArray[Any]) -> Placement:
    placed = problem.placement(device)
    return dataclasses.replace(placed, graph=placed.cluster, cluster=placed.graph)


def prioritised(priority: float) -> type[Policy]:
    return changed(Climb, result=lambda self, p, device: p.placement(device, np.full(p.g, priority)))


BOUND, SHAPES, GROUPS = "check_placement_is_bound_to_its_problem", "check_unusual_graphs_and_machines", "check_groups"
MEMORY, FAILING, SAME = (
    "check_too_little_memory_for_one_device", "check_failing_placements", "check_same_seed_same_result",
)  # fmt: skip
BUDGET, SECONDS, RESUME = "check_budget_is_kept", "check_budget_of_seconds", "check_resume_is_exact"
WRONG = [
    ("check_allowed_devices", around(Climb, first_device), "group 'op0' may not run on gpu:0"),
    ("check_allowed_devices", around(Compiled, first_device, True), "group 'op0' may not run on gpu:0"),
    ("check_allowed_devices", placing(meddling), "were changed: problem.group_s"),
    (BOUND, changed(Climb, result=mixed_up), "it is bound to another graph or cluster"),
    (BOUND, changed(Climb, result=as_int64), "int64"),
    (BOUND, prioritised(np.inf), "a priority is not finite"),
    (BOUND, prioritised(np.nan), "a priority is not a number"),
    (SHAPES, placing(lambda p: np.full(p.g, p.cluster.size - 2)), "is on device -1"),
    (SHAPES, placing(lambda p: [i * (p.cluster.size - 1) // (p.g - 1) for i in range(p.g)]), "ZeroDivisionError"),
    (SHAPES, placing(lambda p: [int(float(s.sum()) / float(p.op_s.sum()) > 1) for s in p.group_s]), "ZeroDivision"),
    (SHAPES, placing(one_per_device), "IndexError"),
    (SHAPES, placing(lambda p: np.arange(p.g)), "is on device 1"),
    (SHAPES, changed(Climb, score=quits), "there is budget left"),
    (SHAPES, changed(Climb, result=lambda self, p, device: device), "place returned ndarray, not a Placement"),
    (GROUPS, placing(lambda p: np.zeros(int(p.graph.kernel.sum()), np.int16)), "has 13 groups, not 12"),
    (GROUPS, placing(lambda p: np.zeros(p.graph.n, np.int16)), "has 3 groups, not 6"),
    (MEMORY, placing(first_with_room), "ValueError: not enough values to unpack"),
    (MEMORY, changed(Climb, score=only_the_value), "returned a placement that does not fit"),
    (FAILING, changed(Climb, score=optimist), "IndexError: index 0 is out of bounds"),
    (SAME, around(Climb, unseeded), "equal generators gave different results"),
    (SAME, around(Compiled, unseeded, True), "equal generators gave different results"),
    (SAME, around(Climb, global_numpy), "drew from, or seeded, a global generator"),
    (SAME, around(Compiled, reseeding, True), "drew from, or seeded, a global generator"),
    ("check_same_result_in_another_process", HashOrder, "two processes with other values of PYTHONHASHSEED"),
    ("check_one_instance_places_several_problems", Remembering, "placing another problem before changed the result"),
    (BUDGET, changed(Climb, score=bypass), "reached the backend past the evaluator"),
    (BUDGET, around(Climb, tireless), "asked for 100 more evaluations after the end of the budget"),
    (BUDGET, Uncharged, "charged less than it used"),
    (BUDGET, changed(Compiled, charge=lambda self, task, p, s: task.evaluate.charge(2, p, s)), "charged with 1 left"),
    (BUDGET, changed(Climb, score=lambda self, task, device: task.evaluate.kernel().function(device)), "NoneType"),
    (SECONDS, around(Climb, counts_down), "OverflowError: cannot convert float infinity to integer"),
    (SECONDS, around(Compiled, counts_down, True), "OverflowError"),
    (RESUME, around(Climb, unstorable), "state.state.rng of a checkpoint is a Generator"),
    (RESUME, around(Compiled, unstorable, True), "is a Generator"),
    (RESUME, around(Climb, forgetful), "it ended differently"),
    (RESUME, around(Compiled, forgetful, True), "it ended differently"),
    (RESUME, Seldom, "it ended differently"),
    (RESUME, around(Climb, never_saved), "makes no checkpoint within 600 evaluations, and would go on"),
    ("check_finds_optimum", Simple, "found 18.0 s, the optimum is 6.0 s"),
]
CHECKS = own_checks(PolicyContract)


class Optimal(PolicyContract):
    """The contract of a policy that finds the optimum."""

    finds_optimum = True


@pytest.mark.slow
def test_passes_for_right_policies(tmp_path: Path) -> None:
    for policy in (Climb, Compiled):
        assert skipped(Optimal, CHECKS, policy, tmp_path) == set()
    assert skipped(PolicyContract, CHECKS, FakeLearnable, tmp_path) == {RESUME, "check_finds_optimum"}


def test_finds_planted_bugs(tmp_path: Path) -> None:
    catches(Optimal, CHECKS, WRONG, tmp_path)


def test_a_policy_that_groups_by_itself_gets_operations(tmp_path: Path) -> None:
    counts = []

    class Operations(Climb):
        level = "operation"

        def start(self, problem: Problem, rng: Generator) -> NDArray[Any]:
            counts.append(problem.g)
            return super().start(problem, rng)

    assert outcome(PolicyContract, GROUPS, Operations, tmp_path) == "passed"
    assert counts[-1] == 5, "the two co-located operations are one group, the others are single"
