"""The contract of learnable policies, in addition to that of policies."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from placekit_core import (
    EstimatesReturns,
    ExploresNear,
    Imitates,
    LearnablePolicy,
    PlacekitError,
    Problem,
    RecomputesLogProb,
    ReportsKL,
    Rollouts,
    Teaches,
)
from placekit_core.contracts.interfaces import Plugin
from placekit_testing import fakes
from placekit_testing.contract import Make, in_short, needs, together
from placekit_testing.policies import PolicyContract

EPISODES = 5
SEEDS = 50  # number of generators to try; one must give episodes that a tiny step does not change
EQUAL_DEVICES = (
    "; the devices are equal, and the test class claims `distinguishes_devices = True` (the default): if the policy sees only"
    " the properties of devices, set it to False, else correct its gradients"
)
STEPS = 30  # updates in the check that learning changes the draws
Parameters = dict[str, NDArray[Any]]


class LearnablePolicyContract(PolicyContract):
    """The checks of a policy with parameters: its episodes, its gradients, its parameters, and the abilities that it has."""

    interface: ClassVar[type[Plugin]] = LearnablePolicy

    distinguishes_devices: ClassVar[bool] = True
    """Whether the policy can prefer one of several equal devices, by its number: not if it sees only their properties."""
    step: ClassVar[float] = 1e-3
    """Length of a step along a gradient that must improve the objective of the gradient."""

    def learner(self, make: Make, *problems: Problem, seed: int = 0) -> Any:
        """A new policy, built for `problems`."""
        policy = make()
        policy.build(problems, np.random.default_rng(seed))
        return policy

    def drawn(self, policy: LearnablePolicy, problem: Problem, seed: int = 0, explore: float = 1.0) -> Rollouts:
        """`EPISODES` episodes."""
        return policy.rollout(problem, EPISODES, np.random.default_rng(seed), explore)

    @in_short
    def check_rollouts_are_well_formed(self, make: Make) -> None:
        """b episodes of at most T decisions: groups int32, devices int16, log-probabilities and entropies float64 [b, T]."""
        for problem in (fakes.diamond(), fakes.mixed(), fakes.diamond(devices=1)):
            policy = self.learner(make, problem)
            for n, explore in ((1, 1.0), (EPISODES, 0.0), (EPISODES, 0.5), (EPISODES, 1.0)):
                r = policy.rollout(problem, n, np.random.default_rng(0), explore)
                shape = (n, r.group.shape[1])
                for name, dtype in (("group", np.int32), ("device", np.int16), ("log_prob", float), ("entropy", float)):
                    found = getattr(r, name)
                    right = (found.shape, found.dtype) == (shape, np.dtype(dtype))
                    assert right, f"{name}: {found.shape} {found.dtype}"
                active = r.group >= 0
                for name, values in (("log_prob", -r.log_prob[active]), ("entropy", r.entropy[active])):
                    assert np.isfinite(values).all(), f"{name} is not finite"
                    assert (values >= -1e-6).all(), f"{name} has the wrong sign"
                assert all(isinstance(rows, np.ndarray) for rows in r.extra.values()), (
                    "a value in `extra` is not an array"
                )
                assert len(r.placements) == n
                problem.check(r.placements)

    @in_short
    def check_placements_agree_with_decisions(self, make: Make) -> None:
        """Each group is where its last decision put it, else where the episode started; -1 only after an episode's end."""
        problem = fakes.chain()
        r = self.drawn(self.learner(make, problem), problem)
        expected = np.full((EPISODES, problem.g), -1) if r.start is None else r.start.device.astype(int)
        for row in range(EPISODES):
            decided = np.flatnonzero(r.group[row] >= 0)
            assert decided.tolist() == list(range(len(decided))), "a group of -1 before the end of an episode"
            for t in decided:
                assert r.group[row, t] < problem.g
                expected[row, r.group[row, t]] = r.device[row, t]
        assert (expected >= 0).all(), "a group has no decision, and the episode has no `start`"
        assert np.array_equal(r.placements.device, expected), "the placements are not where the decisions lead"

    @in_short
    def check_same_generator_same_rollouts(self, make: Make) -> None:
        """Equal generators give equal parameters and episodes, another one other episodes; `place` does not explore."""
        problem = fakes.chain()
        first, second = (self.learner(make, problem, seed=5) for _ in range(2))
        a, b = (policy.state_dict() for policy in (first, second))
        assert a.keys() == b.keys()
        assert all(np.array_equal(a[name], b[name]) for name in a), "equal generators gave different parameters"
        drawn = self.drawn(first, problem, 3)
        assert _same_episodes(drawn, self.drawn(second, problem, 3)), "equal generators gave different episodes"
        assert not _same_episodes(drawn, self.drawn(first, problem, 4)), "exploring draws nothing from its generator"
        one, two = (first.place(fakes.fake_task(problem), np.random.default_rng(seed)) for seed in (1, 2))
        assert one.same_as(two), "without exploration the placement depends on the generator"

    def check_builds_for_problems_of_several_sizes(self, make: Make) -> None:
        """One set of parameters, with gradients by their names and shapes, serves problems of all sizes it was built for."""
        problems = fakes.mixed(), fakes.chain(20), fakes.independent(3, devices=8)
        policy = self.learner(make, *problems)
        for problem in problems:
            r = self.drawn(policy, problem)
            problem.check(r.placements)
            _shaped(policy, policy.gradients(problem, r, np.ones(r.log_prob.shape), 0.1))

    @needs(RecomputesLogProb)
    @in_short
    def check_gradients_match_finite_differences(self, make: Make) -> None:
        """`log_prob` is that of the episodes; gradients are those of sum(weight * log_prob) + entropy_weight * sum(entropy)."""
        for problem in (fakes.mixed(), fakes.diamond()):
            policy = self.learner(make, problem)
            r = self.drawn(policy, problem)
            again = policy.log_prob(problem, r)
            assert again.shape == r.log_prob.shape
            close = np.isclose(again, r.log_prob, rtol=1e-4, atol=1e-5)[r.group >= 0]
            assert close.all(), "log_prob disagrees with the rollouts, at the parameters that they were drawn with"
            _shake(policy, 0.1)  # gradients often vanish at the initial parameters
            for entropy_weight in (0.0, 0.7):
                # if a tiny step changes the decisions, nothing can be compared: draw other episodes
                if not any(self._compared(policy, problem, seed, entropy_weight) for seed in range(SEEDS)):
                    pytest.fail(f"tiny steps changed the decisions of the episodes of each of {SEEDS} generators")

    def _compared(self, policy: Any, problem: Problem, seed: int, entropy_weight: float) -> bool:
        """Whether the decisions of the episodes stayed the same, so that the gradients could be compared."""
        r = self.drawn(policy, problem, seed)
        weight = np.random.default_rng(1).standard_normal(r.log_prob.shape)
        gradient = policy.gradients(problem, r, weight, entropy_weight)
        active = r.group >= 0

        def objective() -> float | None:
            value = float((weight * policy.log_prob(problem, r))[active].sum())
            if entropy_weight:  # only new episodes have the new entropy; these make the same decisions
                again = self.drawn(policy, problem, seed)
                if not _same_decisions(again, r):
                    return None
                value += entropy_weight * float(again.entropy[active].sum())
            return value

        return _agrees(policy, gradient, objective, f"entropy_weight {entropy_weight}")

    @needs(ReportsKL)
    @in_short
    def check_kl(self, make: Make) -> None:
        """The divergence is 0 at unchanged parameters and positive after a step; `kl_weight` subtracts its gradient."""
        for problem in (fakes.mixed(), fakes.diamond()):
            policy = self.learner(make, problem)
            r = self.drawn(policy, problem)
            active = r.group >= 0
            before = policy.kl(problem, r)
            assert before.shape == r.log_prob.shape
            assert np.allclose(before[active], 0, atol=1e-6), "not 0 at unchanged parameters"
            _shake(policy, 0.3)
            after = policy.kl(problem, r)[active]
            assert (after >= -1e-6).all(), "negative after a step"
            assert after.sum() > 1e-6, "still 0 after a step"
            gradient = policy.gradients(problem, r, np.zeros(r.log_prob.shape), 0.0, 2.0)
            _agrees(policy, gradient, functools.partial(_minus_twice_kl, policy, problem, r), "kl_weight 2")

    @needs(EstimatesReturns)
    @in_short
    def check_values(self, make: Make) -> None:
        """Later decisions do not change the first value. `value_gradients` is the gradient of sum(weight * value)."""
        problem = fakes.mixed()
        policy = self.learner(make, problem)
        _shake(policy, 0.1)
        r = self.drawn(policy, problem)
        values, active = policy.values(problem, r), r.group >= 0
        assert (values.shape, values.dtype) == (r.group.shape, np.dtype(float)), (
            f"values: {values.shape} {values.dtype}"
        )
        assert np.isfinite(values).all(), "a value is not finite"
        if r.start is None and (r.group == r.group[0]).all():
            assert np.allclose(values[:, 0], values[0, 0]), (
                "the value before the first decision depends on what follows"
            )
        weight = np.random.default_rng(1).standard_normal(r.group.shape)
        gradient = policy.value_gradients(problem, r, weight)
        _shaped(policy, gradient)
        _agrees(policy, gradient, lambda: float((weight * policy.values(problem, r))[active].sum()), "of values")

    @in_short
    def check_rewarded_decisions_become_frequent(self, make: Make) -> None:
        """Steps along gradients weighted by how often episodes use certain devices make the policy use them more."""
        problem = fakes.chain()
        policy = self.learner(make, problem)
        wanted = np.arange(problem.g) % problem.cluster.size
        used = []
        for step in range(STEPS + 1):
            # more episodes at the beginning and the end, where devices are counted
            r = policy.rollout(problem, 16 if 0 < step < STEPS else 256, np.random.default_rng(step), 1.0)
            if not self.distinguishes_devices:  # reward the device of the previous group of the chain
                wanted = np.roll(r.placements.device, 1, axis=1)
            right = r.device == np.take_along_axis(np.broadcast_to(wanted, r.placements.device.shape), r.group, axis=1)
            used.append(float((r.placements.device == wanted).mean()))
            active = r.group >= 0
            weight = np.where(active, right - right[active].mean(), 0.0)
            gradient = policy.gradients(problem, r, weight)
            if not any(values.any() for values in gradient.values()):
                break  # all episodes are equal: there is nothing more to learn
            policy.apply(self._small(gradient, 100 * self.step))
        changed = f"the share of those devices changed from {used[0]:.3f} to {used[-1]:.3f}"
        assert used[-1] > used[0] + 0.02, changed + EQUAL_DEVICES * self.distinguishes_devices

    def _small(self, gradient: Parameters, length: float | None = None) -> Parameters:
        """The gradient at `length` (by default `step`)."""
        norm = np.sqrt(sum(float((values.astype(float) ** 2).sum()) for values in gradient.values()))
        assert norm > 0, "the gradient is zero"
        return {name: ((length or self.step) / norm * values).astype(values.dtype) for name, values in gradient.items()}

    @in_short
    def check_parameters(self, make: Make) -> None:
        """`apply` adds to the named parameters; loading them gives the same episodes, or an error that names a wrong one."""
        problem = fakes.chain()
        policy, other = self.learner(make, problem), self.learner(make, problem, seed=1)
        for name in policy.state_dict():
            before = _copy(policy)
            policy.apply({name: np.full_like(before[name], 0.25)})
            for key, values in policy.state_dict().items():
                added = 0.25 if key == name else 0.0
                assert np.allclose(values, before[key] + added, rtol=0, atol=1e-5), f"apply to {name!r}: {key!r}"
        _shake(policy, 0.1)
        good = _copy(policy)
        for name in good:
            wrong = {**good, name: np.zeros((*good[name].shape, 2), good[name].dtype)}
            for state in (wrong, {key: values for key, values in good.items() if key != name}):
                with pytest.raises(PlacekitError) as error:
                    other.load_state_dict(state)
                assert name in str(error.value), f"the error does not name {name!r}: {error.value}"
        other.load_state_dict(good)
        for name, values in other.state_dict().items():
            assert np.array_equal(values, good[name]), f"parameter {name!r} is not what was loaded"
        assert _same_episodes(self.drawn(policy, problem), self.drawn(other, problem)), "the episodes differ"

    @needs(Imitates)
    def check_imitates(self, make: Make) -> None:
        """Small steps along its gradient lower the loss, which is at least 0."""
        problem = fakes.chain()
        policy = self.learner(make, problem)
        teacher, rng = policy.rollout(problem, 1, np.random.default_rng(9), 1.0), np.random.default_rng(0)
        losses = []
        for _ in range(10):
            loss, gradient = policy.imitate(problem, teacher, rng)
            losses.append(loss)
            policy.apply(self._small(gradient))
        assert min(losses) >= 0
        assert losses[-1] < losses[0], f"the loss went from {losses[0]:.6g} to {losses[-1]:.6g}"

    @needs(Teaches)
    @in_short
    def check_teaches(self, make: Make) -> None:
        """`imitate` on one lesson helps with later lessons; equal generators give equal lessons."""
        problem = fakes.chain()
        policy = self.learner(make, problem)
        a, b = (policy.teach(problem, EPISODES, np.random.default_rng(3), 1.0) for _ in range(2))
        assert _same_episodes(a, b), "equal generators gave different lessons"
        rng, losses = np.random.default_rng(0), []
        for step in range(STEPS):
            lesson = policy.teach(problem, EPISODES, np.random.default_rng(step), 1.0)
            loss, gradient = policy.imitate(problem, lesson, rng)
            losses.append(loss)
            policy.apply(self._small(gradient, 10 * self.step))
        before, after = np.mean(losses[:5]), np.mean(losses[-5:])
        assert after < before, f"the loss of later lessons went from {before:.6g} to {after:.6g}"

    @needs(ExploresNear)
    @in_short
    def check_rollouts_near_a_placement(self, make: Make) -> None:
        """Episodes are near the placement (with `explore` 0, equal to it); only draws are learned."""
        problem = fakes.independent(20)
        policy = self.learner(make, problem)
        device, priority = self.drawn(policy, problem).placements.one(0)
        placement = problem.placement(device, priority)
        same = policy.rollout_near(problem, placement, EPISODES, np.random.default_rng(0), 0.0)
        assert (same.placements.device == device).all(), "with explore=0, the episodes differ from the placement"
        silent = policy.gradients(problem, same, np.ones(same.log_prob.shape))
        assert not any(values.any() for values in silent.values()), "decisions that were not drawn have a gradient"
        near = policy.rollout_near(problem, placement, 40, np.random.default_rng(0), 0.3)
        problem.check(near.placements)
        elsewhere = float((near.placements.device != device).mean())
        assert 0 < elsewhere < 0.4, f"{elsewhere:.0%} of the groups are elsewhere, where 30% of the decisions are drawn"
        _shaped(policy, policy.gradients(problem, near, np.ones(near.log_prob.shape)))

    test_episodes = together(
        "Episodes are well formed and reproducible; parameters can be changed, saved and loaded.",
        check_rollouts_are_well_formed,
        check_placements_agree_with_decisions,
        check_rollouts_near_a_placement,
        check_same_generator_same_rollouts,
        check_builds_for_problems_of_several_sizes,
        check_parameters,
    )
    test_learning = together(
        "Probabilities, divergences and their gradients are right; the policy learns from rewards and from a teacher.",
        check_gradients_match_finite_differences,
        check_kl,
        check_values,
        check_rewarded_decisions_become_frequent,
        check_imitates,
        check_teaches,
    )


