"""Each check of the contract of trainers passes for a right trainer, and catches one that is wrong."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from kit_tools import fails, run_check
from numpy.random import Generator
from placekit_testing import Contract, TrainerContract
from placekit_testing.contract import checks_of
from placekit_testing.fakes import FakeTrainer

from placekit_core import BudgetExhausted, LearnablePolicy, State, Task, Trainer


class Bypass(FakeTrainer):
    """Evaluates each task's first placement by the backend's session, so it is not counted."""

    def fit(self, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, *rest: Any) -> None:
        for task in tasks:
            task.evaluate.session.evaluate(policy.rollout(task.problem, 8, rng).placements)
        super().fit(policy, tasks, rng, *rest)


class Tireless(FakeTrainer):
    """Treats the end of the budget as the end of an epoch, and begins another one."""

    def fit(self, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, *rest: Any) -> None:
        while True:
            try:
                super().fit(policy, tasks, rng, *rest)
            except BudgetExhausted:
                continue


class CountsDown(FakeTrainer):
    """Treats the remaining budget as an integer, but it is infinite where only seconds are limited."""

    def fit(self, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, *rest: Any) -> None:
        self.episodes_left = int(tasks[0].evaluate.remaining)
        super().fit(policy, tasks, rng, *rest)


class Quitter(FakeTrainer):
    """Stops after 60 updates."""

    def fit(
        self, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, state: Any = None, checkpoint: Any = None
    ) -> None:
        def stop(state: State) -> None:
            if checkpoint is not None:
                checkpoint(state)
            if state["updates"] >= 60:
                raise StopIteration

        with contextlib.suppress(StopIteration):
            super().fit(policy, tasks, rng, state, stop)


class HashOrder(FakeTrainer):
    """Takes the tasks in the order of a set of their names, which differs in every process."""

    def fit(self, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, *rest: Any) -> None:
        names = list({f"{task.problem.graph.name}{i}": i for i, task in enumerate(tasks)}.keys() | {"a", "b", "c", "d"})
        order = sorted(range(len(tasks)), key=lambda i: names.index(f"{tasks[i].problem.graph.name}{i}"))
        super().fit(policy, [tasks[i] for i in order], rng, *rest)


class Sampler(Trainer):
    """Evaluates episodes, and never changes the policy."""

    name = "sampler"

    def fit(
        self, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, state: Any = None, checkpoint: Any = None
    ) -> None:
        while True:
            for task in tasks:
                self.look(task, policy, rng)

    def look(self, task: Task, policy: LearnablePolicy, rng: Generator) -> None:
        task.evaluate(policy.rollout(task.problem, 8, rng, 1.0).placements)


class Descending(FakeTrainer):
    """Steps against the gradient."""

    def fit(self, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, *rest: Any) -> None:
        ascend = policy.apply
        policy.apply = lambda steps: ascend({k: -v for k, v in steps.items()})  # type: ignore[method-assign]
        super().fit(policy, tasks, rng, *rest)


class Restarting(Sampler):
    """Throws the best placement away before each batch."""

    def look(self, task: Task, policy: LearnablePolicy, rng: Generator) -> None:
        task.evaluate.best = None
        super().look(task, policy, rng)


class LastTask(FakeTrainer):
    """Evaluates every task once, and trains only on the last one."""

    def fit(self, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, *rest: Any) -> None:
        for task in tasks:
            task.evaluate(policy.rollout(task.problem, 2, rng, 1.0).placements)
        super().fit(policy, tasks[-1:], rng, *rest)


class RawValue(Sampler):
    """Learns from measured values that are NaN where placements failed."""

    def look(self, task: Task, policy: LearnablePolicy, rng: Generator) -> None:
        r = policy.rollout(task.problem, 8, rng, 1.0)
        value = task.evaluate(r.placements).value_s
        weight = np.repeat((value.mean() - value)[:, None], r.group.shape[1], axis=1)
        policy.apply(policy.gradients(task.problem, r, weight))


class Unseeded(FakeTrainer):
    """Draws episodes from a generator that it makes itself."""

    def fit(self, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, *rest: Any) -> None:
        super().fit(policy, tasks, np.random.default_rng(), *rest)


class Global(FakeTrainer):
    """Draws episodes from a generator that it seeds by numpy's global one."""

    def fit(self, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, *rest: Any) -> None:
        super().fit(policy, tasks, np.random.default_rng(np.random.randint(2**31)), *rest)


