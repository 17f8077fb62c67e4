"""The contract of policies."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from placekit_core import BudgetExhausted, Grouping, Ledger, Placement, Policy, Problem, ResumablePolicy, Task
from placekit_core.contracts.interfaces import Plugin
from placekit_testing import fakes
from placekit_testing.children import digest, in_children
from placekit_testing.contract import Contract, Make, in_short, needs, together
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

BACKENDS = (False, True)
"""Whether the backend offers a compiled evaluation; most checks run on both kinds."""
SECONDS = 0.1


@dataclass(frozen=True, eq=False)
class Played:
    """The outcome of one call of `place`: the placement (None: ended by its budget), and the task afterwards."""

    placement: Placement | None
    task: Task

    def outcome(self) -> tuple[list[int] | None, list[float] | None, list[str]]:
        """Devices, priorities and history, for exact comparison."""
        p = self.placement
        priority = None if p is None or p.priority is None else p.priority.tolist()
        return None if p is None else p.device.tolist(), priority, rows(self.task)


def _outcomes(policy: Policy, budget: int) -> str:
    """The work of a child process: the outcomes on both kinds of backend."""
    problem = fakes.mixed()
    built(policy, [problem])
    outcomes = []
    for compiled in BACKENDS:
        task, placement = fakes.fake_task(problem, budget, 0.0, compiled), None
        with contextlib.suppress(BudgetExhausted):
            placement = policy.place(task, np.random.default_rng(0))
        outcomes.append(Played(placement, task).outcome())
    return digest(outcomes)


class PolicyContract(Contract, defines_checks=True):
    """The checks of a policy. Most of them place small problems on `fakes.FakeBackend`, where the optimum is known."""

    kind = "policy"
    interface: ClassVar[type[Plugin]] = Policy

    budget: ClassVar[int] = 60
    """Budget of most checks, in evaluations: enough for a checkpoint or two, but all checks take only seconds."""
    finds_optimum: ClassVar[bool] = False
    """It finds the optimum of a problem of 729 placements within `optimum_budget` evaluations."""
    optimum_budget: ClassVar[int] = 2000
    """Budget of the check of `finds_optimum`, in evaluations."""
    resumable: ClassVar[bool] = False
    """It is a `ResumablePolicy`."""

    def check_claims_what_it_is(self, make: Make) -> None:
        """`resumable` says whether it is a `ResumablePolicy`."""
        assert isinstance(make(), ResumablePolicy) == self.resumable, "set `resumable` in the test's class"

    def play(
        self,
        make: Make,
        problem: Problem,
        *,
        budget: int | Ledger | None = None,
        seed: int = 0,
        failing: float = 0.0,
        compiled: bool = False,
        before: Sequence[Problem] = (),
    ) -> Played:
        """Build the policy and let it place the problems `before`, and then `problem`, with the same instance.

        `compiled`: use a backend that offers a compiled evaluation.
        """
        policy = built(make(), [*before, problem], seed)
        for other in before:
            with contextlib.suppress(BudgetExhausted):
                policy.place(fakes.fake_task(other, self.budget, 0.0, compiled), np.random.default_rng(seed))
        task = fakes.fake_task(problem, self.budget if budget is None else budget, failing, compiled)
        try:
            placement = policy.place(task, np.random.default_rng(seed))
        except BudgetExhausted:
            assert task.evaluate.remaining <= 0, "BudgetExhausted, but there is budget left"
            return Played(None, task)
        assert isinstance(placement, Placement), f"place returned {type(placement).__name__}, not a Placement"
        problem.check(placement.batch())
        return Played(placement, task)

    @in_short
    def check_allowed_devices(self, make: Make) -> None:
        """On a mixed machine, every group is on an existing device that may run it."""
        for compiled in BACKENDS:
            self.play(make, fakes.mixed(), compiled=compiled)

    def check_placement_is_bound_to_its_problem(self, make: Make) -> None:
        """The placement has int16 devices [g], finite float32 priorities [g] or none, and the problem's fingerprints."""
        problem = fakes.diamond()
        placement = self.play(make, problem, budget=10 * self.budget).placement
        if placement is None:
            pytest.skip("always ends by its budget")
        fingerprints = problem.graph.fingerprint, problem.cluster.fingerprint
        assert (placement.graph, placement.cluster) == fingerprints, "it is bound to another graph or cluster"
        assert placement.device.dtype == np.int16
        assert placement.device.shape == (problem.g,)
        if placement.priority is not None:
            assert placement.priority.dtype == np.float32
            assert placement.priority.shape == (problem.g,)
            assert np.isfinite(placement.priority).all(), "a priority is not finite"

    def check_one_device(self, make: Make) -> None:
        """A machine with one device is no special case."""
        for compiled in BACKENDS:
            self.play(make, fakes.diamond(devices=1), compiled=compiled)

    def check_one_operation(self, make: Make) -> None:
        """A graph with one operation and no edges is no special case."""
        self.play(make, fakes.independent(1, devices=3))

    def check_sources_only(self, make: Make) -> None:
        """A graph without kernels, which takes no time, can be placed."""
        self.play(make, fakes.sources_only())

    def check_more_devices_than_operations(self, make: Make) -> None:
        """A machine wider than the graph: three operations, eight devices."""
        self.play(make, fakes.independent(3, devices=8))

    def check_more_operations_than_devices(self, make: Make) -> None:
        """A graph wider than the machine: forty independent operations, two devices."""
        self.play(make, fakes.independent(40, devices=2))

    def check_single_operations_as_groups(self, make: Make) -> None:
        """If every operation is a group of its own, all operations of a chain are placed."""
        self.play(make, fakes.chain())

    @in_short
    def check_groups_of_several_operations(self, make: Make) -> None:
        """If groups hold several operations (at least co-located ones), the groups are placed, not the operations."""
        problem = fakes.grouped()
        if make().level == "operation":  # for such a policy, a run groups only co-located operations
            problem = Problem.of(problem.graph, problem.cluster, Grouping.colocated(problem.graph))
        self.play(make, problem)

    @in_short
    def check_too_little_memory_for_one_device(self, make: Make) -> None:
        """If no device holds more than a third of the parameters, it returns a placement or ends by its budget."""
        for compiled in BACKENDS:
            self.play(make, fakes.tight(), compiled=compiled)

    def check_prefers_what_fits(self, make: Make) -> None:
        """If it has measured a placement that fits, it does not return one that it measured not to fit."""
        for seed in range(3):
            played = self.play(make, fakes.tight(), budget=10 * self.budget, seed=seed)
            if played.placement is not None and played.task.evaluate.best is not None:
                batch = played.placement.batch()
                session = fakes.session_of(played.task)
                measured = batch.device.tobytes() in session.seen
                assert session.evaluate(batch).fits[0] or not measured, (
                    "returned a placement that it measured not to fit, and had measured one that does"
                )

    @in_short
    def check_same_seed_same_result(self, make: Make) -> None:
        """Two new instances with equal generators give the same placement and history, to the last bit."""
        for problem, compiled in itertools.product((fakes.unequal(12), fakes.mixed()), BACKENDS):
            first, second = (self.play(make, problem, seed=7, compiled=compiled) for _ in range(2))
            assert first.outcome() == second.outcome(), "equal generators gave different results"

    def check_draws_from_its_generator_only(self, make: Make) -> None:
        """The global generators of numpy and Python neither influence the result nor are touched."""
        for compiled in BACKENDS:
            outcomes = []
            for seed in (1, 2):
                with global_random(seed) as untouched:
                    outcomes.append(self.play(make, fakes.unequal(12), compiled=compiled).outcome())
                    assert untouched(), "drew from, or seeded, a global generator"
            assert outcomes[0] == outcomes[1], "the result depends on a global generator"

    def check_same_result_in_another_process(self, make: Make) -> None:
        """Processes with another PYTHONHASHSEED, in which sets are ordered differently, give the same result."""
        first, second = in_children(make(), _outcomes, self.budget)
        assert first == second, "two processes with other values of PYTHONHASHSEED gave different results"

    def check_one_instance_places_several_problems(self, make: Make) -> None:
        """An instance that has placed another problem before gives the same result as a new instance."""
        problem, other = fakes.unequal(12), fakes.independent(5, devices=2)
        for compiled in BACKENDS:
            used = self.play(make, problem, before=[other], compiled=compiled)
            policy = built(make(), [other, problem])
            task = fakes.fake_task(problem, self.budget, 0.0, compiled)
            placement = None
            with contextlib.suppress(BudgetExhausted):
                placement = policy.place(task, np.random.default_rng(0))
            assert used.outcome() == Played(placement, task).outcome(), (
                "placing another problem before changed the result"
            )

    def check_problem_is_unchanged(self, make: Make) -> None:
        """It does not change the arrays of graph, grouping, cluster, costs and problem."""
        for compiled in BACKENDS:
            problem = fakes.mixed()
            before = contents(problem)
            self.play(make, problem, compiled=compiled)
            assert_unchanged(problem, before)

    @in_short
    def check_budget_is_kept(self, make: Make) -> None:
        """All evaluations, by the backend or its compiled kernel, are counted, and stay within the budget."""
        for compiled in BACKENDS:
            task = self.play(make, fakes.chain(), compiled=compiled).task
            assert task.evaluate.evaluations <= self.budget

            assert uncounted(task) <= 0, "reached the backend past the evaluator, or charged less than it used"

    def check_small_budgets(self, make: Make) -> None:
        """Budgets of 1, 2 and 7 evaluations are kept, and end it: it does not go on evaluating."""
        for budget, compiled in itertools.product((1, 2, 7), BACKENDS):
            task = self.play(make, fakes.chain(), budget=budget, compiled=compiled).task
            assert task.evaluate.evaluations <= budget

    def check_budget_of_seconds(self, make: Make) -> None:
        """If only seconds are limited, `remaining` is infinite, then 0; the policy places, and ends soon after that."""
        for compiled in BACKENDS:
            ledger = Ledger(None, seconds=SECONDS)
            self.play(make, fakes.chain(), budget=ledger, compiled=compiled)
            assert ledger.seconds < 100 * SECONDS, f"took {ledger.seconds:.1f} s of {SECONDS} s"

    def check_no_compiled_kernel(self, make: Make) -> None:
        """It works on a backend without a compiled evaluation (`kernel()` is None)."""
        assert fakes.fake_task(fakes.diamond()).evaluate.kernel() is None
        self.play(make, fakes.diamond())

    @in_short
    def check_failing_placements(self, make: Make) -> None:
        """It copes with placements that fail (the value is NaN) or do not fit: half of them, and all of them."""
        for failing, compiled in itertools.product((0.5, 1.0), BACKENDS):
            self.play(make, fakes.chain(), failing=failing, compiled=compiled)

    @needs("resumable")
    def check_checkpoints_can_be_stored(self, make: Make, tmp_path: Path) -> None:
        """The states given to `checkpoint` hold only arrays, numbers, strings, lists and dicts, as a checkpoint file can."""
        self._records(make, tmp_path)

    @needs("resumable")
    @in_short
    def check_resume_is_exact(self, make: Make, tmp_path: Path) -> None:
        """A new instance that continues from a checkpoint gives the placement and history of an uninterrupted run."""
        for compiled, recorder, whole in self._records(make, tmp_path):
            for saved in recorder.some():
                policy = built(make(), [whole.task.problem], seed=99)
                task = fakes.fake_task(whole.task.problem, whole.task.evaluate.ledger.limit or 0, 0.0, compiled)
                rng = np.random.default_rng(99)
                state = restore(saved, rng, [task], policy)
                placement = None
                with contextlib.suppress(BudgetExhausted):
                    assert isinstance(policy, ResumablePolicy)
                    placement = policy.place(task, rng, state, lambda _: None)
                assert Played(placement, task).outcome() == whole.outcome(), (
                    f"continued after {saved['evaluators'][0]['evaluations']} evaluations, it ended differently"
                )

    def _records(self, make: Make, folder: Path) -> list[tuple[bool, Recorder, Played]]:
        """An uninterrupted run on each of `BACKENDS`, with its checkpoints; there must be at least one.

        Skips the check for a policy that ends by itself within ten times `budget` without a checkpoint.
        """
        return [(compiled, *self._recorded(make, folder, compiled)) for compiled in BACKENDS]

    def _recorded(self, make: Make, folder: Path, compiled: bool) -> tuple[Recorder, Played]:
        problem = fakes.unequal(12)
        for budget in (self.budget, 10 * self.budget, 100 * self.budget):
            policy, rng = built(make(), [problem]), np.random.default_rng(0)
            task = fakes.fake_task(problem, budget, 0.0, compiled)
            recorder = Recorder(folder, rng, [task], policy)
            placement = None
            assert isinstance(policy, ResumablePolicy)
            with contextlib.suppress(BudgetExhausted):
                placement = policy.place(task, rng, None, recorder)
            ended = task.evaluate.evaluations < budget
            # compiled loops make thousands of evaluations between two checkpoints, in little time
            if ended or len(recorder.saved) > 1 or (budget > self.budget and not fakes.session_of(task).gave_kernel):
                break
        if ended and not recorder.saved:
            pytest.skip(f"ends after {task.evaluate.evaluations} evaluations, and makes no checkpoint")
        assert recorder.saved, f"makes no checkpoint within {budget} evaluations, and would go on"
        return recorder, Played(placement, task)

    @needs("finds_optimum")
    @in_short
    def check_finds_optimum(self, make: Make) -> None:
        """If `finds_optimum` is claimed: it finds the optimum of 729 placements within `optimum_budget` evaluations."""
        problem = fakes.unequal(6, devices=3)
        played = self.play(make, problem, budget=self.optimum_budget)
        session, best = fakes.session_of(played.task), played.task.evaluate.best
        values = [] if best is None else [best.value_s]
        if played.placement is not None:
            values.append(float(session.evaluate(played.placement.batch()).value_s[0]))
        assert min(values) == session.lower_bound(), f"found {min(values)} s, the optimum is {session.lower_bound()} s"

    test_placements = together(
        "Placements are correct on graphs and machines of all shapes.",
        check_claims_what_it_is,
        check_allowed_devices,
        check_placement_is_bound_to_its_problem,
        check_one_device,
        check_one_operation,
        check_sources_only,
        check_more_devices_than_operations,
        check_more_operations_than_devices,
        check_single_operations_as_groups,
        check_groups_of_several_operations,
    )
    test_memory_and_failures = together(
        "Placements that fail or do not fit are handled.",
        check_too_little_memory_for_one_device,
        check_prefers_what_fits,
        check_failing_placements,
    )
    test_same_results = together(
        "The result depends only on problem, options and generator.",
        check_same_seed_same_result,
        check_draws_from_its_generator_only,
        check_same_result_in_another_process,
        check_one_instance_places_several_problems,
        check_problem_is_unchanged,
    )
    test_budget = together(
        "The budget is kept, whatever it limits.",
        check_budget_is_kept,
        check_small_budgets,
        check_budget_of_seconds,
        check_no_compiled_kernel,
    )
    test_resume = together(
        "An interrupted run continues exactly.",
        check_checkpoints_can_be_stored,
        check_resume_is_exact,
    )
    test_search = together(
        "A search that claims it finds the optimum.",
        check_finds_optimum,
    )