def _agrees(policy: LearnablePolicy, gradient: Parameters, objective: Callable[[], float | None], what: str) -> bool:
    """Check a gradient by differences of `objective` in random directions; False if `objective` is None somewhere."""
    exact = all(values.dtype == np.float64 for values in policy.state_dict().values())
    h, tolerance = (1e-5, 1e-4) if exact else (3e-3, 3e-2)
    rng = np.random.default_rng(2)
    for name, values in gradient.items():
        direction = rng.standard_normal(values.shape)
        direction /= np.linalg.norm(direction)
        sides = []
        for move in (h, -2 * h):
            policy.apply({name: (move * direction).astype(values.dtype)})
            sides.append(objective())
        policy.apply({name: (h * direction).astype(values.dtype)})
        above, below = sides
        if above is None or below is None:
            return False
        expected, got = (above - below) / (2 * h), float((values * direction).sum())
        scale = max(1.0, float(np.linalg.norm(values)))
        assert abs(expected - got) <= tolerance * scale, (
            f"the gradient by {name!r} is {got:.6g} in a direction in which the objective rises by {expected:.6g} ({what})"
        )
    return True


def _minus_twice_kl(policy: ReportsKL, problem: Problem, r: Rollouts) -> float:
    return -2 * float(policy.kl(problem, r)[r.group >= 0].sum())


