"""Rewards and baselines by hand, what counts when, PPO's penalty, schedules, and where the time goes."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from placekit_learn.optimisers import clipped
from placekit_learn.options import PolicyGradientOptions
from placekit_learn.policy_gradient import TOO_FEW, PolicyGradient, Reinforce, between
from placekit_learn.ppo import PPO, adapted, generalised_advantages, ratios, surrogate_weights
from placekit_learn.rewards import Advantages
from placekit_testing import fakes

from placekit_core import BudgetExhausted, ConfigError, Measurements, Problem, Rollouts

SIGNAL_S = 100.0


def measured(*values_s: float | None) -> Measurements:
    """Values of placements; None for one that failed, a negative one of its size that does not fit."""
    value = np.array([np.nan if v is None else abs(v) for v in values_s])
    fits = np.array([v is not None and v > 0 for v in values_s])
    return Measurements(value, np.zeros((len(value), 1)), fits, tuple("bad" if v is None else None for v in values_s))


def rewards(**options: Any) -> Advantages:
    return Advantages(PolicyGradientOptions(**options), SIGNAL_S)


@pytest.mark.parametrize(
    ("reward", "expected"),
    [("sqrt", [-1, -2, -3]), ("linear", [-1, -4, -9]), ("scaled", [-3 / 14, -12 / 14, -27 / 14])],
)
def test_rewards(reward: str, expected: list[float]) -> None:
    r = rewards(reward=reward)
    r.weights(measured(1, 4, 9))
    assert r.rewards(np.array([1.0, 4.0, 9.0])).tolist() == pytest.approx(expected)
    r.weights(measured(100, 100, 100))  # the scale stays that of the first batch
    assert r.rewards(np.array([1.0, 4.0, 9.0])).tolist() == pytest.approx(expected)


def test_slow_measurements_count_at_most_so_many_times_the_median() -> None:
    """As if a second of 1000 were one of 6, the failing one twice that."""
    usual, limited, expected = rewards(), rewards(), rewards()
    limited.at_most = 3
    given, meant = measured(1, 2, 1000, None), measured(1, 2, 6, None)
    weights = limited.weights(given)
    assert weights.tolist() == pytest.approx(expected.weights(meant).tolist())
    assert limited.failing_s == 2 * 6
    assert usual.weights(given).tolist() != weights.tolist()


def test_moving_average() -> None:
    r = rewards(reward="linear", baseline_decay=0.75)
    assert r.weights(measured(1, 3)).tolist() == [0.5, -0.5]  # baseline -2, the first batch's mean
    assert r.weights(measured(6, 6)).tolist() == [-2, -2]
    assert r.baseline == 0.75 * -2 + 0.25 * -6
    assert r.weights(measured(3, 3)).tolist() == [0, 0]


@pytest.mark.parametrize(("failing", "failing_s"), [("signal", SIGNAL_S), ("worst", 8.0)])
def test_what_a_failure_counts(failing: str, failing_s: float) -> None:
    r = rewards(reward="linear", failing=failing)
    mean = -(2 + 4 + 2 * failing_s) / 4
    assert r.weights(measured(2, None, 4, -3)) * 4 == pytest.approx(np.array([-2, -failing_s, -4, -failing_s]) - mean)
    r.weights(measured(1, 1))  # what was slow once stays the measure
    assert r.failing_s == failing_s


def test_the_mean_of_all_earlier_rewards() -> None:
    r = rewards(reward="linear", baseline="mean")
    assert r.weights(measured(1, 3)).tolist() == [0.5, -0.5]  # baseline -2, the first batch's mean
    assert r.weights(measured(6)).tolist() == [-4]
    assert r.baseline == pytest.approx(-(1 + 3 + 6) / 3)
    again = rewards(reward="linear", baseline="mean")
    again.restore(r.state())
    assert again.weights(measured(2)).tolist() == r.weights(measured(2)).tolist() == pytest.approx([-2 + 10 / 3])
    assert again.baseline == r.baseline == pytest.approx(-12 / 4)
    r = rewards(reward="linear", failing="signal", baseline="mean", baseline_start="failing")
    assert r.weights(measured(1, 3)).tolist() == [(SIGNAL_S - 1) / 2, (SIGNAL_S - 3) / 2]
    assert r.baseline == pytest.approx(-(SIGNAL_S + 1 + 3) / 3)


def test_a_batch_may_be_its_own_baseline() -> None:
    r = rewards(reward="linear", baseline="batch")
    for _ in range(2):
        assert r.weights(measured(1, 3)).tolist() == [0.5, -0.5]
        assert r.weights(measured(10, 20)).tolist() == [2.5, -2.5]
    r = rewards(reward="linear", failing="worst", baseline="batch", normalise=True)
    assert r.weights(measured(1, 3, None)).tolist() == pytest.approx(
        np.array([7 / 3, 1 / 3, -8 / 3]) / 3 / np.std([1, 3, 6])
    )
    with pytest.raises(ValueError, match="samples must be 2 or more"):
        PolicyGradientOptions(baseline="batch", samples=1)


@pytest.mark.parametrize(("failing", "baseline"), [("signal", -10.0), ("worst", -4.0)])
def test_baseline_starts_at_a_failure(failing: str, baseline: float) -> None:
    r = rewards(reward="sqrt", failing=failing, baseline_start="failing", baseline_decay=0.5)
    assert r.weights(measured(4, 8)).tolist() == pytest.approx([(-2 - baseline) / 2, (-(8**0.5) - baseline) / 2])
    assert r.baseline == pytest.approx((baseline + (-2 - 8**0.5) / 2) / 2)


def test_nothing_is_learned_until_something_fits() -> None:
    for start in ("first", "failing"):
        r = rewards(reward="scaled", baseline_start=start)
        assert r.weights(measured(None, -5)).tolist() == [0, 0]
        assert r.state() == {"baseline": None, "seen": 0, "scale_s": None, "worst_s": None}
        assert (r.weights(measured(None, 5)) * [-1, 1] > 0).all() == (start == "first")
        assert r.scale_s == 5


def test_only_fitting() -> None:
    r = rewards(reward="linear", baseline_decay=0.5)
    r.weights(measured(2, 2))
    assert r.weights(measured(1, None, 2, -9), only_fitting=True).tolist() == [0.5, 0, 0, 0]
    assert r.baseline == -1.75
    assert r.weights(measured(None, None), only_fitting=True).tolist() == [0, 0]
    assert r.baseline == -1.75


def test_normalised() -> None:
    r = rewards(reward="linear", normalise=True)
    assert r.weights(measured(1, 5)).tolist() == [0.5, -0.5]
    assert r.weights(measured(5, 5)).tolist() == [-1, -1]  # no deviation: as they are


def test_state_of_rewards() -> None:
    r, other = rewards(reward="scaled"), rewards(reward="scaled")
    r.weights(measured(1, None, 3))
    other.restore(r.state())
    assert np.array_equal(r.weights(measured(2, None)), other.weights(measured(2, None)))


class Watched(fakes.FakeLearnable):
    """Records what it is asked for."""

    def build(self, problems: Any, rng: Any) -> None:
        super().build(problems, rng)
        self.weights: list[np.ndarray] = []
        self.entropy_weights: list[float] = []
        self.kl_weights: list[float] = []
        self.explored: list[float] = []
        self.steps: list[np.ndarray] = []
        self.problems: list[Problem] = []

    def rollout(self, problem: Problem, n: int, rng: Any, explore: float = 0.0) -> Rollouts:
        self.explored.append(explore)
        self.problems.append(problem)
        return super().rollout(problem, n, rng, explore)

    def gradients(
        self, problem: Any, rollouts: Any, weight: Any, entropy_weight: float = 0.0, kl_weight: float = 0.0
    ) -> Any:
        self.weights.append(weight)
        self.entropy_weights.append(entropy_weight)
        self.kl_weights.append(kl_weight)
        return super().gradients(problem, rollouts, weight, entropy_weight, kl_weight)

    def apply(self, steps: Any) -> None:
        self.steps.append(steps["logits"])
        super().apply(steps)


def trained(trainer: PolicyGradient, *problems: Problem, budget: int = 100, failing: float = 0.0) -> Watched:
    policy, ledger = Watched(), fakes.Ledger(budget)
    policy.build(problems, np.random.default_rng(0))
    tasks = [fakes.fake_task(p, ledger, failing) for p in problems]
    with pytest.raises(BudgetExhausted):
        trainer.fit(policy, tasks, np.random.default_rng(0))
    return policy


def test_schedules_follow_the_budget() -> None:
    policy = trained(
        Reinforce(explore=1.0, explore_end=0.2, entropy_weight=0.5, entropy_weight_end=0.0, samples=25), fakes.chain()
    )
    assert policy.explored == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    assert np.array(policy.entropy_weights) * 25 == pytest.approx([0.5, 0.375, 0.25, 0.125])
    assert between(2.0, None, 0.7) == 2.0


@pytest.mark.parametrize(("budget", "learned"), [(1, False), (4, False), (5, True), (10, True)])
def test_a_budget_too_small_for_an_update_is_told(budget: int, learned: bool) -> None:
    task = fakes.fake_task(fakes.diamond(), budget)
    policy = fakes.FakeLearnable()
    policy.build([task.problem], np.random.default_rng(0))
    with pytest.raises(BudgetExhausted):
        Reinforce(samples=5).fit(policy, [task], np.random.default_rng(0))
    assert (task.evaluate.notes == [TOO_FEW]) is not learned


def test_learning_rate_decays() -> None:
    o: dict[str, Any] = {"samples": 25, "optimiser": "sgd", "learning_rate": 0.4, "max_gradient_norm": 1e-9}
    policy = trained(Reinforce(**o, learning_rate_end=0.0), fakes.unequal(12))
    assert [np.linalg.norm(s) / 1e-9 for s in policy.steps] == pytest.approx([0.4, 0.3, 0.2, 0.1])


def test_tasks_take_turns() -> None:
    a, b, c = fakes.unequal(12), fakes.chain(), fakes.mixed()
    trainer = Reinforce()
    policy = trained(trainer, a, b, c, budget=60)
    assert policy.problems == [a, b, c, a, b, c, a]  # the last finds the budget used up
    assert trainer.updates == 6
    assert len({r.baseline for r in trainer.rewards}) == 3


def test_failures_stop_counting() -> None:
    policy = trained(Reinforce(only_fitting_after=2), fakes.unequal(12), failing=0.5)
    ignored = [(w == 0).all(axis=1).any() for w in policy.weights]
    assert ignored == [False, False] + [True] * (len(ignored) - 2)
    assert len(ignored) > 5


@pytest.mark.parametrize("trainer", [Reinforce(), PPO(kl_target=0.01)])
def test_failures_alone_change_nothing(trainer: PolicyGradient) -> None:
    assert trained(trainer, fakes.chain(), failing=1.0).steps == []
    assert trainer.updates == 10


def test_entropy_counts_even_while_nothing_fits() -> None:
    assert len(trained(Reinforce(entropy_weight=0.1), fakes.chain(), failing=1.0).steps) == 10


@pytest.mark.parametrize("trainer", [Reinforce(), PPO(), PPO(kl_target=0.01)])
def test_each_update_is_logged(trainer: PolicyGradient) -> None:
    policy, task, rows = fakes.FakeLearnable(), fakes.fake_task(fakes.unequal(12), 100), []
    policy.build([task.problem], np.random.default_rng(0))
    task = replace(task, evaluate=(evaluate := task.evaluate))
    evaluate.log = lambda **values: rows.append(values)  # type: ignore[method-assign]
    with pytest.raises(BudgetExhausted):
        trainer.fit(policy, [task], np.random.default_rng(0))
    assert len(rows) == trainer.updates
    assert all(row.keys() == {"loss", "entropy", "kl", "gradient_norm"} for row in rows)
    assert all(row["kl"] > 0 for row in rows)


def test_seconds_are_counted() -> None:
    trainer = Reinforce()
    trained(trainer, fakes.unequal(12))
    assert trainer.seconds.keys() == {"rollout", "evaluate", "update"}
    assert all(s > 0 for s in trainer.seconds.values())


def test_epochs_and_penalty() -> None:
    trainer = PPO(epochs=3, kl_target=0.03, kl_weight=0.7, samples=50, learning_rate=0.1)
    policy = trained(trainer, fakes.unequal(12))
    assert np.array(policy.kl_weights[:3]) * 50 == pytest.approx([0, 0.7, 0.7])
    assert len(policy.kl_weights) == 6
    assert trainer.beta in (0.7 / 4, 0.7 / 2, 0.7, 1.4, 2.8)


def test_one_epoch_of_ppo_is_reinforce() -> None:
    ppo, reinforce = (trained(t, fakes.unequal(12)).state_dict() for t in (PPO(epochs=1), Reinforce()))
    assert np.array_equal(ppo["logits"], reinforce["logits"])


def test_penalty_adapts() -> None:
    assert adapted(1.0, 0.046, 0.03) == 2.0
    assert adapted(1.0, 0.044, 0.03) == 1.0
    assert adapted(1.0, 0.021, 0.03) == 1.0
    assert adapted(1.0, 0.019, 0.03) == 0.5


def test_penalty_keeps_the_policy_close() -> None:
    """Larger targets let the policy go further in one batch."""
    moved = []
    for target in (1e-4, 1e-1):
        trainer = PPO(epochs=20, clip=None, kl_target=target, samples=50, learning_rate=0.05)
        policy = trained(trainer, fakes.unequal(12), budget=2000)
        moved.append(np.abs(policy.logits).max())
    assert moved[0] < moved[1]


def test_clip() -> None:
    ratio = np.array([[0.5, 1.0, 1.5]])
    assert surrogate_weights(ratio, np.full((1, 3), 2.0), 0.2).tolist() == [[1, 2, 0]]
    assert surrogate_weights(ratio, np.full((1, 3), -2.0), 0.2).tolist() == [[0, -2, -3]]
    assert surrogate_weights(ratio, np.full((1, 3), 2.0), None).tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(("discount", "lam"), [(1.0, 1.0), (0.9, 0.8), (1.0, 0.0), (0.7, 1.0)])
def test_generalised_advantages_are_weighted_sums_of_errors(discount: float, lam: float) -> None:
    """Schulman et al. 2016, Eq. 16, written as its sum, for episodes of 5, 3 and 1 decisions."""
    rng, ends = np.random.default_rng(0), [5, 3, 1]
    reward, value = rng.standard_normal((2, 3, 5))
    active = np.arange(5) < np.array(ends)[:, None]
    got = generalised_advantages(reward, value, active, discount, lam)
    for i, end in enumerate(ends):
        v = [*value[i, :end], 0.0]
        for t in range(end):
            errors = [reward[i, s] + discount * v[s + 1] - v[s] for s in range(t, end)]
            assert got[i, t] == pytest.approx(sum((discount * lam) ** k * e for k, e in enumerate(errors)))
            if lam == 1:  # the return minus the value
                later = sum(discount**k * r for k, r in enumerate(reward[i, t:end]))
                assert got[i, t] == pytest.approx(later - v[t])
    assert not got[~active].any()


@pytest.mark.parametrize("option", [{"gae_lambda": 0.9}, {"discount": 0.9}, {"value_weight": 1.0}])
def test_options_of_values_need_values(option: dict[str, float]) -> None:
    task, policy = fakes.fake_task(fakes.chain(), 100), fakes.FakeLearnable()
    policy.build([task.problem], np.random.default_rng(0))
    with pytest.raises(ConfigError, match=f"cannot estimate returns\n.*leave out trainer.{next(iter(option))}"):
        PPO(**option).fit(policy, [task], np.random.default_rng(0))


def test_ratios_are_finite() -> None:
    assert np.isfinite(ratios(np.array([[-900.0, 0.0, -np.inf]]), np.array([[0.0, -900.0, -np.inf]]))).all()


def test_gradient_norm() -> None:
    gradients = {"a": np.array([3.0], np.float32), "b": np.array([[4.0]])}
    assert clipped(gradients, 5.0) is gradients
    assert clipped(gradients, None) is gradients
    short = clipped(gradients, 1.0)
    assert short["a"] == pytest.approx([0.6])
    assert short["b"] == pytest.approx(np.array([[0.8]]))
    assert short["a"].dtype == np.float32


@pytest.mark.parametrize("make", [Reinforce, PPO])
def test_learns_on_the_proxy_first(make: Any) -> None:
    """Its budget is used up before the first evaluation, which is of a trained policy."""
    problem = fakes.unequal(12)
    first = {}
    for pretrained in (False, True):
        task = fakes.fake_task(problem, 40)
        if pretrained:
            proxy = fakes.fake_task(problem, 800).evaluate
            task = replace(task, open_proxy=lambda proxy=proxy: proxy, proxy_evaluations=800)
        policy = fakes.FakeLearnable()
        policy.build([problem], np.random.default_rng(0))
        trainer = make(samples=10, learning_rate=0.1)
        with contextlib.suppress(BudgetExhausted):
            trainer.fit(policy, [task], np.random.default_rng(1))
        assert task.evaluate.evaluations == 40
        first[pretrained] = task.evaluate.history[0][3]
        assert trainer.pretrained == pretrained
        assert trainer.updates == (84 if pretrained else 4)
    assert first[True] < 0.9 * first[False]
