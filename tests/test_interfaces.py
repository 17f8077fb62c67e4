"""Contracts that only later plugins use, held to what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray

from placekit_core.errors import BudgetExhausted, ConfigError, PlacekitError
from placekit_core.interfaces import LearnablePolicy, Rollouts, Trainer
from placekit_core.placement import Placements
from placekit_core.problem import Problem, Task


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


class Softmax(LearnablePolicy):
    """Independent softmax per group: the smallest learnable policy that holds the whole contract."""

    name = "softmax"

    def build(self, problems: Sequence[Problem], rng: Generator) -> None:
        self.logits = np.zeros((problems[0].g, problems[0].cluster.size))

    def _p(self) -> NDArray[np.float64]:
        e = np.exp(self.logits - self.logits.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        p, g = self._p(), problem.g
        draw = (rng.random((n, g, 1)) > p.cumsum(axis=1)).sum(axis=2)
        if explore == 0.0:
            draw = np.broadcast_to(p.argmax(axis=1), (n, g))
        group = np.broadcast_to(np.arange(g, dtype=np.int32), (n, g))
        entropy = np.broadcast_to(-(p * np.log(p)).sum(axis=1), (n, g))
        return Rollouts(Placements.of(draw), group, draw.astype(np.int16), np.log(p[group, draw]), entropy)

    def gradients(
        self,
        problem: Problem,
        rollouts: Rollouts,
        weight: NDArray[np.float64],
        entropy_weight: float = 0.0,
        **terms: Any,
    ) -> dict[str, NDArray[Any]]:
        one = np.eye(problem.cluster.size)[rollouts.device]
        return {"logits": (weight[:, :, None] * (one - self._p())).sum(axis=0)}

    def apply(self, steps: Mapping[str, NDArray[Any]]) -> None:
        self.logits = self.logits + steps["logits"]

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {"logits": self.logits}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.logits = np.array(state["logits"])


class Reinforce(Trainer):
    """Eight episodes per update, their mean as the baseline."""

    name = "tiny_reinforce"

    def fit(
        self, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, state: Any = None, checkpoint: Any = None
    ) -> None:
        while True:
            for task in tasks:
                r = policy.rollout(task.problem, 8, rng, explore=1.0)
                score = task.evaluate.scores(task.evaluate(r.placements))
                advantage = (score.mean() - score) / (score.std() + 1e-12)
                weight = np.repeat(advantage[:, None], task.problem.g, axis=1)
                policy.apply(policy.gradients(task.problem, r, weight))
                if checkpoint:
                    checkpoint({})


def test_a_learnable_policy_and_a_trainer_find_the_optimum(problem: Problem) -> None:
    """The contracts of learning hold together: rollouts, gradients, evaluator, and the end of the budget."""
    from placekit_core.evaluator import Evaluator, Ledger
    from tests.test_evaluator import Table

    evaluate = Evaluator(problem, Table(), Ledger(2000))
    task = Task(problem, evaluate)
    policy, rng = Softmax(), np.random.default_rng(0)
    policy.build([problem], rng)
    with pytest.raises(BudgetExhausted):
        Reinforce().fit(policy, [task], rng)
    assert evaluate.evaluations == 2000
    placement = policy.place(task, rng)
    assert placement.device.tolist() == [0] * problem.g, "the table's optimum: nothing on device 1"
    assert evaluate.best is not None
    assert evaluate.best.value_s == 1.0


def plugin_source() -> str:
    return """
from placekit_core.hookspecs import Component, hookimpl
from placekit_core.interfaces import Options

@hookimpl
def placekit_policies():
    return [Component(name="softmax", summary="learns", config=Options, target="tests.test_interfaces:Softmax",
                      trainer="tiny_reinforce")]

@hookimpl
def placekit_trainers():
    return [Component(name="tiny_reinforce", summary="trains", config=Options, target="tests.test_interfaces:Reinforce")]
"""


@pytest.fixture
def learning(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry of this process with one more plugin: a learnable policy and its trainer."""
    import importlib

    from placekit_core import registry

    (tmp_path / "learning_plugin.py").write_text(plugin_source())
    monkeypatch.syspath_prepend(str(tmp_path))
    found = registry.discover()
    found.add("learning", importlib.import_module("learning_plugin"), "placekit-learning", "0.0.0")
    monkeypatch.setattr(registry.installed, "__wrapped__", lambda: found, raising=False)
    for module in ("registry", "config", "pipeline", "cli.hydra_app"):
        monkeypatch.setattr(f"placekit_core.{module}.installed", lambda: found)


def test_the_pipeline_trains_and_then_places(learning: None, tmp_path: Any) -> None:
    from placekit_core.config import validate
    from placekit_core.pipeline import run
    from tests.test_config import minimal

    config = validate(minimal(policy={"name": "softmax"}, budget={"evaluations": 400}, checkpoint_s=0.0))
    result = run(config, tmp_path / "run")
    assert result.trainer == "tiny_reinforce"
    assert result.evaluations == 400
    assert result.fits


def test_a_trainer_for_a_policy_with_nothing_to_train_is_an_error(learning: None, tmp_path: Any) -> None:
    from placekit_core.config import validate
    from placekit_core.pipeline import run
    from tests.test_config import minimal

    config = validate(minimal(trainer={"name": "tiny_reinforce"}))
    with pytest.raises(ConfigError, match="policy 'annealing' has nothing to train"):
        run(config, tmp_path / "run")
