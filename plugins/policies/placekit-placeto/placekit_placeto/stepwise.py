"""Trainer `stepwise`: a reward and a baseline for each step of an episode (Addanki et al. 2019, sections 2.1 and 2.3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from placekit_learn.policy_gradient import Batch, PolicyGradient
from placekit_learn.rewards import EQUAL, RewardFunction

from placekit_core import LearnablePolicy, Measurements, PlacekitError, Placements, Problem, Rollouts, Task
from placekit_placeto import StepwiseOptions

Floats = NDArray[np.float64]
GIB = 2.0**30


class Stepwise(PolicyGradient):
    """REINFORCE for policies that improve a placement step by step, that is, whose rollouts have a `start`.

    With `rewards=intermediate`, a step is rewarded by how much the worth of the placement rises; the placements of all steps
    are evaluated, and count. A step that leaves its group where it is changes nothing: its placement is not evaluated
    again. With `rewards=terminal`, only the last placement is evaluated, and its worth is the last step's reward. A step's
    return is the sum of the rewards from it on, each `discount` times as much as the one before it. The advantage is the
    return minus its mean at this step over the last `window` updates of the same problem, this one included.
    """

    name = "stepwise"
    options_class = StepwiseOptions
    options: StepwiseOptions

    def weights(self, task: Task, rewards: RewardFunction, rollouts: Rollouts) -> Floats:
        if rollouts.start is None:
            raise PlacekitError(
                f"trainer {self.name!r} needs a policy whose episodes improve a placement step by step",
                "use another trainer, or policy=placeto",
            )
        assert isinstance(rewards, StepAdvantages)
        active = rollouts.group >= 0
        if self.options.rewards == "terminal":
            reward = np.zeros(active.shape)
            reward[:, -1] = rewards.of(task.evaluate(rollouts.placements), task.problem)
        else:
            device, row = visited_placements(rollouts)
            reward = np.diff(rewards.of(task.evaluate(Placements.of(device)), task.problem)[row], axis=1)
        return rewards.advantages(reward, active)

    def improve(self, policy: LearnablePolicy, batch: Batch) -> None:
        self.ascend(policy, batch, batch.weight, batch.entropy_weight)

    def reward_function(self, task: Task) -> RewardFunction:
        return StepAdvantages(self.options, task.evaluate.failing_signal_s)


def visited_placements(rollouts: Rollouts) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """All placements that the episodes pass through, without a repetition where a step changes nothing.

    Returns their devices [m, g], episode by episode, and [b, T + 1] the row of the placement before each step and after the
    last one.
    """
    assert rollouts.start is not None
    b, steps = rollouts.group.shape
    current = rollouts.start.device.copy()
    found, row, count = [], np.empty((b, steps + 1), np.int64), 0
    for i in range(b):
        found.append(current[i].copy())
        row[i, 0] = count
        for t in range(steps):
            group, device = rollouts.group[i, t], rollouts.device[i, t]
            if group >= 0 and current[i, group] != device:
                current[i, group] = device
                found.append(current[i].copy())
                count += 1
            row[i, t + 1] = count
        count += 1
    return np.stack(found), row


class StepAdvantages(RewardFunction):
    """Rewards of one problem's placements, and advantages over the mean returns of the last updates."""

    def __init__(self, options: StepwiseOptions, failing_signal_s: float) -> None:
        super().__init__(options, failing_signal_s)
        self.options = options
        self.returns: Floats = np.empty((0, 0))

    def of(self, m: Measurements, problem: Problem) -> Floats:
        """[m] rewards of placements: reduced by the excess if a placement exceeds memory; the reward of `failing_s` if it
        failed."""
        measured = np.isfinite(m.value_s)
        if measured.any():
            self.record(m.value_s[measured])
        excess = np.maximum(m.peak_bytes - problem.cluster.memory_bytes, 0.0).max(axis=1) / GIB
        penalty_s = self.options.memory_penalty * (self.scale_s or 0.0) * np.where(measured, excess, 0.0)
        return self.rewards(np.where(measured, m.value_s, self.failing_s) + penalty_s)

    def advantages(self, reward: Floats, active: NDArray[np.bool_]) -> Floats:
        """[b, T] advantages, divided by b, from the rewards [b, T] of the steps."""
        returns = reward.copy()
        for t in range(reward.shape[1] - 2, -1, -1):
            returns[:, t] += self.options.discount * returns[:, t + 1]
        mean = returns.mean(axis=0, keepdims=True)
        kept = self.returns if len(self.returns) else np.empty((0, mean.shape[1]))
        self.returns = np.concatenate([kept, mean])[-self.options.window :]
        advantage = returns - self.returns.mean(axis=0)
        deviation = float(advantage[active].std()) if self.options.normalise else 1.0
        if deviation <= EQUAL * float(np.abs(returns).mean()):  # all rewards are equal, up to rounding errors
            deviation = 1.0
        return np.where(active, advantage, 0.0) / len(reward) / deviation

    def state(self) -> dict[str, Any]:
        return {**super().state(), "returns": self.returns}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.returns = np.array(state["returns"])
