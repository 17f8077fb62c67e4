"""The contract of learnable policies on a network in single precision, and on decisions that tiny steps change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kit_tools import fails, run_check
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_testing import LearnablePolicyContract, PolicyContract
from placekit_testing.contract import checks_of
from placekit_testing.fakes import FakeLearnable

from placekit_core import PlacekitError, Problem, Rollouts

Parameters = dict[str, NDArray[Any]]
OPTIONAL = (
    "check_claims_what_it_can",
    "check_teaches",
    "check_rollouts_near_a_placement",
)  # it has neither of the last two
CHECKS = [n for n in checks_of(LearnablePolicyContract) if n not in (*checks_of(PolicyContract), *OPTIONAL)]


class TwoLayers(FakeLearnable):
    """A right policy in single precision: a network of two layers, whose weights all groups share."""

    def features(self, problem: Problem) -> NDArray[np.float64]:
        return np.random.default_rng(problem.g).standard_normal((problem.g, 8))

    def build(self, problems: Sequence[Problem], rng: Generator) -> None:
        devices = max(p.cluster.size for p in problems)
        self.weights = {
            "hidden": (rng.standard_normal((8, 32)) / np.sqrt(8)).astype(np.float32),
            "output": (rng.standard_normal((32, devices)) / np.sqrt(32)).astype(np.float32),
        }

    def probability(self, problem: Problem) -> NDArray[np.float64]:
        hidden = np.tanh(self.features(problem) @ self.weights["hidden"])
        self.logits = hidden @ self.weights["output"]
        return super().probability(problem)

    def gradients(self, problem: Problem, rollouts: Rollouts, weight: Any, *rest: Any, **more: Any) -> Parameters:
        x = self.features(problem)
        hidden = np.tanh(x @ self.weights["hidden"])
        self.logits = hidden @ self.weights["output"]
        of_logits = super().gradients(problem, rollouts, weight, *rest)["logits"]
        of_hidden = (of_logits @ self.weights["output"].T) * (1 - hidden**2)
        return {"hidden": (x.T @ of_hidden).astype(np.float32), "output": (hidden.T @ of_logits).astype(np.float32)}

    def apply(self, steps: Mapping[str, NDArray[Any]]) -> None:
        self.weights |= {name: self.weights[name] + step for name, step in steps.items()}

    def state_dict(self) -> Parameters:
        return dict(self.weights)

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        for name, values in self.weights.items():
            if name not in state or state[name].shape != values.shape:
                raise PlacekitError(f"parameter {name!r} is missing or of another shape")
        self.weights = {name: np.array(state[name]) for name in self.weights}


def test_checks_pass_for_a_right_network_in_single_precision(tmp_path: Path) -> None:
    for name in CHECKS:
        run_check(LearnablePolicyContract, name, TwoLayers, tmp_path)


def test_a_tiny_step_that_changes_decisions_is_no_failure(tmp_path: Path) -> None:
    class Other(TwoLayers):
        seed = 0

        def features(self, problem: Problem) -> NDArray[np.float64]:
            return 3 * np.random.default_rng([self.seed, problem.g]).standard_normal((problem.g, 8))

    for Other.seed in range(10):
        run_check(LearnablePolicyContract, "check_gradients_match_finite_differences", Other, tmp_path)


def test_decisions_that_always_change_are_named(tmp_path: Path) -> None:
    class Restless(FakeLearnable):
        calls = 0

        def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
            self.calls += 1
            return super().rollout(problem, n, np.random.default_rng(self.calls), explore)

    says = "tiny steps changed the decisions of the episodes of each of 50 generators"
    fails(LearnablePolicyContract, "check_gradients_match_finite_differences", Restless, tmp_path, says)


def test_parameters_in_single_precision_are_compared_loosely(tmp_path: Path) -> None:
    class Half(FakeLearnable):
        def state_dict(self) -> Parameters:
            return {k: v.astype(np.float32) for k, v in super().state_dict().items()}

    run_check(LearnablePolicyContract, "check_gradients_match_finite_differences", Half, tmp_path)
