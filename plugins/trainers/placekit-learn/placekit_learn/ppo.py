"""Proximal policy optimization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placekit_core import EstimatesReturns, LearnablePolicy, RecomputesLogProb, ReportsKL, Task, able
from placekit_learn.options import PPOOptions
from placekit_learn.policy_gradient import Batch, PolicyGradient

Floats = NDArray[np.float64]
LEAST, MOST = 1e-3, 1e3  # limits of the KL penalty's weight: without them it ends up at 0 or infinity
TOLERANCE, FACTOR = 1.5, 2.0  # Schulman et al. 2017, section 4
OF_VALUES = ("gae_lambda", "discount", "value_weight")  # the options that only policies with a value function read
_LARGEST_LOG_RATIO = 20.0  # keeps ratios finite where nothing is clipped


class PPO(PolicyGradient):
    """Schulman et al. 2017: several steps per batch on the ratio of new to old probabilities of its decisions.

    Option `clip` is the clipped objective (Eq. 7), `kl_target` the adaptive KL penalty (section 4); both can be used.

    If the policy has a value function (`EstimatesReturns`), advantages are estimated for each decision, and every step of the
    optimizer also lowers the values' squared errors (Eq. 9). The reward comes with the last decision of an episode: the
    advantage of its placement over the baseline. So without a discount, a value is the mean of that advantage over all ways in
    which the episode can go on. A decision is credited with the change of that mean from before the decision to after it
    (`gae_lambda=0`), to the episode's end (1), or to between the two. Without values, all decisions share the noise of earlier
    ones; with them, it drops out.

    Attributes:
        beta: present weight of the KL penalty.
    """

    name = "ppo"
    options_class = PPOOptions
    beta: float

    def improve(self, policy: LearnablePolicy, batch: Batch) -> None:
        o = self.options
        beta = self.beta / o.samples if o.kl_target is not None else 0.0
        # at first all ratios are 1, and the divergence is 0, where it has no gradient
        self.ascend(policy, batch, batch.weight, batch.entropy_weight)
        for _ in range(o.epochs - 1):
            again = able(policy, RecomputesLogProb, "choose trainer=reinforce")
            ratio = ratios(again.log_prob(batch.problem, batch.rollouts), batch.rollouts.log_prob)
            weight = surrogate_weights(ratio, batch.weight, o.clip)
            self.ascend(policy, batch, weight, batch.entropy_weight, beta)
        if o.kl_target is not None:
            moved = able(policy, ReportsKL, "leave out trainer.kl_target")
            kl = moved.kl(batch.problem, batch.rollouts)[batch.rollouts.group >= 0].mean()
            self.learned["kl"] = float(kl)
            self.beta = min(max(adapted(self.beta, float(kl), o.kl_target), LEAST), MOST)

    def fit(self, policy: LearnablePolicy, *rest: Any, **more: Any) -> None:
        for name in OF_VALUES:
            if getattr(self.options, name) not in (None, type(self.options).model_fields[name].default):
                able(policy, EstimatesReturns, f"leave out trainer.{name}, or choose a policy with a value function")
        super().fit(policy, *rest, **more)

    def credited(self, policy: LearnablePolicy, batch: Batch) -> Batch:
        """The batch with the returns and generalized advantages of a policy with a value function."""
        o, each = self.options, batch.weight[:, :1]
        count = np.count_nonzero(batch.counted)
        if not isinstance(policy, EstimatesReturns) or o.gae_lambda is None or not count:
            return batch
        active = (batch.rollouts.group >= 0) & batch.counted[:, None]
        reward = np.where(active & ~np.pad(active[:, 1:], ((0, 0), (0, 1))), count * each, 0.0)
        value = policy.values(batch.problem, batch.rollouts)
        advantage = generalised_advantages(reward, value, active, o.discount, o.gae_lambda)
        returns = generalised_advantages(reward, np.zeros_like(reward), active, o.discount, 1.0)
        return replace(batch, weight=advantage / count, returns=np.where(active, returns, np.nan))

    def gradients(
        self, policy: LearnablePolicy, batch: Batch, weight: Floats, entropy_weight: float, kl_weight: float
    ) -> Mapping[str, NDArray[Any]]:
        found = super().gradients(policy, batch, weight, entropy_weight, kl_weight)
        if batch.returns is None:
            return found
        assert isinstance(policy, EstimatesReturns)
        error = batch.returns - policy.values(batch.problem, batch.rollouts)
        self.learned["value_loss"] = float(np.nanmean(error**2))
        count = np.isfinite(error[:, 0]).sum()
        downhill = 2 * self.options.value_weight * np.nan_to_num(error) / count
        of_values = policy.value_gradients(batch.problem, batch.rollouts, downhill)
        return {name: values + of_values[name] for name, values in found.items()}

    def start(self, tasks: Sequence[Task]) -> None:
        super().start(tasks)
        self.beta = self.options.kl_weight

    def state(self) -> dict[str, Any]:
        return {**super().state(), "beta": self.beta}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.beta = float(state["beta"])


def generalised_advantages(
    reward: Floats, value: Floats, active: NDArray[np.bool_], discount: float, gae_lambda: float
) -> Floats:
    """[b, T] advantages of decisions (Schulman et al. 2016, Eq. 16), 0 where a decision is not `active` [b, T].

    A decision's error is its reward [b, T], plus the discounted value of the next decision, minus its own value [b, T]; after
    the last decision the value is 0. Its advantage is the sum of the errors from it on, each `discount * gae_lambda` times
    as much as the one before it. With values of 0 and `gae_lambda` 1 these are the returns.
    """
    found = np.zeros_like(reward)
    after, following = np.zeros(len(reward)), np.zeros(len(reward))
    for t in reversed(range(reward.shape[1])):
        error = reward[:, t] + discount * after - value[:, t]
        following = np.where(active[:, t], error + discount * gae_lambda * following, 0.0)
        after = np.where(active[:, t], value[:, t], 0.0)
        found[:, t] = following
    return found


def ratios(log_prob: Floats, old: Floats) -> Floats:
    """[b, T] new over old probability of each decision; meaningless, but finite, after the end of an episode."""
    with np.errstate(invalid="ignore"):
        difference = np.nan_to_num(log_prob - old, nan=0.0)
    return np.asarray(np.exp(np.clip(difference, -_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)))


def surrogate_weights(ratio: Floats, advantage: Floats, clip: float | None) -> Floats:
    """[b, T] weights of the log-probabilities whose gradient is that of min(ratio * A, clip(ratio) * A).

    The gradient of a ratio is the ratio times that of its log-probability; where the clipped term is the smaller one, the
    gradient is 0.
    """
    weight = ratio * advantage
    if clip is None:
        return weight
    flat = np.where(advantage > 0, ratio > 1 + clip, ratio < 1 - clip)
    return np.where(flat, 0.0, weight)


def adapted(beta: float, kl: float, target: float) -> float:
    """The weight of the KL penalty after an update that ended at divergence `kl`, nats per decision."""
    if kl > TOLERANCE * target:
        return beta * FACTOR
    return beta / FACTOR if kl < target / TOLERANCE else beta
