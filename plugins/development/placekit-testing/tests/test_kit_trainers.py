"""The contract of trainers passes for right trainers, and finds planted bugs."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from kit_tools import catches, changed, own_checks, skipped, writable
from numpy.random import Generator
from placekit_testing import TrainerContract
from placekit_testing.fakes import FakeTrainer

from placekit_core import BudgetExhausted, LearnablePolicy, State, Task, Trainer


class HashOrder(FakeTrainer):
    """Takes the tasks in the order of a set of their names, which differs in every process."""

    def fit(self, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, *rest: Any) -> None:
        names = list({f"{task.problem.graph.name}{i}": i for i, task in enumerate(tasks)}.keys() | {"a", "b", "c", "d"})
        order = sorted(range(len(tasks)), key=lambda i: names.index(f"{tasks[i].problem.graph.name}{i}"))
        super().fit(policy, [tasks[i] for i in order], rng, *rest)


class Sampler(Trainer):
    """Evaluates episodes, never changes the policy, and makes no checkpoint."""

    name = "sampler"

    def fit(
        self, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, state: Any = None, checkpoint: Any = None
    ) -> None:
        while True:
            for task in tasks:
                self.look(task, policy, rng)

    def look(self, task: Task, policy: LearnablePolicy, rng: Generator) -> None:
        task.evaluate(policy.rollout(task.problem, 8, rng, 1.0).placements)


class RawValue(Sampler):
    """Learns from measured values that are NaN where placements failed."""

    def look(self, task: Task, policy: LearnablePolicy, rng: Generator) -> None:
        r = policy.rollout(task.problem, 8, rng, 1.0)
        value = task.evaluate(r.placements).value_s
        weight = np.repeat((value.mean() - value)[:, None], r.group.shape[1], axis=1)
        policy.apply(policy.gradients(task.problem, r, weight))


Fit = Callable[..., None]


def around(change: Callable[..., None]) -> type[Trainer]:
    """A trainer that calls `change(right fit, policy, tasks, rng, state, checkpoint)`."""

    def fit(
        self: Any, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, state: Any = None, save: Any = None
    ) -> None:
        change(partial(FakeTrainer.fit, self), policy, tasks, rng, state, save)

    return changed(FakeTrainer, fit=fit)


def bypass(right: Fit, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, *rest: Any) -> None:
    for task in tasks:
        task.evaluate.session.evaluate(policy.rollout(task.problem, 8, rng).placements)
    right(policy, tasks, rng, *rest)


def tireless(right: Fit, *arguments: Any) -> None:
    while True:
        with contextlib.suppress(BudgetExhausted):
            right(*arguments)


def counts_down(right: Fit, policy: LearnablePolicy, tasks: Sequence[Task], *rest: Any) -> None:
    int(tasks[0].evaluate.remaining)
    right(policy, tasks, *rest)


def stops_early(right: Fit, policy: Any, tasks: Any, rng: Any, state: Any, save: Any) -> None:
    def stop(state: State) -> None:
        if state["updates"] >= 60:
            raise StopIteration

    with contextlib.suppress(StopIteration):
        right(policy, tasks, rng, state, stop)


def descending(right: Fit, policy: LearnablePolicy, *rest: Any) -> None:
    ascend = policy.apply
    policy.apply = lambda steps: ascend({k: -v for k, v in steps.items()})  # type: ignore[method-assign]
    right(policy, *rest)


def last_task_only(right: Fit, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, *rest: Any) -> None:
    for task in tasks:
        task.evaluate(policy.rollout(task.problem, 2, rng, 1.0).placements)
    right(policy, tasks[-1:], rng, *rest)


def global_numpy(right: Fit, policy: Any, tasks: Any, rng: Any, *rest: Any) -> None:
    right(policy, tasks, np.random.default_rng(np.random.randint(2**31)), *rest)


def meddling(right: Fit, policy: Any, tasks: Sequence[Task], *rest: Any) -> None:
    writable(tasks[0].problem.op_allowed)[:] = True
    right(policy, tasks, *rest)


def unstorable(right: Fit, policy: Any, tasks: Any, rng: Any, state: Any, save: Any) -> None:
    right(policy, tasks, rng, state, save and (lambda s: save({**s, "policy": copy.copy(policy)})))


LEARNS, SAME, RESUME = "check_learns", "check_same_seed_same_parameters", "check_resume_is_exact"
WRONG = [
    ("check_budget_is_kept", around(bypass), "reached the backend past the evaluator"),
    ("check_budget_is_kept", around(tireless), "asked for 100 more evaluations after the end of the budget"),
    ("check_budget_of_seconds", around(counts_down), "OverflowError: cannot convert float infinity to integer"),
    (LEARNS, around(stops_early), "returned after 480 of 4000 evaluations"),
    (LEARNS, Sampler, "mean of 64 episodes: 30 s before, 30 s after"),
    (LEARNS, around(descending), "mean of 64 episodes: 30 s before, 36 s after"),
    (LEARNS, partial(FakeTrainer, rate=1e-3), "the optimum 12.0 s"),
    ("check_every_task_gets_its_share", around(last_task_only), "chain12 got 2 of 4000 evaluations"),
    ("check_failing_placements", RawValue, "parameter 'logits' is not finite"),
    (SAME, around(lambda f, p, t, rng, *rest: f(p, t, np.random.default_rng(), *rest)), "gave different results"),
    (SAME, around(global_numpy), "drew from, or seeded, a global generator"),
    (SAME, around(meddling), "were changed: problem.op_allowed"),
    ("check_same_result_in_another_process", HashOrder, "two processes with other values of PYTHONHASHSEED"),
    (RESUME, around(unstorable), "state.state.policy of a checkpoint is a FakeLearnable"),
    (RESUME, around(lambda f, p, t, rng, state, save: f(p, t, rng, None, save)), "it ended differently"),
    (RESUME, Sampler, "makes no checkpoint"),
]


def test_passes_for_right_trainers(tmp_path: Path) -> None:
    assert skipped(TrainerContract, own_checks(TrainerContract), FakeTrainer, tmp_path) == set()
    other = partial(FakeTrainer, episodes=16, rate=0.5)
    assert skipped(TrainerContract, [LEARNS], other, tmp_path) == set()


def test_finds_planted_bugs(tmp_path: Path) -> None:
    catches(TrainerContract, own_checks(TrainerContract), WRONG, tmp_path)
