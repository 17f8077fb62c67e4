"""Each check of the contract of policies passes for a right policy, and catches one that is wrong."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray

from placekit_core.errors import BudgetExhausted
from placekit_core.interfaces import Checkpoint, Policy, State
from placekit_core.placement import Placement, Placements
from placekit_core.problem import Problem, Task
from placekit_core.testing import Contract, PolicyContract
from placekit_core.testing.contract import checks_of
from placekit_core.testing.fakes import FakeLearnable
from tests.kit_tools import fails, listed, run_check


class Climb(Policy):
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


class Simple(Policy):
    """Evaluates nothing; base of policies that are wrong in what they return."""

    name = "simple"

    def device(self, problem: Problem) -> Any:
        return problem.allowed.argmax(axis=1)

    def place(self, task: Task, rng: Generator, state: Any = None, checkpoint: Any = None) -> Placement:
        return task.problem.placement(self.device(task.problem))


class FirstDevice(Simple):
    """Puts everything on device 0, allowed or not."""

    def place(self, task: Task, rng: Generator, state: Any = None, checkpoint: Any = None) -> Placement:
        problem = task.problem
        return Placement(np.zeros(problem.g, np.int16), None, problem.graph.fingerprint, problem.cluster.fingerprint)


class Unbound(Simple):
    """Makes the placement by hand, and mixes up the fingerprints."""

    def place(self, task: Task, rng: Generator, state: Any = None, checkpoint: Any = None) -> Placement:
        problem = task.problem
        return Placement(np.zeros(problem.g, np.int16), None, problem.cluster.fingerprint, problem.graph.fingerprint)


class LastButOne(Simple):
    """Puts everything on the last device but one."""

    def device(self, problem: Problem) -> Any:
        return np.full(problem.g, problem.cluster.size - 2)


class Spread(Simple):
    """Spreads the groups evenly by i / (g - 1), which divides by zero for one group."""

    def device(self, problem: Problem) -> Any:
        return [i * (problem.cluster.size - 1) // (problem.g - 1) for i in range(problem.g)]


class Relative(Simple):
    """Compares with the mean seconds of an operation, of which it divides by the total."""

    def device(self, problem: Problem) -> Any:
        total = float(problem.op_s.sum())
        return [int(float(row.sum()) / total > 0.5) for row in problem.group_s]


class OnePerDevice(Simple):
    """Gives every device a group of its own first."""

    def device(self, problem: Problem) -> Any:
        device = np.zeros(problem.g, np.int16)
        for d in range(problem.cluster.size):
            device[d] = d
        return device


class OwnDevice(Simple):
    """Gives every group a device of its own."""

    def device(self, problem: Problem) -> Any:
        return np.arange(problem.g)


class KernelsOnly(Simple):
    """Forgets the operations that are no kernels."""

    def device(self, problem: Problem) -> Any:
        return np.zeros(int(problem.graph.kernel.sum()), np.int16)


class PerOperation(Simple):
    """Returns a device per operation instead of one per group."""

    def device(self, problem: Problem) -> Any:
        return np.zeros(problem.graph.n, np.int16)


class NeedsRoom(Simple):
    """Insists on a device that holds all parameters."""

    def device(self, problem: Problem) -> Any:
        need = problem.group_persistent_bytes.sum()
        [first, *_] = np.flatnonzero(problem.cluster.memory_bytes >= need)
        return np.full(problem.g, first)


class Fastest(Climb):
    """Goes by the value alone, also of placements that do not fit."""

    def score(self, task: Task, device: NDArray[Any]) -> float:
        return float(np.nan_to_num(task.evaluate(Placements.of(device)).value_s[0], nan=1e9))


class Unseeded(Climb):
    """Draws its start from a generator that it makes itself."""

    def start(self, problem: Problem, rng: Generator) -> NDArray[Any]:
        return super().start(problem, np.random.default_rng())


class Global(Climb):
    """Draws its start from numpy's global generator."""

    def start(self, problem: Problem, rng: Generator) -> NDArray[Any]:
        return np.where(problem.allowed, np.random.random(problem.allowed.shape), -1).argmax(axis=1)


class Reseeding(Climb):
    """Seeds Python's global generator, so that its own draws repeat."""

    def start(self, problem: Problem, rng: Generator) -> NDArray[Any]:
        random.seed(0)
        return super().start(problem, rng)


class Remembering(Climb):
    """Compares with the best value of all problems that it has placed, instead of with that of this one."""

    least_s = np.inf

    def score(self, task: Task, device: NDArray[Any]) -> float:
        score_s = super().score(task, device)
        self.least_s = min(self.least_s, score_s)
        return score_s if score_s == self.least_s else 1e9


class Meddling(Simple):
    """Sets the seconds on devices that are not allowed to infinity, in the problem's own array."""

    def device(self, problem: Problem) -> Any:
        problem.group_s[~problem.allowed] = np.inf
        return problem.group_s.argmin(axis=1)


class Bypass(Climb):
    """Asks the backend's session, past the evaluator that counts."""

    def score(self, task: Task, device: NDArray[Any]) -> float:
        task.evaluate.session.evaluate(Placements.of(device))
        return super().score(task, device)


class Tireless(Climb):
    """Takes the end of the budget for a failed evaluation, and goes on."""

    def place(self, task: Task, rng: Generator, state: Any = None, checkpoint: Any = None) -> Placement:
        while True:
            try:
                self.score(task, self.start(task.problem, rng))
            except BudgetExhausted:
                continue


class KernelOnly(Climb):
    """Evaluates by the backend's compiled kernel, whether it has one or not."""

    def score(self, task: Task, device: NDArray[Any]) -> float:
        return float(task.evaluate.kernel().function(device))


