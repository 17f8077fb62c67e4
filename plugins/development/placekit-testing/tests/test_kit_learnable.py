"""Each check of the contract of learnable policies passes for a right one, and catches one that is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit_tools import fails, run_check
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_testing import LearnablePolicyContract, PolicyContract
from placekit_testing.contract import checks_of, is_claimed
from placekit_testing.fakes import FakeLearnable

from placekit_core import (
    ExploresNear,
    LearnablePolicy,
    PlacekitError,
    Placement,
    Placements,
    Problem,
    Rollouts,
    Teaches,
)

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

    def gradients(self, problem: Problem, rollouts: Rollouts, weight: Any, *rest: Any, **more: Any) -> Parameters:
        return {k: v.ravel() for k, v in super().gradients(problem, rollouts, weight, *rest).items()}


class NoEntropy(FakeLearnable):
    """Leaves the entropy out of its gradient."""

    def gradients(self, problem: Problem, rollouts: Rollouts, weight: Any, *rest: Any, **more: Any) -> Parameters:
        return super().gradients(problem, rollouts, weight)


class NoDivergence(FakeLearnable):
    """Leaves the KL divergence out of its gradient."""

    def gradients(self, problem: Problem, rollouts: Rollouts, weight: Any, *rest: Any, **more: Any) -> Parameters:
        return super().gradients(problem, rollouts, weight, *rest[:1])


class OfTheLoss(FakeLearnable):
    """Gives the gradient of a loss, which would have to be descended."""

    def gradients(self, problem: Problem, rollouts: Rollouts, weight: Any, *rest: Any, **more: Any) -> Parameters:
        return {k: -v for k, v in super().gradients(problem, rollouts, weight, *rest).items()}


class Unlikely(FakeLearnable):
    """Draws unlikely devices, and reports the probabilities of likely ones."""

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        logits, self.logits = self.logits, -self.logits
        drawn = super().rollout(problem, n, rng, explore)
        self.logits = logits
        p = self.probability(problem)
        return replace(drawn, log_prob=self.log_prob(problem, drawn), extra={"probability": np.tile(p, (n, 1, 1))})


class Replacing(FakeLearnable):
    """Replaces the parameters by the step."""

    def apply(self, steps: Mapping[str, NDArray[Any]]) -> None:
        self.logits = np.array(steps["logits"])


class Rounded(FakeLearnable):
    """Loads parameters in half precision."""

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        super().load_state_dict({k: np.asarray(v, np.float16) for k, v in state.items()})


class Raw(FakeLearnable):
    """Loads without checks: a missing parameter is a KeyError, a wrong shape goes unnoticed."""

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
    """Gives the gradient of the imitation loss, which would have to be descended."""

    def imitate(self, problem: Problem, teacher: Rollouts, rng: Generator) -> tuple[float, Parameters]:
        loss, gradient = super().imitate(problem, teacher, rng)
        return loss, {k: -v for k, v in gradient.items()}


class Teaching(FakeLearnable, Teaches, ExploresNear):
    """Right, with lessons and episodes near a placement, but its test class claims neither."""

    def teach(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        r = self.rollout(problem, n, rng, explore)
        return replace(r, device=np.tile(problem.allowed.argmax(axis=1), (n, 1)).astype(np.int16))

    def rollout_near(self, problem: Problem, placement: Placement, n: int, rng: Generator, explore: float) -> Rollouts:
        r = self.rollout(problem, n, rng, 1.0)
        drawn = rng.random(r.device.shape) < explore
        device = np.where(drawn, r.device, placement.device)
        return replace(
            r,
            placements=Placements.of(device),
            device=device.astype(np.int16),
            log_prob=np.where(drawn, r.log_prob, 0.0),
            extra={**r.extra, "drawn": drawn},
        )

    def gradients(self, problem: Problem, rollouts: Rollouts, weight: Any, *rest: Any, **more: Any) -> Parameters:
        drawn = rollouts.extra.get("drawn")
        return super().gradients(problem, rollouts, weight if drawn is None else weight * drawn, *rest, **more)


class Fickle(Teaching):
    """Teaches random decisions, from a generator of its own."""

    def teach(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        return self.rollout(problem, n, np.random.default_rng(), explore)


class Wandering(Teaching):
    """Draws every decision, and ignores the placement."""

    def rollout_near(self, problem: Problem, placement: Placement, n: int, rng: Generator, explore: float) -> Rollouts:
        return self.rollout(problem, n, rng, 1.0)


class Unwilling(Teaching):
    """Gives the gradient of the imitation loss, which would have to be descended."""

    def imitate(self, problem: Problem, teacher: Rollouts, rng: Generator) -> tuple[float, Parameters]:
        loss, gradient = super().imitate(problem, teacher, rng)
        return loss, {k: -v for k, v in gradient.items()}


class Forced(Teaching):
    """Has gradients of decisions that were not drawn."""

    gradients = FakeLearnable.gradients


class Claims(LearnablePolicyContract):
    """The contract with all that a policy can claim."""

    recomputes_log_prob = reports_kl = imitates = teaches = follows = True


CHECKS = [name for name in checks_of(LearnablePolicyContract) if name not in checks_of(PolicyContract)]
WRONG: dict[str, type[LearnablePolicy]] = {
    "check_claims_what_it_can": Teaching,
    "check_rollouts_have_their_shapes": Single,
    "check_rollouts_have_probabilities": Plain,
    "check_rollouts_end_on_allowed_devices": Unmasked,
    "check_placements_agree_with_decisions": Reversed,
    "check_same_generator_same_rollouts": Unseeded,
    "check_place_is_deterministic": Exploring,
    "check_build_is_reproducible": Arbitrary,
    "check_builds_for_problems_of_several_sizes": FirstProblem,
    "check_gradients_are_of_the_parameters": Flat,
    "check_gradients_match_finite_differences": NoEntropy,
    "check_gradients_of_kl_match_finite_differences": NoDivergence,
    "check_step_raises_rewarded_decisions": OfTheLoss,
    "check_rewarded_decisions_become_frequent": Unlikely,
    "check_apply_adds": Replacing,
    "check_state_dict_round_trip": Rounded,
    "check_load_state_dict_refuses": Raw,
    "check_log_prob_is_that_of_the_rollouts": OfTheFirstDevice,
    "check_kl": OneSample,
    "check_imitates": Contrary,
    "check_teaches": Fickle,
    "check_rollouts_near_a_placement": Wandering,
}
"""The check, and the wrong policy that it catches."""
SAYS = {
    "check_claims_what_it_can": "set `recomputes_log_prob = True` in the test's class",
    "check_rollouts_have_their_shapes": "log_prob: (1, 6) float32",
    "check_rollouts_have_probabilities": "log_prob has the wrong sign",
    "check_rollouts_end_on_allowed_devices": "may not run on",
    "check_placements_agree_with_decisions": "the placements are not where the decisions lead",
    "check_same_generator_same_rollouts": "equal generators gave different episodes",
    "check_place_is_deterministic": "without exploration the placement depends on the generator",
    "check_build_is_reproducible": "equal generators gave different parameters",
    "check_builds_for_problems_of_several_sizes": "was built for (6, 2) groups and devices, not for (21, 2)",
    "check_gradients_are_of_the_parameters": "the gradient by 'logits' has shape (39,)",
    "check_gradients_match_finite_differences": "(entropy_weight 0.7)",
    "check_gradients_of_kl_match_finite_differences": "(kl_weight 2)",
    "check_step_raises_rewarded_decisions": "the step made them less probable",
    "check_rewarded_decisions_become_frequent": "the share of those devices changed from",
    "check_apply_adds": "apply to 'logits': 'logits'",
    "check_state_dict_round_trip": "parameter 'logits' is not what was loaded",
    "check_load_state_dict_refuses": "DID NOT RAISE",
    "check_log_prob_is_that_of_the_rollouts": "log_prob disagrees with the rollouts",
    "check_kl": "negative after a step",
    "check_imitates": "the loss went from",
    "check_teaches": "equal generators gave different lessons",
    "check_rollouts_near_a_placement": "they are not the placement",
}
"""What the check must say of it."""


def test_every_check_has_a_wrong_policy() -> None:
    assert list(WRONG) == list(SAYS) == CHECKS
    assert all(policy.__doc__ for policy in WRONG.values())


def test_check_passes_for_a_right_policy(tmp_path: Path) -> None:
    for name in CHECKS:
        run_check(Claims, name, Teaching, tmp_path)


def test_check_catches_a_wrong_policy(tmp_path: Path) -> None:
    for name in CHECKS:
        contract = LearnablePolicyContract if name == "check_claims_what_it_can" else Claims
        fails(contract, name, WRONG[name], tmp_path, SAYS[name])


@pytest.mark.parametrize("wrong", [OfTheLoss, NoEntropy])
def test_finite_differences_name_the_parameter(wrong: type[LearnablePolicy], tmp_path: Path) -> None:
    fails(
        LearnablePolicyContract,
        "check_gradients_match_finite_differences",
        wrong,
        tmp_path,
        "the gradient by 'logits' is",
    )


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

    def gradients(self, problem: Problem, rollouts: Rollouts, weight: Any, *rest: Any, **more: Any) -> Parameters:
        return {**super().gradients(problem, rollouts, weight, *rest), "bias": np.zeros(2)}


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("check_kl", Zero, "still 0 after a step"),
        ("check_load_state_dict_refuses", Strict, "DID NOT RAISE"),
        ("check_load_state_dict_refuses", Vague, "does not name 'logits'"),
        ("check_same_generator_same_rollouts", Greedy, "exploring draws nothing from its generator"),
        ("check_gradients_are_of_the_parameters", Invented, "'bias' is no parameter; there are logits"),
        ("check_teaches", Unwilling, "the loss of later lessons went from"),
        ("check_rollouts_near_a_placement", Forced, "there is a gradient of what was not drawn"),
    ],
)
def test_other_mistakes_that_a_check_catches(
    name: str, wrong: type[LearnablePolicy], message: str, tmp_path: Path
) -> None:
    fails(LearnablePolicyContract, name, wrong, tmp_path, message)


def test_what_is_not_claimed_is_not_collected() -> None:
    checks = checks_of(LearnablePolicyContract)
    left_out = [name for name in CHECKS if not is_claimed(LearnablePolicyContract, checks[name])]
    assert [checks[name].claims for name in left_out] == [  # type: ignore[attr-defined]
        ("recomputes_log_prob",), ("reports_kl",), ("recomputes_log_prob",), ("recomputes_log_prob",), ("reports_kl",),
        ("imitates",), ("teaches",), ("follows",),
    ]  # fmt: skip
    assert all(is_claimed(Claims, checks[name]) for name in CHECKS)


def test_a_wrong_sign_is_noticed_without_log_prob_too(tmp_path: Path) -> None:
    class Contrary(FakeLearnable):
        def gradients(self, *args: Any, **kwargs: Any) -> Parameters:
            return {k: -v for k, v in super().gradients(*args, **kwargs).items()}

    fails(LearnablePolicyContract, "check_rewarded_decisions_become_frequent", Contrary, tmp_path, "the share of")
