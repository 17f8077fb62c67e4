"""The contract of learnable policies passes for right policies, and finds planted bugs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from kit_tools import catches, changed, outcome, own_checks, skipped
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_testing import LearnablePolicyContract, PolicyContract
from placekit_testing.fakes import FakeLearnable

from placekit_core import (
    EstimatesReturns,
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
CHECKS = own_checks(LearnablePolicyContract, PolicyContract)


class Teaching(FakeLearnable, Teaches, ExploresNear, EstimatesReturns):
    """A right policy with all abilities. The value of a decision is the sum of the first logits of the groups after it."""

    def values(self, problem: Problem, rollouts: Rollouts) -> NDArray[np.float64]:
        later = self.logits[: problem.g, 0][::-1].cumsum()[::-1]
        return np.tile(later, (len(rollouts.group), 1))

    def value_gradients(self, problem: Problem, rollouts: Rollouts, weight: NDArray[np.float64]) -> Parameters:
        step = np.zeros((problem.g, problem.cluster.size))
        step[:, 0] = weight.sum(axis=0).cumsum()
        return self._padded(step)

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


class Unlikely(FakeLearnable):
    """Draws unlikely devices, and reports the probabilities of likely ones."""

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        logits, self.logits = self.logits, -self.logits
        drawn = super().rollout(problem, n, rng, explore)
        self.logits = logits
        p = self.probability(problem)
        return replace(drawn, log_prob=self.log_prob(problem, drawn), extra={"probability": np.tile(p, (n, 1, 1))})


class Restless(FakeLearnable):
    """Every call draws other episodes."""

    calls = 0

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        self.calls += 1
        return super().rollout(problem, n, np.random.default_rng(self.calls), explore)


class Lenient(FakeLearnable):
    """Refuses a missing parameter, and takes any shape."""

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        if "logits" not in state:
            super().load_state_dict(state)
        self.logits = np.array(state["logits"])


def drawing(change: Callable[..., Rollouts]) -> type[LearnablePolicy]:
    """A policy that calls `change(self, right rollout, problem, n, rng, explore)`."""

    def rollout(self: Any, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        return change(self, lambda *a: FakeLearnable.rollout(self, *a), problem, n, rng, explore)

    return changed(FakeLearnable, rollout=rollout)


def episodes(change: Callable[[Rollouts], dict[str, Any]]) -> type[LearnablePolicy]:
    """A policy with these columns of its episodes changed."""

    def altered(self: Any, right: Any, *arguments: Any) -> Rollouts:
        r = right(*arguments)
        return replace(r, **change(r))

    return drawing(altered)


def gradients(change: Callable[[Parameters], Parameters], base: type = FakeLearnable) -> type[LearnablePolicy]:
    """A policy with changed gradients."""
    return changed(base, gradients=lambda self, *a, **k: change(base.gradients(self, *a, **k)))


def negative(gradient: Parameters) -> Parameters:
    return {name: -values for name, values in gradient.items()}


def clairvoyant(self: Any, problem: Problem, r: Rollouts) -> NDArray[np.float64]:
    return Teaching.values(self, problem, r) + r.device


def contrary(self: Any, *arguments: Any) -> tuple[float, Parameters]:
    loss, gradient = FakeLearnable.imitate(self, *arguments)
    return loss, negative(gradient)


def unmasked(self: Any, right: Any, problem: Problem, n: int, rng: Generator, explore: float) -> Rollouts:
    anywhere = Placements.of(rng.integers(problem.cluster.size, size=(n, problem.g)))
    return replace(right(problem, n, rng, explore), placements=anywhere)


def half_precision(self: Any, state: Parameters) -> None:
    FakeLearnable.load_state_dict(self, {k: np.asarray(v, np.float16) for k, v in state.items()})


def unchecked(self: Any, state: Parameters) -> None:
    self.logits = np.array(state["logits"])


def vague(self: Any, state: Parameters) -> None:
    raise PlacekitError("these parameters do not fit")


def replacing(self: Any, steps: Parameters) -> None:
    self.logits = np.array(steps["logits"])


def random_lesson(self: Any, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
    return self.rollout(problem, n, np.random.default_rng(), explore)


def wandering(self: Any, problem: Problem, placement: Placement, n: int, rng: Generator, explore: float) -> Rollouts:
    return self.rollout(problem, n, rng, 1.0)


def of_the_first_device(self: Any, problem: Problem, r: Rollouts) -> NDArray[np.float64]:
    return FakeLearnable.log_prob(self, problem, replace(r, device=np.zeros_like(r.device)))


def alike(self: Any, problem: Problem, r: Rollouts, *rest: Any, **more: Any) -> Parameters:
    """The gradient of logits that all devices share."""
    found = FakeLearnable.gradients(self, problem, r, *rest, **more)
    return {name: np.broadcast_to(v.mean(axis=-1, keepdims=True), v.shape).copy() for name, v in found.items()}


def no_entropy(self: Any, problem: Problem, r: Rollouts, weight: Any, *rest: Any) -> Parameters:
    return FakeLearnable.gradients(self, problem, r, weight)


def no_divergence(self: Any, problem: Problem, r: Rollouts, weight: Any, *rest: Any) -> Parameters:
    return FakeLearnable.gradients(self, problem, r, weight, *rest[:1])


FORMED, SAME, SIZES, FINITE = (
    "check_rollouts_are_well_formed", "check_same_generator_same_rollouts",
    "check_builds_for_problems_of_several_sizes", "check_gradients_match_finite_differences",
)  # fmt: skip
OFTEN, PARAMETERS, KL, VALUES, TEACHES, NEAR = (
    "check_rewarded_decisions_become_frequent", "check_parameters", "check_kl", "check_values", "check_teaches",
    "check_rollouts_near_a_placement",
)  # fmt: skip
WRONG = [
    (FORMED, episodes(lambda r: {"log_prob": r.log_prob.astype(np.float32)}), "log_prob: (1, 6) float32"),
    (FORMED, episodes(lambda r: {"log_prob": np.exp(r.log_prob)}), "log_prob has the wrong sign"),
    (FORMED, drawing(unmasked), "may not run on"),
    ("check_placements_agree_with_decisions", episodes(lambda r: {"group": r.group[:, ::-1]}), "decisions lead"),
    (SAME, drawing(lambda self, f, p, n, rng, e: f(p, n, np.random.default_rng(), e)), "gave different episodes"),
    (SAME, drawing(lambda self, f, p, n, rng, e: f(p, n, rng, 1.0)), "the placement depends on the generator"),
    (SAME, drawing(lambda self, f, p, n, rng, e: f(p, n, rng)), "exploring draws nothing from its generator"),
    (
        SAME,
        changed(FakeLearnable, build=lambda self, p, rng: FakeLearnable.build(self, p, np.random.default_rng())),
        "equal generators gave different parameters",
    ),
    (
        SIZES,
        changed(FakeLearnable, build=lambda self, p, rng: FakeLearnable.build(self, p[:1], rng)),
        "was built for (13, 3) groups and devices, not for (21, 2)",
    ),
    (SIZES, gradients(lambda g: {k: v.ravel() for k, v in g.items()}), "the gradient by 'logits' has shape"),
    (SIZES, gradients(lambda g: {**g, "bias": np.zeros(2)}), "'bias' is not a parameter; parameters: logits"),
    (FINITE, changed(FakeLearnable, gradients=no_entropy), "(entropy_weight 0.7)"),
    (FINITE, gradients(negative), "the gradient by 'logits' is"),
    (FINITE, changed(FakeLearnable, log_prob=of_the_first_device), "log_prob disagrees with the rollouts"),
    (FINITE, Restless, "tiny steps changed the decisions of the episodes of each of 50 generators"),
    (KL, changed(FakeLearnable, gradients=no_divergence), "(kl_weight 2)"),
    (KL, changed(FakeLearnable, kl=lambda self, p, r: self.log_prob(p, r) - r.log_prob), "negative after a step"),
    (KL, changed(FakeLearnable, kl=lambda self, p, r: np.zeros(r.group.shape)), "still 0 after a step"),
    (VALUES, changed(Teaching, values=clairvoyant), "depends on what follows"),
    (VALUES, changed(Teaching, values=lambda self, p, r: np.ones(p.g)), "values: (13,) float64"),
    (
        VALUES,
        changed(Teaching, value_gradients=lambda self, *a: negative(Teaching.value_gradients(self, *a))),
        "(of values)",
    ),
    (OFTEN, Unlikely, "the share of those devices changed from"),
    (OFTEN, gradients(negative), "the share of those devices changed from"),
    (OFTEN, changed(FakeLearnable, gradients=alike), "claims `distinguishes_devices = True` (the default)"),
    (PARAMETERS, changed(FakeLearnable, apply=replacing), "apply to 'logits': 'logits'"),
    (PARAMETERS, changed(FakeLearnable, load_state_dict=half_precision), "parameter 'logits' is not what was loaded"),
    (PARAMETERS, changed(FakeLearnable, load_state_dict=unchecked), "DID NOT RAISE"),
    (PARAMETERS, Lenient, "DID NOT RAISE"),
    (PARAMETERS, changed(FakeLearnable, load_state_dict=vague), "does not name 'logits'"),
    ("check_imitates", changed(FakeLearnable, imitate=contrary), "the loss went from"),
    (TEACHES, changed(Teaching, teach=random_lesson), "equal generators gave different lessons"),
    (TEACHES, changed(Teaching, imitate=contrary), "the loss of later lessons went from"),
    (NEAR, changed(Teaching, rollout_near=wandering), "the episodes differ from the placement"),
    (NEAR, changed(Teaching, gradients=FakeLearnable.gradients), "decisions that were not drawn have a gradient"),
]


def test_passes_for_right_policies(tmp_path: Path) -> None:
    assert skipped(LearnablePolicyContract, CHECKS, Teaching, tmp_path) == set()
    assert skipped(LearnablePolicyContract, CHECKS, FakeLearnable, tmp_path) == {VALUES, TEACHES, NEAR}
    assert skipped(LearnablePolicyContract, CHECKS, TwoLayers, tmp_path) == {VALUES, TEACHES, NEAR}


def test_finds_planted_bugs(tmp_path: Path) -> None:
    catches(LearnablePolicyContract, CHECKS, WRONG, tmp_path)


def test_a_tiny_step_that_changes_decisions_is_no_failure(tmp_path: Path) -> None:
    class Other(TwoLayers):
        seed = 0

        def features(self, problem: Problem) -> NDArray[np.float64]:
            return 3 * np.random.default_rng([self.seed, problem.g]).standard_normal((problem.g, 8))

    for Other.seed in range(5):
        assert outcome(LearnablePolicyContract, FINITE, Other, tmp_path) == "passed"