class Optimist(Climb):
    """Takes the first of its placements that fits, and there always is one."""

    def score(self, task: Task, device: NDArray[Any]) -> float:
        measured = task.evaluate(Placements.of(device))
        return float(measured.value_s[np.flatnonzero(measured.fits)[0]])


class Unstorable(Climb):
    """Puts its generator into the state."""

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        return super().place(task, rng, state, checkpoint and (lambda s: checkpoint({**s, "rng": rng})))


class Forgetful(Climb):
    """Forgets the best value when it is resumed."""

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        return super().place(task, rng, state and {**state, "best_s": np.inf}, checkpoint)


class Everything(PolicyContract):
    """The contract with all that a policy can claim."""

    finds_optimum = True


CHECKS = [name for name in checks_of(PolicyContract) if name not in checks_of(Contract)]
WRONG: dict[str, type[Policy]] = {
    "test_allowed_devices": FirstDevice,
    "test_placement_is_bound_to_its_problem": Unbound,
    "test_one_device": LastButOne,
    "test_one_operation": Spread,
    "test_sources_only": Relative,
    "test_more_devices_than_operations": OnePerDevice,
    "test_more_operations_than_devices": OwnDevice,
    "test_single_operations_as_groups": KernelsOnly,
    "test_groups_of_several_operations": PerOperation,
    "test_too_little_memory_for_one_device": NeedsRoom,
    "test_prefers_what_fits": Fastest,
    "test_same_seed_same_result": Unseeded,
    "test_draws_from_its_generator_only": Global,
    "test_one_instance_places_several_problems": Remembering,
    "test_problem_is_unchanged": Meddling,
    "test_budget_is_kept": Bypass,
    "test_small_budgets": Tireless,
    "test_no_compiled_kernel": KernelOnly,
    "test_failing_placements": Optimist,
    "test_checkpoints_can_be_stored": Unstorable,
    "test_resume_is_exact": Forgetful,
    "test_finds_optimum": Simple,
}
"""The check, and the wrong policy that it catches."""


def test_every_check_has_a_wrong_policy() -> None:
    assert list(WRONG) == CHECKS
    assert all(policy.__doc__ for policy in WRONG.values())


@pytest.mark.parametrize("name", CHECKS)
def test_check_passes_for_a_right_policy(name: str, tmp_path: Path) -> None:
    run_check(Everything, name, Climb, tmp_path)


@pytest.mark.parametrize("name", CHECKS)
def test_check_catches_a_wrong_policy(name: str, tmp_path: Path) -> None:
    fails(Everything, name, WRONG[name], tmp_path)


@pytest.mark.parametrize("priority", [np.inf, np.nan])
def test_priorities_must_be_finite(priority: float, tmp_path: Path) -> None:
    class Urgent(Climb):
        def result(self, problem: Problem, device: NDArray[Any]) -> Placement:
            return problem.placement(device, np.full(problem.g, priority))

    fails(Everything, "test_placement_is_bound_to_its_problem", Urgent, tmp_path)


def test_devices_must_be_small_integers(tmp_path: Path) -> None:
    class Wide(Climb):
        def result(self, problem: Problem, device: NDArray[Any]) -> Placement:
            return dataclasses.replace(super().result(problem, device), device=device.astype(np.int64))

    assert "int64" in str(fails(Everything, "test_placement_is_bound_to_its_problem", Wide, tmp_path))


def test_seeding_a_global_generator_is_noticed(tmp_path: Path) -> None:
    error = fails(Everything, "test_draws_from_its_generator_only", Reseeding, tmp_path)
    assert "drew from, or seeded, a global generator" in str(error)


def test_what_is_not_claimed_is_skipped(tmp_path: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match="does not claim finds_optimum"):
        run_check(PolicyContract, "test_finds_optimum", Simple, tmp_path)
    with pytest.raises(pytest.skip.Exception, match="makes no checkpoint within 60 evaluations"):
        run_check(PolicyContract, "test_resume_is_exact", Simple, tmp_path)


def test_a_policy_that_groups_by_itself_gets_operations(tmp_path: Path) -> None:
    counts = []

    class Operations(Climb):
        level = "operation"

        def start(self, problem: Problem, rng: Generator) -> NDArray[Any]:
            counts.append(problem.g)
            return super().start(problem, rng)

    run_check(Everything, "test_groups_of_several_operations", Climb, tmp_path)
    run_check(Everything, "test_groups_of_several_operations", Operations, tmp_path)
    assert counts == [5], "the two co-located operations are one group, the others are single"


def test_ending_early_is_not_ending_by_the_budget(tmp_path: Path) -> None:
    class Quitter(Climb):
        def score(self, task: Task, device: NDArray[Any]) -> float:
            raise BudgetExhausted(task.evaluate)

    assert "there is budget left" in str(fails(Everything, "test_one_device", Quitter, tmp_path))


def test_returning_nothing_is_noticed(tmp_path: Path) -> None:
    class Silent(Climb):
        def result(self, problem: Problem, device: NDArray[Any]) -> Any:
            return device

    assert "place returned ndarray, not a Placement" in str(fails(Everything, "test_one_device", Silent, tmp_path))


def test_a_learnable_policy_is_built_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    listed(monkeypatch, tmp_path, "policy", FakeLearnable, trainer="fake_trainer")
    skipped = set()
    for name in checks_of(PolicyContract):
        try:
            run_check(PolicyContract, name, FakeLearnable, tmp_path)
        except pytest.skip.Exception:
            skipped.add(name)
    assert skipped == {"test_checkpoints_can_be_stored", "test_resume_is_exact", "test_finds_optimum"}