class Meddling(FakeTrainer):
    """Allows all devices, in the problem's own array."""

    def fit(self, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, *rest: Any) -> None:
        tasks[0].problem.op_allowed.setflags(write=True)
        tasks[0].problem.op_allowed[:] = True
        super().fit(policy, tasks, rng, *rest)


class Unstorable(FakeTrainer):
    """Puts the policy itself into the state."""

    def fit(
        self, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, state: Any = None, checkpoint: Any = None
    ) -> None:
        save = checkpoint and (lambda s: checkpoint({**s, "policy": copy.copy(policy)}))
        super().fit(policy, tasks, rng, state, save)


class Forgetful(FakeTrainer):
    """Forgets which task is next when it is resumed."""

    def fit(
        self, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, state: Any = None, checkpoint: Any = None
    ) -> None:
        super().fit(policy, tasks, rng, None, checkpoint)


CHECKS = [name for name in checks_of(TrainerContract) if name not in checks_of(Contract)]
WRONG: dict[str, type[Trainer]] = {
    "check_budget_is_kept": Bypass,
    "check_small_budgets": Tireless,
    "check_budget_of_seconds": CountsDown,
    "check_ends_by_its_budget": Quitter,
    "check_finds_optimum": Sampler,
    "check_policy_learns": Descending,
    "check_best_never_worsens": Restarting,
    "check_every_task_gets_its_share": LastTask,
    "check_same_result_in_another_process": HashOrder,
    "check_failing_placements": RawValue,
    "check_same_seed_same_parameters": Unseeded,
    "check_draws_from_its_generator_only": Global,
    "check_problem_is_unchanged": Meddling,
    "check_checkpoints_can_be_stored": Unstorable,
    "check_resume_is_exact": Forgetful,
}
"""The check, and the wrong trainer that it catches."""
SAYS = {
    "check_budget_is_kept": "reached the backend past the evaluator",
    "check_small_budgets": "asked for 100 more evaluations after the end of the budget",
    "check_budget_of_seconds": "OverflowError: cannot convert float infinity to integer",
    "check_ends_by_its_budget": "returned after 480 of 4000 evaluations",
    "check_finds_optimum": "the optimum 12.0 s",
    "check_policy_learns": "mean of 64 episodes: 30 s before, 36 s after",
    "check_best_never_worsens": "the best so far got worse",
    "check_every_task_gets_its_share": "chain12 got 2 of 4000 evaluations",
    "check_same_result_in_another_process": "two processes with other values of PYTHONHASHSEED",
    "check_failing_placements": "parameter 'logits' is not finite",
    "check_same_seed_same_parameters": "equal generators gave different results",
    "check_draws_from_its_generator_only": "drew from, or seeded, a global generator",
    "check_problem_is_unchanged": "were changed: problem.op_allowed",
    "check_checkpoints_can_be_stored": "state.state.policy of a checkpoint is a FakeLearnable",
    "check_resume_is_exact": "it ended differently",
}
"""What the check must say of it."""


def test_every_check_has_a_wrong_trainer() -> None:
    assert list(WRONG) == list(SAYS) == CHECKS
    assert all(trainer.__doc__ for trainer in WRONG.values())


def test_check_passes_for_a_right_trainer(tmp_path: Path) -> None:
    for name in CHECKS:
        run_check(TrainerContract, name, FakeTrainer, tmp_path)


def test_check_catches_a_wrong_trainer(tmp_path: Path) -> None:
    for name in CHECKS:
        fails(TrainerContract, name, WRONG[name], tmp_path, SAYS[name])


def test_a_trainer_without_checkpoints_fails(tmp_path: Path) -> None:
    fails(TrainerContract, "check_resume_is_exact", Sampler, tmp_path, "makes no checkpoint")


def test_options_reach_the_trainer(tmp_path: Path) -> None:
    run_check(TrainerContract, "check_policy_learns", partial(FakeTrainer, episodes=16, rate=0.5), tmp_path)
