"""Each check of the contract of policies passes for a right policy, and catches one that is wrong."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
from kit_tools import fails, run_check
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_testing import Contract, PolicyContract
from placekit_testing.contract import checks_of

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


class Simple(Policy):
    """Evaluates nothing, and cannot be resumed; the base of other wrong policies."""

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
    """Puts everything on the second-to-last device."""

    def device(self, problem: Problem) -> Any:
        return np.full(problem.g, problem.cluster.size - 2)


class Spread(Simple):
    """Spreads the groups evenly by i / (g - 1), which divides by zero for one group."""

    def device(self, problem: Problem) -> Any:
        return [i * (problem.cluster.size - 1) // (problem.g - 1) for i in range(problem.g)]


class Relative(Simple):
    """Divides by the total seconds of all operations, which are 0."""

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
    """Forgets the operations that are not kernels."""

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
    """Looks only at the value, even if a placement does not fit."""

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


class Meddling(Simple):
    """Sets the seconds on devices that are not allowed to infinity, in the problem's own array."""

    def device(self, problem: Problem) -> Any:
        problem.group_s.setflags(write=True)
        problem.group_s[~problem.allowed] = np.inf
        return problem.group_s.argmin(axis=1)


class Bypass(Climb):
    """Calls the backend's session directly, so the evaluator does not count."""

    def score(self, task: Task, device: NDArray[Any]) -> float:
        task.evaluate.session.evaluate(Placements.of(device))
        return super().score(task, device)


class Tireless(Climb):
    """Treats the end of the budget as a failed evaluation, and goes on."""

    def place(self, task: Task, rng: Generator, state: Any = None, checkpoint: Any = None) -> Placement:
        while True:
            try:
                self.score(task, self.start(task.problem, rng))
            except BudgetExhausted:
                continue


class CountsDown(Climb):
    """Treats the remaining budget as an integer, but it is infinite where only seconds are limited."""

    def place(self, task: Task, rng: Generator, state: Any = None, checkpoint: Any = None) -> Placement:
        left = int(task.evaluate.remaining)
        return super().place(task, rng, state if left else None, checkpoint)


class KernelOnly(Climb):
    """Calls the backend's compiled kernel without checking that there is one."""

    def score(self, task: Task, device: NDArray[Any]) -> float:
        return float(task.evaluate.kernel().function(device))


class Optimist(Climb):
    """Takes the first placement that fits, as if there always were one."""

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

    finds_optimum, resumable = True, True


CHECKS = [name for name in checks_of(PolicyContract) if name not in checks_of(Contract)]
WRONG: dict[str, type[Policy]] = {
    "check_claims_what_it_is": Simple,
    "check_allowed_devices": FirstDevice,
    "check_placement_is_bound_to_its_problem": Unbound,
    "check_one_device": LastButOne,
    "check_one_operation": Spread,
    "check_sources_only": Relative,
    "check_more_devices_than_operations": OnePerDevice,
    "check_more_operations_than_devices": OwnDevice,
    "check_single_operations_as_groups": KernelsOnly,
    "check_groups_of_several_operations": PerOperation,
    "check_too_little_memory_for_one_device": NeedsRoom,
    "check_prefers_what_fits": Fastest,
    "check_same_seed_same_result": Unseeded,
    "check_draws_from_its_generator_only": Global,
    "check_same_result_in_another_process": HashOrder,
    "check_one_instance_places_several_problems": Remembering,
    "check_problem_is_unchanged": Meddling,
    "check_budget_is_kept": Bypass,
    "check_small_budgets": Tireless,
    "check_budget_of_seconds": CountsDown,
    "check_no_compiled_kernel": KernelOnly,
    "check_failing_placements": Optimist,
    "check_checkpoints_can_be_stored": Unstorable,
    "check_resume_is_exact": Forgetful,
    "check_finds_optimum": Simple,
}
"""The check, and the wrong policy that it catches."""
SAYS = {
    "check_claims_what_it_is": "set `resumable` in the test's class",
    "check_allowed_devices": "group 'op0' may not run on gpu:0",
    "check_placement_is_bound_to_its_problem": "it is bound to another graph or cluster",
    "check_one_device": "is on device -1",
    "check_one_operation": "ZeroDivisionError",
    "check_sources_only": "ZeroDivisionError",
    "check_more_devices_than_operations": "IndexError: index 3 is out of bounds",
    "check_more_operations_than_devices": "is on device 2",
    "check_single_operations_as_groups": "has 13 groups, not 12",
    "check_groups_of_several_operations": "has 3 groups, not 6",
    "check_too_little_memory_for_one_device": "ValueError: not enough values to unpack",
    "check_prefers_what_fits": "returned a placement that it measured not to fit",
    "check_same_seed_same_result": "equal generators gave different results",
    "check_draws_from_its_generator_only": "drew from, or seeded, a global generator",
    "check_same_result_in_another_process": "two processes with other values of PYTHONHASHSEED",
    "check_one_instance_places_several_problems": "placing another problem before changed the result",
    "check_problem_is_unchanged": "were changed: problem.group_s",
    "check_budget_is_kept": "reached the backend past the evaluator",
    "check_small_budgets": "asked for 100 more evaluations after the end of the budget",
    "check_budget_of_seconds": "OverflowError: cannot convert float infinity to integer",
    "check_no_compiled_kernel": "AttributeError: 'NoneType' object has no attribute 'function'",
    "check_failing_placements": "IndexError: index 0 is out of bounds",
    "check_checkpoints_can_be_stored": "state.state.rng of a checkpoint is a Generator",
    "check_resume_is_exact": "it ended differently",
    "check_finds_optimum": "found 18.0 s, the optimum is 6.0 s",
}
"""What the check must say of it."""


def test_every_check_has_a_wrong_policy() -> None:
    assert list(WRONG) == list(SAYS) == CHECKS
    assert all(policy.__doc__ for policy in WRONG.values())


def test_check_passes_for_a_right_policy(tmp_path: Path) -> None:
    for name in CHECKS:
        run_check(Everything, name, Climb, tmp_path)


def test_check_catches_a_wrong_policy(tmp_path: Path) -> None:
    for name in CHECKS:
        fails(Everything, name, WRONG[name], tmp_path, SAYS[name])
