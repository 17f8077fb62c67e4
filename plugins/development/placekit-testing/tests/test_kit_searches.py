"""The contract of policies: what single checks notice, compiled evaluations, and policies that make no checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit_tools import fails, run_check
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_testing import PolicyContract
from placekit_testing.contract import checks_of, is_claimed
from placekit_testing.fakes import FakeLearnable
from placekit_testing.registries import listed
from test_kit_policies import CHECKS, Climb, Everything, Reseeding, Simple

from placekit_core import BudgetExhausted, Checkpoint, Placement, Placements, Problem, State, Task


@pytest.mark.parametrize(
    ("priority", "says"), [(np.inf, "a priority is not finite"), (np.nan, "a priority is not a number")]
)
def test_priorities_must_be_finite(priority: float, says: str, tmp_path: Path) -> None:
    class Urgent(Climb):
        def result(self, problem: Problem, device: NDArray[Any]) -> Placement:
            return problem.placement(device, np.full(problem.g, priority))

    fails(Everything, "check_placement_is_bound_to_its_problem", Urgent, tmp_path, says)


def test_devices_must_be_small_integers(tmp_path: Path) -> None:
    class Wide(Climb):
        def result(self, problem: Problem, device: NDArray[Any]) -> Placement:
            return dataclasses.replace(super().result(problem, device), device=device.astype(np.int64))

    fails(Everything, "check_placement_is_bound_to_its_problem", Wide, tmp_path, "int64")


def test_seeding_a_global_generator_is_noticed(tmp_path: Path) -> None:
    says = "drew from, or seeded, a global generator"
    fails(Everything, "check_draws_from_its_generator_only", Reseeding, tmp_path, says)


def test_what_is_not_claimed_is_not_collected(tmp_path: Path) -> None:
    checks = checks_of(PolicyContract)
    left_out = {name for name, check in checks.items() if not is_claimed(PolicyContract, check)}
    assert left_out == {"check_checkpoints_can_be_stored", "check_resume_is_exact", "check_finds_optimum"}
    run_check(PolicyContract, "check_claims_what_it_is", Simple, tmp_path)
    fails(PolicyContract, "check_claims_what_it_is", Climb, tmp_path, "set `resumable`")


def test_a_policy_that_groups_by_itself_gets_operations(tmp_path: Path) -> None:
    counts = []

    class Operations(Climb):
        level = "operation"

        def start(self, problem: Problem, rng: Generator) -> NDArray[Any]:
            counts.append(problem.g)
            return super().start(problem, rng)

    run_check(Everything, "check_groups_of_several_operations", Climb, tmp_path)
    run_check(Everything, "check_groups_of_several_operations", Operations, tmp_path)
    assert counts == [5], "the two co-located operations are one group, the others are single"


def test_ending_early_is_not_ending_by_the_budget(tmp_path: Path) -> None:
    class Quitter(Climb):
        def score(self, task: Task, device: NDArray[Any]) -> float:
            raise BudgetExhausted(task.evaluate)

    fails(Everything, "check_one_device", Quitter, tmp_path, "there is budget left")


def test_returning_nothing_is_noticed(tmp_path: Path) -> None:
    class Silent(Climb):
        def result(self, problem: Problem, device: NDArray[Any]) -> Any:
            return device

    fails(Everything, "check_one_device", Silent, tmp_path, "place returned ndarray, not a Placement")


def test_a_learnable_policy_is_built_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    listed(monkeypatch, tmp_path, "policy", FakeLearnable, trainer="fake_trainer")
    for name, check in checks_of(PolicyContract).items():
        if is_claimed(PolicyContract, check):
            run_check(PolicyContract, name, FakeLearnable, tmp_path)


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


def test_check_passes_for_a_policy_with_a_compiled_search(tmp_path: Path) -> None:
    for name in CHECKS:
        run_check(Everything, name, Compiled, tmp_path)


class Uncharged(Compiled):
    """Charges every third evaluation."""

    calls = 0

    def charge(self, task: Task, placements: Placements, value_s: float) -> None:
        self.calls += 1
        if self.calls % 3 == 0:
            super().charge(task, placements, value_s)


class Overdrawn(Compiled):
    """Charges two evaluations for one, also where only one is left."""

    def charge(self, task: Task, placements: Placements, value_s: float) -> None:
        task.evaluate.charge(2, placements, value_s)


def only_compiled(method: str, change: Callable[..., Any]) -> type[Climb]:
    """`Compiled`, with another `method` where the backend has a kernel."""

    class Wrong(Compiled):
        pass

    def replaced(self: Any, task: Task, *args: Any) -> Any:
        right = getattr(Compiled, method)
        return right(self, task, *args) if task.evaluate.kernel() is None else change(self, task, right, *args)

    setattr(Wrong, method, replaced)
    return Wrong


def forgets(self: Any, task: Task, right: Any, rng: Generator, state: Any = None, checkpoint: Any = None) -> Any:
    return right(self, task, rng, state and {**state, "best_s": np.inf}, checkpoint)


def unstorable(self: Any, task: Task, right: Any, rng: Generator, state: Any = None, checkpoint: Any = None) -> Any:
    return right(self, task, rng, state, checkpoint and (lambda s: checkpoint({**s, "rng": rng})))


def not_allowed(self: Any, task: Task, right: Any, *rest: Any) -> Placement:
    return task.problem.placement(np.zeros(task.problem.g, np.int16))


def seeds(self: Any, task: Task, right: Any, *rest: Any) -> Any:
    np.random.seed(0)
    return right(self, task, *rest)


def unseeded(self: Any, task: Task, right: Any, rng: Generator, *rest: Any) -> Any:
    return right(self, task, np.random.default_rng(), *rest)


def counts_down(self: Any, task: Task, right: Any, *rest: Any) -> Any:
    int(task.evaluate.remaining)
    return right(self, task, *rest)


@pytest.mark.parametrize(
    ("name", "wrong", "says"),
    [
        ("check_budget_is_kept", Uncharged, "charged less than it used"),
        ("check_small_budgets", Overdrawn, "2 evaluations charged with 1 left"),
        ("check_allowed_devices", only_compiled("place", not_allowed), "group 'op0' may not run on gpu:0"),
        ("check_draws_from_its_generator_only", only_compiled("place", seeds), "drew from, or seeded"),
        ("check_same_seed_same_result", only_compiled("place", unseeded), "equal generators gave different results"),
        ("check_budget_of_seconds", only_compiled("place", counts_down), "OverflowError"),
        ("check_checkpoints_can_be_stored", only_compiled("place", unstorable), "is a Generator"),
        ("check_resume_is_exact", only_compiled("place", forgets), "it ended differently"),
    ],
)
def test_what_is_wrong_with_a_compiled_search_only_is_noticed(
    name: str, wrong: type[Climb], says: str, tmp_path: Path
) -> None:
    fails(Everything, name, wrong, tmp_path, says)


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


class Never(Climb):
    """Makes no checkpoint, however long it searches."""

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        return super().place(task, rng, state)


def test_a_longer_search_must_make_checkpoints(tmp_path: Path) -> None:
    fails(Everything, "check_resume_is_exact", Seldom, tmp_path, "it ended differently")
    says = "makes no checkpoint within 600 evaluations, and would go on"
    fails(Everything, "check_checkpoints_can_be_stored", Never, tmp_path, says)
