"""Proximal policy optimisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placekit_core import LearnablePolicy, RecomputesLogProb, ReportsKL, Task, able
from placekit_learn.options import PPOOptions
from placekit_learn.policy_gradient import Batch, PolicyGradient

Floats = NDArray[np.float64]
LEAST, MOST = 1e-3, 1e3  # limits of the KL penalty's weight: without them it ends up at 0 or infinity
TOLERANCE, FACTOR = 1.5, 2.0  # Schulman et al. 2017, section 4
_LARGEST_LOG_RATIO = 20.0  # keeps ratios finite where nothing is clipped


class PPO(PolicyGradient):
    """Schulman et al. 2017: several steps per batch on the ratio of new to old probabilities of its decisions.

    Option `clip` is the clipped objective (Eq. 7), `kl_target` the adaptive KL penalty (section 4); both can be used.

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

    def start(self, tasks: Sequence[Task]) -> None:
        super().start(tasks)
        self.beta = self.options.kl_weight

    def state(self) -> dict[str, Any]:
        return {**super().state(), "beta": self.beta}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.beta = float(state["beta"])


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
