"""The contract of policies: the checks that a policy has to pass."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from numpy.random import Generator

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
    """The outcome of one call of `place`: the placement (None if the budget ended it), and the task afterwards."""

    placement: Placement | None
    task: Task

    def outcome(self) -> tuple[list[int] | None, list[float] | None, list[str]]:
        """Devices, priorities and history, for exact comparison."""
        p = self.placement
        priority = None if p is None or p.priority is None else p.priority.tolist()
        return None if p is None else p.device.tolist(), priority, rows(self.task)


def played(policy: Policy, task: Task, rng: Generator, *resume: object) -> Played:
    """Let a policy, which is built already, place the problem of a task until it ends or the budget does."""
    try:
        placement = policy.place(task, rng, *resume)
    except BudgetExhausted:
        assert task.evaluate.remaining <= 0, "BudgetExhausted, but there is budget left"
        return Played(None, task)
    assert isinstance(placement, Placement), f"place returned {type(placement).__name__}, not a Placement"
    task.problem.check(placement.batch())
    return Played(placement, task)


def _outcomes(policy: Policy, budget: int) -> str:
    """What a child process computes: a digest of the outcomes on both kinds of backend."""
    problem = fakes.mixed()
    built(policy, [problem])
    tasks = [fakes.fake_task(problem, budget, 0.0, compiled) for compiled in BACKENDS]
    return digest([played(policy, task, np.random.default_rng(0)).outcome() for task in tasks])


class PolicyContract(Contract):
    """The checks of a policy. Most of them place small problems on `fakes.FakeBackend`, where the optimum is known."""

    kind = "policy"
    interface: ClassVar[type[Plugin]] = Policy

    budget: ClassVar[int] = 60
    """Budget of most checks, in evaluations: enough for a checkpoint or two, but all checks take only seconds."""
    finds_optimum: ClassVar[bool] = False
    """Set it if the policy finds the optimum of a problem with 729 placements within 2,000 evaluations."""

    def play(
        self, make: Make, problem: Problem, *, budget: int | Ledger | None = None, seed: int = 0, failing: float = 0.0,
        compiled: bool = False, before: Problem | None = None,
    ) -> Played:  # fmt: skip
        """Build the policy, and let the same instance place the problem `before`, if any, and then `problem`.

        `compiled`: on a backend that offers a compiled evaluation.
        """
        policy = built(make(), [p for p in (before, problem) if p is not None], seed)
        if before is not None:
            played(policy, fakes.fake_task(before, self.budget, 0.0, compiled), np.random.default_rng(seed))
        task = fakes.fake_task(problem, self.budget if budget is None else budget, failing, compiled)
        return played(policy, task, np.random.default_rng(seed))

    @in_short
    def check_allowed_devices(self, make: Make) -> None:
        """On a mixed machine, every group is on an existing device that may run it; the problem is not changed."""
        for compiled in BACKENDS:
            problem = fakes.mixed()
            before = contents(problem)
            self.play(make, problem, compiled=compiled)
            assert_unchanged(problem, before)

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

    def check_unusual_graphs_and_machines(self, make: Make) -> None:
        """Graphs of one operation or no kernel, machines of one device or of many are placed."""
        for compiled in BACKENDS:
            self.play(make, fakes.diamond(devices=1), compiled=compiled)
        self.play(make, fakes.independent(1, devices=3))
        self.play(make, fakes.sources_only())
        self.play(make, fakes.independent(3, devices=8))

    @in_short
    def check_groups(self, make: Make) -> None:
        """Groups are placed, not operations, whether each holds one operation or several (at least co-located ones)."""
        self.play(make, fakes.chain())
        problem = fakes.grouped()
        if make().level == "operation":  # for such a policy, a run groups only co-located operations
            problem = Problem.of(problem.graph, problem.cluster, Grouping.colocated(problem.graph))
        self.play(make, problem)

    @in_short
    def check_too_little_memory_for_one_device(self, make: Make) -> None:
        """If no device holds everything, it places or ends by its budget; it prefers a placement that was measured to fit."""
        for seed, compiled in itertools.product(range(2), BACKENDS):
            result = self.play(make, fakes.tight(), budget=10 * self.budget, seed=seed, compiled=compiled)
            if result.placement is not None and result.task.evaluate.best is not None:
                batch, session = result.placement.batch(), fakes.session_of(result.task)
                measured = batch.device.tobytes() in session.seen
                assert session.evaluate(batch).fits[0] or not measured, (
                    "returned a placement that does not fit, although it had evaluated one that fits"
                )

    @in_short
    def check_failing_placements(self, make: Make) -> None:
        """It copes with placements that fail (the value is NaN) or do not fit: half of them, and all of them."""
        for failing, compiled in itertools.product((0.5, 1.0), BACKENDS):
            self.play(make, fakes.chain(), failing=failing, compiled=compiled)

    @in_short
    def check_same_seed_same_result(self, make: Make) -> None:
        """New instances with equal generators give the same bits; the global generators are neither used nor touched."""
        for problem, compiled in itertools.product((fakes.unequal(12), fakes.mixed()), BACKENDS):
            outcomes = []
            for seed in (1, 2):
                with global_random(seed) as untouched:
                    outcomes.append(self.play(make, problem, seed=7, compiled=compiled).outcome())
                    assert untouched(), "drew from, or seeded, a global generator"
            assert outcomes[0] == outcomes[1], "equal generators gave different results"

    def check_same_result_in_another_process(self, make: Make) -> None:
        """Processes with another PYTHONHASHSEED, in which sets are ordered differently, give the same result."""
        first, second = in_children(make(), _outcomes, self.budget)
        assert first == second, "two processes with other values of PYTHONHASHSEED gave different results"

    def check_one_instance_places_several_problems(self, make: Make) -> None:
        """An instance that has placed another problem before gives the same result as a new instance."""
        problem, other = fakes.unequal(12), fakes.independent(5, devices=2)
        for compiled in BACKENDS:
            used = self.play(make, problem, before=other, compiled=compiled)
            task = fakes.fake_task(problem, self.budget, 0.0, compiled)
            new = played(built(make(), [other, problem]), task, np.random.default_rng(0))
            assert used.outcome() == new.outcome(), "placing another problem before changed the result"

    @in_short
    def check_budget_is_kept(self, make: Make) -> None:
        """All evaluations, by the backend or its compiled kernel, are counted; a budget of any size is kept, and ends it."""
        for budget, compiled in itertools.product((1, 2, 7, self.budget), BACKENDS):
            task = self.play(make, fakes.chain(), budget=budget, compiled=compiled).task
            assert task.evaluate.evaluations <= budget
            assert uncounted(task) <= 0, "reached the backend past the evaluator, or charged less than it used"

    def check_budget_of_seconds(self, make: Make) -> None:
        """If only seconds are limited, `remaining` is infinite, then 0; the policy places, and ends soon after that."""
        for compiled in BACKENDS:
            ledger = Ledger(None, seconds=SECONDS)
            self.play(make, fakes.chain(), budget=ledger, compiled=compiled)
            assert ledger.seconds < 100 * SECONDS, f"took {ledger.seconds:.1f} s of {SECONDS} s"

    @needs(ResumablePolicy)
    @in_short
    def check_resume_is_exact(self, make: Make, tmp_path: Path) -> None:
        """Its checkpoints can be stored; continued from one, a new instance gives the result of an uninterrupted run."""
        for compiled in BACKENDS:
            recorder, whole = self._recorded(make, tmp_path, compiled)
            for saved in recorder.some():
                policy, rng = built(make(), [whole.task.problem], seed=99), np.random.default_rng(99)
                task = fakes.fake_task(whole.task.problem, whole.task.evaluate.ledger.limit or 0, 0.0, compiled)
                state = restore(saved, rng, [task], policy)
                again = played(policy, task, rng, state, lambda _: None)
                assert again.outcome() == whole.outcome(), (
                    f"continued after {saved['evaluators'][0]['evaluations']} evaluations, it ended differently"
                )

    def _recorded(self, make: Make, folder: Path, compiled: bool) -> tuple[Recorder, Played]:
        """An uninterrupted run with its checkpoints. Skips the check if the policy ends by itself before a checkpoint."""
        problem = fakes.unequal(12)
        for budget in (self.budget, 10 * self.budget, 100 * self.budget):
            policy, rng = built(make(), [problem]), np.random.default_rng(0)
            task = fakes.fake_task(problem, budget, 0.0, compiled)
            recorder = Recorder(folder, rng, [task], policy)
            whole = played(policy, task, rng, None, recorder)
            ended = task.evaluate.evaluations < budget
            # compiled loops make thousands of evaluations between two checkpoints, in little time
            if ended or len(recorder.saved) > 1 or (budget > self.budget and not fakes.session_of(task).gave_kernel):
                break
        if ended and not recorder.saved:
            pytest.skip(f"ends after {task.evaluate.evaluations} evaluations, and makes no checkpoint")
        assert recorder.saved, f"makes no checkpoint within {budget} evaluations, and would go on"
        return recorder, whole

    @in_short
    def check_finds_optimum(self, make: Make) -> None:
        """If `finds_optimum` is claimed: it finds the optimum of 729 placements within 2,000 evaluations."""
        if not self.finds_optimum:
            pytest.skip("the test class does not claim it")
        result = self.play(make, fakes.unequal(6, devices=3), budget=2000)
        session, best = fakes.session_of(result.task), result.task.evaluate.best
        values = [] if best is None else [best.value_s]
        if result.placement is not None:
            values.append(float(session.evaluate(result.placement.batch()).value_s[0]))
        assert min(values) == session.lower_bound(), f"found {min(values)} s, the optimum is {session.lower_bound()} s"

    test_placements = together(
        "Placements are correct on graphs and machines of all shapes, and good where the class claims it.",
        check_allowed_devices,
        check_placement_is_bound_to_its_problem,
        check_unusual_graphs_and_machines,
        check_groups,
        check_too_little_memory_for_one_device,
        check_failing_placements,
        check_finds_optimum,
    )
    test_same_results = together(
        "The result depends only on the problem, the options and the generator, also when a run is resumed.",
        check_same_seed_same_result,
        check_same_result_in_another_process,
        check_one_instance_places_several_problems,
        check_resume_is_exact,
    )
    test_budget = together(
        "The budget is kept, whether it limits evaluations or seconds.", check_budget_is_kept, check_budget_of_seconds
    )