def _same_decisions(a: Rollouts, b: Rollouts) -> bool:
    """Whether the decisions are equal, including those in `extra` (its whole numbers)."""
    whole = [name for name, values in a.extra.items() if values.dtype.kind in "iu"]
    same = np.array_equal(a.group, b.group) and np.array_equal(a.device, b.device)
    return same and all(np.array_equal(a.extra[name], b.extra[name]) for name in whole)


def _same_episodes(a: Rollouts, b: Rollouts) -> bool:
    """Whether the decisions and, to the last bit, their probabilities are equal."""
    names = ("group", "device", "log_prob", "entropy")
    return np.array_equal(a.placements.device, b.placements.device) and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in names
    )


def _shake(policy: LearnablePolicy, size: float) -> None:
    """Add normal noise of standard deviation `size` to all parameters."""
    rng, state = np.random.default_rng(3), policy.state_dict()
    policy.apply({name: (size * rng.standard_normal(v.shape)).astype(v.dtype) for name, v in state.items()})


def _copy(policy: LearnablePolicy) -> Parameters:
    """The parameters, as arrays that later steps do not change."""
    return {name: np.array(values) for name, values in policy.state_dict().items()}


def _shaped(policy: LearnablePolicy, gradient: Parameters) -> None:
    parameters = policy.state_dict()
    assert gradient, "there are no gradients"
    for name, values in gradient.items():
        assert name in parameters, f"{name!r} is not a parameter; parameters: {', '.join(parameters)}"
        assert values.shape == parameters[name].shape, f"the gradient by {name!r} has shape {values.shape}"
        assert np.isfinite(values).all(), f"the gradient by {name!r} is not finite"
