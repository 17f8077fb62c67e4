"""Observations of the contract classes: inputs before and after, checkpoints as in a run, results without seconds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator

from placekit_core import Labels, LearnablePolicy, Measurements, Placements, Policy, Problem, State, Task
from placekit_core.run.checkpoint import load_checkpoint, save_checkpoint
from placekit_core.run.evaluator import BudgetedEvaluator

PATIENCE = 100  # how often an evaluator may be called after the end of its budget
RESUMED = 12  # maximum number of checkpoints that a check resumes from


def built(policy: Policy, problems: Sequence[Problem], seed: int = 0) -> Policy:
    """`policy`; a learnable one gets its parameters initialized for `problems`, as at the start of a run."""
    if isinstance(policy, LearnablePolicy):
        policy.build(problems, np.random.default_rng([seed, 1]))
    return policy


def contents(problem: Problem) -> dict[str, bytes]:
    """The bytes of every array of the problem, its graph, grouping, cluster and costs, by name."""
    _ = problem.op_s, problem.group_s, problem.op_allowed, problem.allowed, problem.group_persistent_bytes
    _ = problem.grouped, problem.graph.op_edges, problem.cluster.memory_bytes, problem.cluster.streams
    owners = {
        "problem": problem, "graph": problem.graph, "grouping": problem.grouping, "costs": problem.costs,
        "cluster": problem.cluster, "routes": problem.cluster.routes, "grouped": problem.grouped,
    }  # fmt: skip
    found: dict[str, bytes] = {"cluster": problem.cluster.model_dump_json().encode()}
    for owner, holder in owners.items():
        for name, value in vars(holder).items():
            values = value.codes if isinstance(value, Labels) else value
            if isinstance(values, np.ndarray):
                found[f"{owner}.{name}"] = values.tobytes()
    return found


def assert_unchanged(problem: Problem, before: dict[str, bytes]) -> None:
    """Raise AssertionError, naming the arrays, if any of `before = contents(problem)` has changed."""
    after = contents(problem)
    changed = [name for name, value in before.items() if after[name] != value]
    assert not changed, f"these are inputs, and were changed: {', '.join(changed)}"


def evaluator_of(task: Task) -> BudgetedEvaluator:
    """The evaluator of a task, with its history and its state."""
    assert isinstance(task.evaluate, BudgetedEvaluator)
    return task.evaluate


def rows(task: Task) -> list[str]:
    """The history of a task's evaluator as text, exact, without the seconds."""
    return [repr([float(x) for x in (row[0], *row[2:])]) for row in evaluator_of(task).history]


@contextmanager
def global_random(seed: int) -> Iterator[Callable[[], bool]]:
    """Set numpy's and Python's global generators to `seed`; gives a function that tells whether they are untouched."""
    numpy_before, python_before = np.random.get_state(), random.getstate()
    np.random.seed(seed)
    random.seed(seed)
    at = repr(np.random.get_state()), random.getstate()
    try:
        yield lambda: (repr(np.random.get_state()), random.getstate()) == at
    finally:
        np.random.set_state(numpy_before)
        random.setstate(python_before)


class Patient(BudgetedEvaluator):
    """An evaluator that fails the test if it is called again and again after the end of the budget."""

    asked = 0
    again = 0  # placements that `charge` measured once more, without counting them

    def __call__(self, placements: Placements) -> Measurements:
        if self.remaining <= 0:
            self.asked += 1
            if self.asked > PATIENCE:
                pytest.fail(f"asked for {PATIENCE} more evaluations after the end of the budget")
        return super().__call__(placements)

    def charge(self, evaluations: int, best: Placements, mean_s: float = math.nan) -> None:
        self.again += len(best)
        super().charge(evaluations, best, mean_s)


def uncounted(task: Task) -> int:
    """Number of placements that the backend of a `fakes.fake_task` evaluated without counting against the budget."""
    evaluate = task.evaluate
    assert isinstance(evaluate, Patient)
    return int(evaluate.session.evaluated) - evaluate.again - evaluate.evaluations  # type: ignore[attr-defined]


class Recorder:
    """A checkpoint function that writes and reads like a run, and keeps one entry per checkpoint in `saved`."""

    def __init__(self, folder: Path, rng: Generator, tasks: Sequence[Task], policy: Policy) -> None:
        self.folder, self.rng, self.tasks, self.policy = folder, rng, tasks, policy
        self.saved: list[dict[str, Any]] = []

    def __call__(self, state: State) -> None:
        """Save a state. Raises TypeError that names an entry that no checkpoint file can hold."""
        parts: dict[str, Any] = {
            "state": dict(state),
            "rng": self.rng.bit_generator.state,
            "evaluators": [evaluator_of(t).state() for t in self.tasks],
        }
        if isinstance(self.policy, LearnablePolicy):
            parts["parameters"] = self.policy.state_dict()
        save_checkpoint(self.folder, parts)
        loaded = load_checkpoint(self.folder)
        assert loaded is not None
        self.saved.append(loaded)

    def some(self) -> list[dict[str, Any]]:
        """At most `RESUMED` of the checkpoints, the first and the last among them."""
        if not self.saved:
            return []
        return [self.saved[i] for i in np.unique(np.linspace(0, len(self.saved) - 1, RESUMED).astype(int))]


def restore(saved: dict[str, Any], rng: Generator, tasks: Sequence[Task], policy: Policy) -> Any:
    """Set everything to its state in a checkpoint, like a resumed run; returns the state of the policy or trainer."""
    rng.bit_generator.state = saved["rng"]
    for task, state in zip(tasks, saved["evaluators"], strict=True):
        evaluator_of(task).restore(state)
    if isinstance(policy, LearnablePolicy):
        policy.load_state_dict(saved["parameters"])
    return saved["state"]
