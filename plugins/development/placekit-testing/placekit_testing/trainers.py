"""The contract of trainers: the checks that a trainer has to pass."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from placekit_core import BudgetExhausted, LearnablePolicy, Ledger, Problem, Trainer
from placekit_core.contracts.interfaces import Plugin
from placekit_testing import fakes
from placekit_testing.children import address_of, digest, in_children, load
from placekit_testing.contract import Contract, Make, in_short, together
from placekit_testing.observed import (
    Recorder,
    assert_unchanged,
    built,
    contents,
    global_random,
    restore,
    rows,
    uncounted,
)

SECONDS = 0.1
LEARNING = 4000
"""Budget of the checks of learning, in evaluations."""


class Trained:
    """A policy and the tasks to train it on, which share one budget, as in a run."""

    def __init__(
        self, policy: LearnablePolicy, problems: Sequence[Problem], budget: int | Ledger, failing: float = 0.0
    ) -> None:
        built(policy, problems)
        self.ledger = Ledger(budget) if isinstance(budget, int) else budget
        self.policy, self.tasks = policy, [fakes.fake_task(p, self.ledger, failing) for p in problems]

    def outcome(self) -> tuple[dict[str, bytes], list[list[str]]]:
        """Parameters and histories, for exact comparison."""
        parameters = {name: values.tobytes() for name, values in self.policy.state_dict().items()}
        return parameters, [rows(task) for task in self.tasks]

    def mean_s(self, explore: float) -> float:
        """Mean value of 64 placements that the policy samples for the first task."""
        task = self.tasks[0]
        placements = self.policy.rollout(task.problem, 64, np.random.default_rng(0), explore).placements
        return float(fakes.session_of(task).evaluate(placements).value_s.mean())


def _outcome(trainer: Trainer, policy: Sequence[str], budget: int) -> str:
    """What a child process computes: a digest of the parameters and histories after training on two tasks."""
    trained = Trained(load(*policy)(), [fakes.unequal(12), fakes.mixed()], budget)
    with contextlib.suppress(BudgetExhausted):
        trainer.fit(trained.policy, trained.tasks, np.random.default_rng(0))
    return digest(trained.outcome())


class TrainerContract(Contract):
    """The checks of a trainer. It trains `policy` on `fakes.FakeBackend`, where the optimum is known."""

    kind = "trainer"
    interface: ClassVar[type[Plugin]] = Trainer

    policy: ClassVar[type[LearnablePolicy]] = fakes.FakeLearnable
    """The policy that is trained; set another one if the trainer needs more than `FakeLearnable` has."""
    budget: ClassVar[int] = 200
    """Budget of most checks, in evaluations: enough for a few updates and checkpoints."""

    def train(
        self, make: Make, *problems: Problem, budget: int | Ledger | None = None, seed: int = 0, failing: float = 0.0
    ) -> Trained:
        """Train a new policy with a new trainer until that ends."""
        trained = Trained(self.policy(), problems, self.budget if budget is None else budget, failing)
        try:
            make().fit(trained.policy, trained.tasks, np.random.default_rng(seed))
        except BudgetExhausted:
            assert trained.ledger.remaining <= 0, "BudgetExhausted, but there is budget left"
        return trained

    @in_short
    def check_budget_is_kept(self, make: Make) -> None:
        """All evaluations are counted; a budget of any size is kept, and ends it: it does not go on evaluating."""
        for budget in (1, 2, 7, self.budget):
            [task] = self.train(make, fakes.chain(), budget=budget).tasks
            assert task.evaluate.evaluations <= budget
            assert uncounted(task) <= 0, "reached the backend past the evaluator"

    def check_budget_of_seconds(self, make: Make) -> None:
        """If only seconds are limited, `remaining` is infinite, then 0; the trainer trains, and ends soon after that."""
        ledger = Ledger(None, seconds=SECONDS)
        self.train(make, fakes.chain(), budget=ledger)
        assert ledger.seconds < 100 * SECONDS, f"took {ledger.seconds:.1f} s of {SECONDS} s"

    @in_short
    def check_learns(self, make: Make) -> None:
        """It trains until the budget ends and finds the optimum; the policy's own placements, too, are better than before."""
        problem = fakes.unequal(12)
        untrained, trained = Trained(self.policy(), [problem], 1), self.train(make, problem, budget=LEARNING)
        used = trained.ledger
        assert used.remaining <= 0, f"returned after {used.evaluations} of {LEARNING} evaluations"
        for explore in (0.0, 1.0):
            before, after = untrained.mean_s(explore), trained.mean_s(explore)
            assert after < before, f"mean of 64 episodes: {before:.6g} s before, {after:.6g} s after"
        best, optimum_s = trained.tasks[0].evaluate.best, fakes.session_of(trained.tasks[0]).lower_bound()
        assert best is not None
        assert best.value_s == optimum_s, f"the best is {best.value_s} s, the optimum {optimum_s} s"

    def check_every_task_gets_its_share(self, make: Make) -> None:
        """Each of several tasks of different sizes gets at least half of an equal share of the evaluations."""
        problems = fakes.chain(), fakes.independent(3, devices=4), fakes.mixed()
        tasks = self.train(make, *problems, budget=LEARNING).tasks
        total = sum(task.evaluate.evaluations for task in tasks)
        for task in tasks:
            evaluations, name = task.evaluate.evaluations, task.problem.graph.name
            assert evaluations >= total / len(tasks) / 2, f"{name} got {evaluations} of {total} evaluations"

    def check_failing_placements(self, make: Make) -> None:
        """It copes with placements that fail or do not fit, half of them or all of them; parameters stay finite."""
        for failing in (0.5, 1.0):
            trained = self.train(make, fakes.chain(), failing=failing)
            for name, values in trained.policy.state_dict().items():
                assert np.isfinite(values).all(), f"parameter {name!r} is not finite"

    @in_short
    def check_same_seed_same_parameters(self, make: Make) -> None:
        """Equal generators give the same bits; global generators are neither used nor touched; the problem is unchanged."""
        outcomes, problem = [], fakes.mixed()
        before = contents(problem)
        for seed in (1, 2):
            with global_random(seed) as untouched:
                outcomes.append(self.train(make, problem, seed=7).outcome())
                assert untouched(), "drew from, or seeded, a global generator"
        assert outcomes[0] == outcomes[1], "equal generators gave different results"
        assert_unchanged(problem, before)

    def check_same_result_in_another_process(self, make: Make) -> None:
        """Processes with another PYTHONHASHSEED, in which sets are ordered differently, give the same result."""
        first, second = in_children(make(), _outcome, address_of(self.policy), self.budget)
        assert first == second, "two processes with other values of PYTHONHASHSEED gave different results"

    @in_short
    def check_resume_is_exact(self, make: Make, tmp_path: Path) -> None:
        """Its checkpoints can be stored; continued from one, a new trainer gives the result of an uninterrupted run."""
        problems, rng = [fakes.unequal(12), fakes.chain()], np.random.default_rng(0)
        whole = Trained(self.policy(), problems, self.budget)
        recorder = Recorder(tmp_path, rng, whole.tasks, whole.policy)
        with contextlib.suppress(BudgetExhausted):
            make().fit(whole.policy, whole.tasks, rng, None, recorder)
        assert recorder.saved, f"makes no checkpoint within {self.budget} evaluations"
        for saved in recorder.some():
            again, rng = Trained(self.policy(), problems, self.budget), np.random.default_rng(99)
            state = restore(saved, rng, again.tasks, again.policy)
            with contextlib.suppress(BudgetExhausted):
                make().fit(again.policy, again.tasks, rng, state, lambda _: None)
            assert again.outcome() == whole.outcome(), "continued from a checkpoint, it ended differently"

    test_budget = together(
        "The budget is kept, whether it limits evaluations or seconds.", check_budget_is_kept, check_budget_of_seconds
    )
    test_learning = together(
        "The policy learns, on all tasks and whatever fails.",
        check_learns,
        check_every_task_gets_its_share,
        check_failing_placements,
    )
    test_same_results = together(
        "The result depends only on problems, options and generator, also when a run is resumed.",
        check_same_seed_same_parameters,
        check_same_result_in_another_process,
        check_resume_is_exact,
    )
