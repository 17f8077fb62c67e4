"""Contracts that only later plugins use, held to what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from placekit_testing.fakes import FakeLearnable, FakeTrainer
from placekit_testing.registries import listed

from placekit_core import BudgetExhausted, ConfigError, Problem, Task


def test_a_learnable_policy_and_a_trainer_find_the_optimum(problem: Problem) -> None:
    """The contracts of learning hold together: rollouts, gradients, evaluator, and the end of the budget."""
    from placekit_core import Ledger
    from placekit_core.run.evaluator import BudgetedEvaluator
    from tests.test_evaluator import Table

    evaluate = BudgetedEvaluator(problem, Table(), Ledger(2000))
    task = Task(problem, evaluate)
    policy, rng = FakeLearnable(), np.random.default_rng(0)
    policy.build([problem], rng)
    with pytest.raises(BudgetExhausted):
        FakeTrainer().fit(policy, [task], rng)
    assert evaluate.evaluations == 2000
    placement = policy.place(task, rng)
    assert placement.device.tolist() == [0] * problem.g, "the table's optimum: nothing on device 1"
    assert evaluate.best is not None
    assert evaluate.best.value_s == 1.0


@pytest.fixture
def learning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry of this process with one more learnable policy and its trainer."""
    listed(monkeypatch, tmp_path, "policy", FakeLearnable, trainer="fake_trainer")
    listed(monkeypatch, tmp_path, "trainer", FakeTrainer)


def test_the_pipeline_trains_and_then_places(learning: None, tmp_path: Path) -> None:
    from tests.runs import minimal, run, validate

    config = validate(minimal(policy={"name": "fake_learnable"}, budget={"evaluations": 400}, checkpoint_s=0.0))
    result = run(config, tmp_path / "run").summary
    assert result.trainer == "fake_trainer"
    assert result.evaluations == 400
    assert result.fits


def test_a_trainer_for_a_policy_with_nothing_to_train_is_an_error(learning: None, tmp_path: Path) -> None:
    from tests.runs import minimal, run, validate

    config = validate(minimal(trainer={"name": "fake_trainer"}))
    with pytest.raises(ConfigError, match="policy 'annealing' has nothing to train"):
        run(config, tmp_path / "run")
