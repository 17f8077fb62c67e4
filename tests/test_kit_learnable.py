"""Each check of the contract of learnable policies passes for a right one, and catches one that is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray

from placekit_core.errors import PlacekitError
from placekit_core.interfaces import LearnablePolicy, Rollouts
from placekit_core.placement import Placements
from placekit_core.problem import Problem
from placekit_core.testing import LearnablePolicyContract, PolicyContract
from placekit_core.testing.contract import checks_of
from placekit_core.testing.fakes import FakeLearnable
from tests.kit_tools import fails, run_check

Parameters = dict[str, NDArray[Any]]


class Single(FakeLearnable):
    """Gives log-probabilities in single precision."""

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        r = super().rollout(problem, n, rng, explore)
        return replace(r, log_prob=r.log_prob.astype(np.float32))


class Plain(FakeLearnable):
    """Gives probabilities, not their logarithms."""

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        r = super().rollout(problem, n, rng, explore)
        return replace(r, log_prob=np.exp(r.log_prob))


class Unmasked(FakeLearnable):
    """Draws from all devices, allowed or not."""

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        r = super().rollout(problem, n, rng, explore)
        return replace(r, placements=Placements.of(rng.integers(problem.cluster.size, size=(n, problem.g))))


class Reversed(FakeLearnable):
    """Numbers the groups of its decisions from the end, and the devices of its placements from the start."""

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        r = super().rollout(problem, n, rng, explore)
        return replace(r, group=r.group[:, ::-1])


class Unseeded(FakeLearnable):
    """Draws episodes from a generator that it makes itself."""

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        return super().rollout(problem, n, np.random.default_rng(), explore)


class Exploring(FakeLearnable):
    """Explores when it is told not to."""

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        return super().rollout(problem, n, rng, 1.0)


class Arbitrary(FakeLearnable):
    """Initialises its parameters from a generator that it makes itself."""

    def build(self, problems: Sequence[Problem], rng: Generator) -> None:
        super().build(problems, np.random.default_rng())


class FirstProblem(FakeLearnable):
    """Sizes its parameters for the first problem only."""

    def build(self, problems: Sequence[Problem], rng: Generator) -> None:
        super().build(problems[:1], rng)


class Flat(FakeLearnable):
    """Gives its gradient as one flat vector."""

    def gradients(self, problem: Problem, rollouts: Rollouts, weight: Any, *rest: Any, **terms: Any) -> Parameters:
        return {k: v.ravel() for k, v in super().gradients(problem, rollouts, weight, *rest).items()}


class NoEntropy(FakeLearnable):
    """Leaves the entropy out of its gradient."""

    def gradients(self, problem: Problem, rollouts: Rollouts, weight: Any, *rest: Any, **terms: Any) -> Parameters:
        return super().gradients(problem, rollouts, weight)


class OfTheLoss(FakeLearnable):
    """Gives the gradient of a loss, to be descended."""

    def gradients(self, problem: Problem, rollouts: Rollouts, weight: Any, *rest: Any, **terms: Any) -> Parameters:
        return {k: -v for k, v in super().gradients(problem, rollouts, weight, *rest).items()}


class Replacing(FakeLearnable):
    """Replaces the parameters by the step."""

    def apply(self, steps: Mapping[str, NDArray[Any]]) -> None:
        self.logits = np.array(steps["logits"])


class Rounded(FakeLearnable):
    """Loads parameters in half precision."""

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        super().load_state_dict({k: np.asarray(v, np.float16) for k, v in state.items()})


class Raw(FakeLearnable):
    """Loads parameters without looking at them: what is missing is a KeyError, a wrong shape goes unnoticed."""

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.logits = np.array(state["logits"])


class OfTheFirstDevice(FakeLearnable):
    """Recomputes the log-probability of device 0, whatever was decided."""

    def log_prob(self, problem: Problem, rollouts: Rollouts) -> NDArray[np.float64]:
        return super().log_prob(problem, replace(rollouts, device=np.zeros_like(rollouts.device)))


class OneSample(FakeLearnable):
    """Estimates the divergence by the ratio of one decision, which may be negative."""

    def kl(self, problem: Problem, rollouts: Rollouts) -> NDArray[np.float64]:
        return self.log_prob(problem, rollouts) - rollouts.log_prob


class Contrary(FakeLearnable):
    """Gives the gradient of the loss of imitating, to be descended."""

    def imitate(self, problem: Problem, teacher: Rollouts, rng: Generator) -> tuple[float, Parameters]:
        loss, gradient = super().imitate(problem, teacher, rng)
        return loss, {k: -v for k, v in gradient.items()}


class Everything(LearnablePolicyContract):
    """The contract with all that a learnable policy can claim."""

    recomputes_log_prob = True
    reports_kl = True
    imitates = True


CHECKS = [name for name in checks_of(LearnablePolicyContract) if name not in checks_of(PolicyContract)]
WRONG: dict[str, type[LearnablePolicy]] = {
    "test_rollouts_have_their_shapes": Single,
    "test_rollouts_have_probabilities": Plain,
    "test_rollouts_end_on_allowed_devices": Unmasked,
    "test_placements_agree_with_decisions": Reversed,
    "test_same_generator_same_rollouts": Unseeded,
    "test_place_is_deterministic": Exploring,
    "test_build_is_reproducible": Arbitrary,
    "test_builds_for_problems_of_several_sizes": FirstProblem,
    "test_gradients_are_of_the_parameters": Flat,
    "test_gradients_match_finite_differences": NoEntropy,
    "test_step_raises_rewarded_decisions": OfTheLoss,
    "test_apply_adds": Replacing,
    "test_state_dict_round_trip": Rounded,
    "test_load_state_dict_refuses": Raw,
    "test_log_prob_is_that_of_the_rollouts": OfTheFirstDevice,
    "test_kl": OneSample,
    "test_imitates": Contrary,
}
"""The check, and the wrong policy that it catches."""


def test_every_check_has_a_wrong_policy() -> None:
    assert list(WRONG) == CHECKS
    assert all(policy.__doc__ for policy in WRONG.values())


@pytest.mark.parametrize("name", CHECKS)
def test_check_passes_for_a_right_policy(name: str, tmp_path: Path) -> None:
    run_check(Everything, name, FakeLearnable, tmp_path)


@pytest.mark.parametrize("name", CHECKS)
def test_check_catches_a_wrong_policy(name: str, tmp_path: Path) -> None:
    fails(Everything, name, WRONG[name], tmp_path)


@pytest.mark.parametrize("wrong", [OfTheLoss, NoEntropy])
def test_finite_differences_name_the_parameter(wrong: type[LearnablePolicy], tmp_path: Path) -> None:
    error = fails(Everything, "test_gradients_match_finite_differences", wrong, tmp_path)
    assert "the gradient by 'logits' is" in str(error)


class Zero(FakeLearnable):
    """Says that nothing ever diverges."""

    def kl(self, problem: Problem, rollouts: Rollouts) -> NDArray[np.float64]:
        return np.zeros(rollouts.group.shape)


class Strict(FakeLearnable):
    """Refuses what is missing, and takes any shape."""

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        if "logits" in state:
            self.logits = np.array(state["logits"])
        else:
            super().load_state_dict(state)


class Vague(FakeLearnable):
    """Refuses without saying what."""

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        raise PlacekitError("these parameters do not fit")


class Greedy(FakeLearnable):
    """Never explores."""

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        return super().rollout(problem, n, rng)


class Invented(FakeLearnable):
    """Has a gradient by something that is no parameter."""

    def gradients(self, problem: Problem, rollouts: Rollouts, weight: Any, *rest: Any, **terms: Any) -> Parameters:
        return {**super().gradients(problem, rollouts, weight, *rest), "bias": np.zeros(2)}


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("test_kl", Zero, "still 0 after a step"),
        ("test_load_state_dict_refuses", Strict, "DID NOT RAISE"),
        ("test_load_state_dict_refuses", Vague, "does not name 'logits'"),
        ("test_same_generator_same_rollouts", Greedy, "exploring draws nothing from its generator"),
        ("test_gradients_are_of_the_parameters", Invented, "'bias' is no parameter; there are logits"),
    ],
)
def test_other_mistakes_that_a_check_catches(
    name: str, wrong: type[LearnablePolicy], message: str, tmp_path: Path
) -> None:
    assert message in str(fails(Everything, name, wrong, tmp_path))


def test_what_is_not_claimed_is_skipped(tmp_path: Path) -> None:
    skipped = []
    for name in CHECKS:
        try:
            run_check(LearnablePolicyContract, name, FakeLearnable, tmp_path)
        except pytest.skip.Exception as e:
            skipped.append(str(e))
    flags = ["recomputes_log_prob"] * 3 + ["reports_kl", "imitates"]
    assert skipped == [f"does not claim {flag}" for flag in flags]


def test_parameters_in_single_precision_are_compared_loosely(tmp_path: Path) -> None:
    class Half(FakeLearnable):
        def state_dict(self) -> Parameters:
            return {k: v.astype(np.float32) for k, v in super().state_dict().items()}

    run_check(Everything, "test_gradients_match_finite_differences", Half, tmp_path)
