"""The contract of trainers."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from placekit_core import BudgetExhausted, LearnablePolicy, Ledger, Placements, Problem, Task, Trainer
from placekit_core.contracts.interfaces import Plugin
from placekit_testing import fakes
from placekit_testing.children import address_of, digest, in_children, load
from placekit_testing.contract import Contract, Make, in_short, together
from placekit_testing.observed import (
    Recorder,
    assert_unchanged,
    built,
    contents,
    evaluator_of,
    global_random,
    restore,
    rows,
    uncounted,
)

SECONDS = 0.1


class Trained:
    """A policy and the tasks that it was trained on; the tasks share one budget, as in a run."""

    def __init__(
        self, policy: LearnablePolicy, problems: Sequence[Problem], budget: int | Ledger, failing: float = 0.0
    ) -> None:
        built(policy, problems)
        ledger = Ledger(budget) if isinstance(budget, int) else budget
        self.policy, self.tasks = policy, [fakes.fake_task(p, ledger, failing) for p in problems]
        self.evaluations = ledger

    def outcome(self) -> tuple[dict[str, bytes], list[list[str]]]:
        """Parameters and histories, for exact comparison."""
        parameters = {name: values.tobytes() for name, values in self.policy.state_dict().items()}
        return parameters, [rows(task) for task in self.tasks]


def _outcome(trainer: Trainer, policy: Sequence[str], budget: int) -> str:
    """The work of a child process: the parameters and histories of two tasks."""
    trained = Trained(load(*policy)(), [fakes.unequal(12), fakes.mixed()], budget)
    with contextlib.suppress(BudgetExhausted):
        trainer.fit(trained.policy, trained.tasks, np.random.default_rng(0))
    return digest(trained.outcome())


class TrainerContract(Contract, defines_checks=True):
    """The checks of a trainer. It trains `policy` on `fakes.FakeBackend`, where the optimum is known."""

    kind = "trainer"
    interface: ClassVar[type[Plugin]] = Trainer

    policy: ClassVar[type[LearnablePolicy]] = fakes.FakeLearnable
    """The policy that is trained; a trainer that needs more than `FakeLearnable` offers sets another one."""
    budget: ClassVar[int] = 200
    """Budget of most checks, in evaluations: enough for a few updates and checkpoints."""
    finds_optimum: ClassVar[bool] = True
    """It finds the optimum of a problem of 531,441 placements within `optimum_budget` evaluations."""
    optimum_budget: ClassVar[int] = 4000
    """Budget of the checks of learning, in evaluations."""

    def train(
        self, make: Make, *problems: Problem, budget: int | Ledger | None = None, seed: int = 0, failing: float = 0.0
    ) -> Trained:
        """A new policy, trained by a new trainer until it ends."""
        trained = Trained(self.policy(), problems, self.budget if budget is None else budget, failing)
        try:
            make().fit(trained.policy, trained.tasks, np.random.default_rng(seed))
        except BudgetExhausted:
            assert trained.evaluations.remaining <= 0, "BudgetExhausted, but there is budget left"
        return trained

    @in_short
    def check_budget_is_kept(self, make: Make) -> None:
        """The backend evaluates no more placements than the evaluators count, and these stay within the budget."""
        [task] = self.train(make, fakes.chain()).tasks
        assert task.evaluate.evaluations <= self.budget
        assert uncounted(task) <= 0, "reached the backend past the evaluator"

    def check_small_budgets(self, make: Make) -> None:
        """Budgets of 1, 2 and 7 evaluations are kept, and end it: it does not go on evaluating."""
        for budget in (1, 2, 7):
            trained = self.train(make, fakes.chain(), budget=budget)
            assert trained.evaluations.evaluations <= budget

    def check_budget_of_seconds(self, make: Make) -> None:
        """If only seconds are limited, `remaining` is infinite, then 0; the trainer trains, and ends soon after that."""
        ledger = Ledger(None, seconds=SECONDS)
        self.train(make, fakes.chain(), budget=ledger)
        assert ledger.seconds < 100 * SECONDS, f"took {ledger.seconds:.1f} s of {SECONDS} s"

    def check_ends_by_its_budget(self, make: Make) -> None:
        """It goes on until the evaluators have no budget left, because the run decides how long to train."""
        used = self.train(make, fakes.unequal(12), budget=self.optimum_budget).evaluations
        assert used.remaining <= 0, f"returned after {used.evaluations} of {self.optimum_budget} evaluations"

    @in_short
    def check_finds_optimum(self, make: Make) -> None:
        """If `finds_optimum` is claimed (the default): the optimum is among the placements evaluated."""
        [task] = self.train(make, fakes.unequal(12), budget=self.optimum_budget).tasks
        best, optimum_s = task.evaluate.best, fakes.session_of(task).lower_bound()
        assert best is not None
        assert best.value_s == optimum_s, f"the best is {best.value_s} s, the optimum {optimum_s} s"

    @in_short
    def check_policy_learns(self, make: Make) -> None:
        """After training, the policy's own placements are better than before, with and without exploration."""
        problem = fakes.unequal(12)
        untrained = Trained(self.policy(), [problem], 1)
        trained = self.train(make, problem, budget=self.optimum_budget)
        for explore in (0.0, 1.0):
            before, after = (_mean_s(t.policy, t.tasks[0], explore) for t in (untrained, trained))
            assert after < before, f"mean of 64 episodes: {before:.6g} s before, {after:.6g} s after"

    def check_best_never_worsens(self, make: Make) -> None:
        """The best value so far in the history never rises, and equals the value of the best placement kept."""
        [task] = self.train(make, fakes.unequal(12)).tasks
        best_s = np.asarray(evaluator_of(task).history)[:, 4]
        assert (np.diff(best_s) <= 0).all(), "the best so far got worse"
        assert task.evaluate.best is not None
        assert task.evaluate.best.value_s == best_s[-1], "the best placement that was seen is not the one kept"

    def check_every_task_gets_its_share(self, make: Make) -> None:
        """Each of several tasks of different sizes gets at least half of an equal share of the evaluations."""
        problems = fakes.chain(), fakes.independent(3, devices=4), fakes.mixed()
        tasks = self.train(make, *problems, budget=self.optimum_budget).tasks
        total = sum(task.evaluate.evaluations for task in tasks)
        for task in tasks:
            evaluations, name = task.evaluate.evaluations, task.problem.graph.name
            assert evaluations >= total / len(tasks) / 2, f"{name} got {evaluations} of {total} evaluations"

    def check_same_result_in_another_process(self, make: Make) -> None:
        """Processes with another PYTHONHASHSEED, in which sets are ordered differently, give the same result."""
        first, second = in_children(make(), _outcome, address_of(self.policy), self.budget)
        assert first == second, "two processes with other values of PYTHONHASHSEED gave different results"

    def check_failing_placements(self, make: Make) -> None:
        """It copes with placements that fail or do not fit, half of them or all of them; parameters stay finite."""
        for failing in (0.5, 1.0):
            trained = self.train(make, fakes.chain(), failing=failing)
            for name, values in trained.policy.state_dict().items():
                assert np.isfinite(values).all(), f"parameter {name!r} is not finite"

    @in_short
    def check_same_seed_same_parameters(self, make: Make) -> None:
        """Equal generators give equal parameters and histories, to the last bit."""
        first, second = (self.train(make, fakes.unequal(12), seed=7) for _ in range(2))
        assert first.outcome() == second.outcome(), "equal generators gave different results"

    def check_draws_from_its_generator_only(self, make: Make) -> None:
        """The global generators of numpy and Python neither influence the result nor are touched."""
        outcomes = []
        for seed in (1, 2):
            with global_random(seed) as untouched:
                outcomes.append(self.train(make, fakes.unequal(12)).outcome())
                assert untouched(), "drew from, or seeded, a global generator"
        assert outcomes[0] == outcomes[1], "the result depends on a global generator"

    def check_problem_is_unchanged(self, make: Make) -> None:
        """It does not change the arrays of graph, grouping, cluster, costs and problem."""
        problem = fakes.mixed()
        before = contents(problem)
        self.train(make, problem)
        assert_unchanged(problem, before)

    def check_checkpoints_can_be_stored(self, make: Make, tmp_path: Path) -> None:
        """The states given to `checkpoint` hold only arrays, numbers, strings, lists and dicts, as a checkpoint file can."""
        self._recorded(make, tmp_path)

    @in_short
    def check_resume_is_exact(self, make: Make, tmp_path: Path) -> None:
        """A new trainer that continues from a checkpoint gives the parameters and history of an uninterrupted run."""
        recorder, whole = self._recorded(make, tmp_path)
        for saved in recorder.some():
            again = Trained(self.policy(), [t.problem for t in whole.tasks], self.budget)
            rng = np.random.default_rng(99)
            state = restore(saved, rng, again.tasks, again.policy)
            with contextlib.suppress(BudgetExhausted):
                make().fit(again.policy, again.tasks, rng, state, lambda _: None)
            assert again.outcome() == whole.outcome(), "continued from a checkpoint, it ended differently"

    def _recorded(self, make: Make, folder: Path) -> tuple[Recorder, Trained]:
        """An uninterrupted run on two tasks with all its checkpoints; there must be at least one."""
        whole = Trained(self.policy(), [fakes.unequal(12), fakes.chain()], self.budget)
        rng = np.random.default_rng(0)
        recorder = Recorder(folder, rng, whole.tasks, whole.policy)
        with contextlib.suppress(BudgetExhausted):
            make().fit(whole.policy, whole.tasks, rng, None, recorder)
        assert recorder.saved, f"makes no checkpoint within {self.budget} evaluations"
        return recorder, whole

    test_budget = together(
        "The budget is kept, and used up.",
        check_budget_is_kept,
        check_small_budgets,
        check_budget_of_seconds,
        check_ends_by_its_budget,
    )
    test_learning = together(
        "The policy learns, on all tasks and whatever fails.",
        check_finds_optimum,
        check_policy_learns,
        check_best_never_worsens,
        check_every_task_gets_its_share,
        check_failing_placements,
    )
    test_same_results = together(
        "The result depends only on problems, options and generator.",
        check_same_result_in_another_process,
        check_same_seed_same_parameters,
        check_draws_from_its_generator_only,
        check_problem_is_unchanged,
    )
    test_resume = together(
        "An interrupted run continues exactly.",
        check_checkpoints_can_be_stored,
        check_resume_is_exact,
    )


def _mean_s(policy: LearnablePolicy, task: Task, explore: float) -> float:
    placements: Placements = policy.rollout(task.problem, 64, np.random.default_rng(0), explore).placements
    return float(fakes.session_of(task).evaluate(placements).value_s.mean())
