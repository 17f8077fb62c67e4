"""Contracts that only later plugins use, held to what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from placekit_core.errors import BudgetExhausted, ConfigError, PlacekitError
from placekit_core.interfaces import Rollouts
from placekit_core.placement import Placements
from placekit_core.problem import Problem, Task
from placekit_core.testing.fakes import FakeLearnable, FakeTrainer
from tests.kit_tools import listed


def test_intermediate_placements_of_an_improving_episode() -> None:
    rollouts = Rollouts(
        placements=Placements.of([[1, 0, 2], [0, 1, 0]]),
        group=np.array([[0, 2], [1, -1]], np.int32),
        device=np.array([[1, 2], [1, 0]], np.int16),
        log_prob=np.zeros((2, 2)),
        entropy=np.zeros((2, 2)),
        start=Placements.of([[0, 0, 0], [0, 0, 0]]),
    )
    expected = [[0, 0, 0], [1, 0, 0], [1, 0, 2], [0, 0, 0], [0, 1, 0], [0, 1, 0]]
    assert rollouts.intermediate().device.tolist() == expected


def test_intermediate_placements_need_a_start() -> None:
    empty = np.zeros((1, 0))
    rollouts = Rollouts(Placements.of([[0]]), empty.astype(np.int32), empty.astype(np.int16), empty, empty)
    with pytest.raises(PlacekitError, match="no intermediate placements"):
        rollouts.intermediate()


def test_a_learnable_policy_and_a_trainer_find_the_optimum(problem: Problem) -> None:
    """The contracts of learning hold together: rollouts, gradients, evaluator, and the end of the budget."""
    from placekit_core.evaluator import Evaluator, Ledger
    from tests.test_evaluator import Table

    evaluate = Evaluator(problem, Table(), Ledger(2000))
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
    from placekit_core.config import validate
    from placekit_core.pipeline import run
    from tests.test_config import minimal

    config = validate(minimal(policy={"name": "fake_learnable"}, budget={"evaluations": 400}, checkpoint_s=0.0))
    result = run(config, tmp_path / "run").summary
    assert result.trainer == "fake_trainer"
    assert result.evaluations == 400
    assert result.fits


def test_a_trainer_for_a_policy_with_nothing_to_train_is_an_error(learning: None, tmp_path: Path) -> None:
    from placekit_core.config import validate
    from placekit_core.pipeline import run
    from tests.test_config import minimal

    config = validate(minimal(trainer={"name": "fake_trainer"}))
    with pytest.raises(ConfigError, match="policy 'annealing' has nothing to train"):
        run(config, tmp_path / "run")
