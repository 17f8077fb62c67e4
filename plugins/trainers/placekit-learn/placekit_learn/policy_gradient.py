"""The loop that all policy gradient trainers share, and REINFORCE."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import BaseModel

from placekit_core import (
    BudgetExhausted,
    Checkpoint,
    LearnablePolicy,
    Problem,
    ReportsKL,
    Rollouts,
    State,
    Task,
    Trainer,
)
from placekit_learn.optimisers import OPTIMISERS, Optimiser, clipped, norm
from placekit_learn.options import LearningOptions, ReinforceOptions
from placekit_learn.rewards import Advantages, RewardFunction

Floats = NDArray[np.float64]
TOO_FEW = "the budget ended before the first update: the policy learned nothing from rewards"


@dataclass(frozen=True, eq=False)
class Batch:
    """The input of one update.

    Attributes:
        problem: the problem that was placed.
        rollouts: the b episodes.
        weight: [b, T] advantage of each decision, divided by the number of episodes that count.
        entropy_weight: weight of the sum of all decisions' entropies.
        learning_rate: step size of the optimizer.
        counted: [b] whether an episode counts, as failures do not after `only_fitting_after` updates.
        returns: [b, T] return from each decision on, for the policy's value function; None if it is not trained.
    """

    problem: Problem
    rollouts: Rollouts
    weight: Floats
    entropy_weight: float
    learning_rate: float
    counted: NDArray[np.bool_]
    returns: Floats | None = None


@runtime_checkable
class DrawsWeights(Protocol):
    """A policy whose episodes each draw weights, from a distribution that it learns without a gradient; see `doppler`."""

    def learn_weights(self, rollouts: Rollouts, advantage: Floats, counted: NDArray[np.bool_]) -> None:
        """Learn from the [b] advantages of a batch of episodes, leaving out those that are not `counted` [b]."""


class PolicyGradient(Trainer):
    """Repeats: draw a batch of placements, evaluate it, improve the policy. The tasks take turns, one update each.

    With `budget.proxy_evaluations`, where the run's backend is not the proxy, it first learns on the proxy until these
    evaluations are used up. Subclasses improve the policy in `improve`. All decisions of an episode have the advantage of
    the placement in which it ends, unless a subclass says otherwise in `weights`.

    Attributes:
        updates, proxy_updates: batches so far, and how many of them were on the proxy.
        pretrained: whether learning on the proxy has ended.
        rewards: the reward function of each task.
        learned: numbers of the last update for the history, such as `gradient_norm`.
        seconds: time spent on `rollout`, `evaluate` and `update`.
        shared: returns the optimizer of this name that several processes share; None: this process has its own.
    """

    options_class: ClassVar[type[BaseModel]] = LearningOptions
    shared: Callable[[str], Optimiser] | None = None
    updates: int
    proxy_updates: int
    pretrained: bool
    optimiser: Optimiser
    rewards: list[RewardFunction]
    seconds: dict[str, float]
    learned: dict[str, float]

    def fit(
        self,
        policy: LearnablePolicy,
        tasks: Sequence[Task],
        rng: Generator,
        state: State | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.start(tasks)
        if state is not None:
            self.restore(state)
        proxies = [proxy for task in tasks if (proxy := task.pretraining) is not None]
        if proxies and not self.pretrained:
            cheaper = [replace(task, evaluate=proxy) for task, proxy in zip(tasks, proxies, strict=True)]
            # the budget's seconds are for the run's backend
            with suppress(BudgetExhausted), tasks[0].evaluate.ledger.paused():
                self._learn(policy, cheaper, rng, checkpoint)
            self.pretrained, self.proxy_updates = True, self.updates
            self.rewards = self._new_rewards(tasks)  # seconds on the other backend are not comparable
        self.learn_until_end(policy, tasks, rng, checkpoint)

    def _learn(
        self, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, checkpoint: Checkpoint | None
    ) -> None:
        while True:  # until the evaluator's budget ends
            turn = self.updates % len(tasks)
            self._update(policy, tasks[turn], self.rewards[turn], rng)
            self.updates += 1
            if checkpoint is not None:
                checkpoint(self.state())

    def learn_until_end(
        self, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, checkpoint: Checkpoint | None
    ) -> None:
        """Learn until the budget of the run's backend ends. A note tells the user if it ends before the first update."""
        try:
            self._learn(policy, tasks, rng, checkpoint)
        except BudgetExhausted:
            if not self.updates:
                tasks[0].evaluate.note(TOO_FEW)
            raise

    def draw(self, policy: LearnablePolicy, task: Task, rng: Generator, explore: float) -> Rollouts:
        """The episodes of an update."""
        return policy.rollout(task.problem, self.options.samples, rng, explore)

    def weights(self, task: Task, rewards: RewardFunction, rollouts: Rollouts) -> Floats | None:
        """[b, T] advantage of each decision (that of its episode's placement), divided by the number of episodes that count.

        None if the batch is to be skipped, entropy included.
        """
        assert isinstance(rewards, Advantages)
        after = self.options.only_fitting_after
        only_fitting = after is not None and self.updates - self.proxy_updates >= after
        each = rewards.weights(task.evaluate(rollouts.placements), only_fitting)
        if only_fitting and not each.any():
            return None
        return np.where(rollouts.group >= 0, each[:, None], 0.0)

    def credited(self, policy: LearnablePolicy, batch: Batch) -> Batch:
        """The batch, with other advantages if a subclass estimates them for each decision."""
        return batch

    @abstractmethod
    def improve(self, policy: LearnablePolicy, batch: Batch) -> None:
        """Change the policy's parameters, learning from the batch."""

    def _update(self, policy: LearnablePolicy, task: Task, rewards: RewardFunction, rng: Generator) -> None:
        o, progress = self.options, task.evaluate.progress
        with self._timed("rollout"):
            explore = between(o.explore, o.explore_end, progress)
            rollouts = self.draw(policy, task, rng, explore)
        with self._timed("evaluate"):
            weight = self.weights(task, rewards, rollouts)
        entropy_weight = between(o.entropy_weight, o.entropy_weight_end, progress)
        if weight is None or not (weight.any() or entropy_weight):
            return
        with self._timed("update"):
            rate = between(o.learning_rate, o.learning_rate_end, progress)
            counted = np.full(len(weight), True) if rewards.counted is None else rewards.counted
            batch = Batch(task.problem, rollouts, weight, entropy_weight / o.samples, rate, counted)
            batch = self.credited(policy, batch)
            active = rollouts.group >= 0
            loss, entropy = -(batch.weight * rollouts.log_prob)[active].sum(), rollouts.entropy[active].mean()
            self.learned = {}
            self.improve(policy, batch)
            if self.learned and isinstance(policy, DrawsWeights):
                policy.learn_weights(rollouts, weight[:, 0], counted)
            if self.learned and "kl" not in self.learned and isinstance(policy, ReportsKL):
                self.learned["kl"] = float(policy.kl(task.problem, rollouts)[active].mean())
            if self.learned:
                task.log(loss=float(loss), entropy=float(entropy), **self.learned)

    def ascend(
        self, policy: LearnablePolicy, batch: Batch, weight: Floats, entropy_weight: float, kl_weight: float = 0.0
    ) -> None:
        """Make one step of the optimizer along the gradients."""
        found = self.gradients(policy, batch, weight, entropy_weight, kl_weight)
        self.learned["gradient_norm"] = norm(found)
        gradients = clipped(found, self.options.max_gradient_norm)
        policy.apply(self.optimiser.steps(gradients, batch.learning_rate))

    def gradients(
        self, policy: LearnablePolicy, batch: Batch, weight: Floats, entropy_weight: float, kl_weight: float
    ) -> Mapping[str, NDArray[Any]]:
        """The gradient of the objective, by parameter: the policy's own, unless a subclass adds to it."""
        return policy.gradients(batch.problem, batch.rollouts, weight, entropy_weight, kl_weight)

    def start(self, tasks: Sequence[Task]) -> None:
        """Begin anew."""
        self.updates = self.proxy_updates = 0
        self.optimiser = self.new_optimiser("policy")
        self.rewards, self.pretrained = self._new_rewards(tasks), False
        self.learned = {}
        self.seconds = {"rollout": 0.0, "evaluate": 0.0, "update": 0.0}

    def new_optimiser(self, name: str) -> Optimiser:
        """A new or shared optimizer; a trainer with several gives each a `name`."""
        return OPTIMISERS[self.options.optimiser]() if self.shared is None else self.shared(name)

    def _new_rewards(self, tasks: Sequence[Task]) -> list[RewardFunction]:
        return [self.reward_function(task) for task in tasks]

    def reward_function(self, task: Task) -> RewardFunction:
        """A new reward function for a task."""
        return Advantages(self.options, task.evaluate.failing_signal_s)

    def state(self) -> dict[str, Any]:
        """The trainer's state between two updates, for `restore`; without policy, generator and evaluators."""
        rewards = [r.state() for r in self.rewards]
        return {
            "updates": self.updates,
            "optimiser": self.optimiser.state(),
            "rewards": rewards,
            "pretrained": self.pretrained,
            "proxy_updates": self.proxy_updates,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`."""
        self.updates, self.proxy_updates = int(state["updates"]), int(state["proxy_updates"])
        self.pretrained = bool(state["pretrained"])
        self.optimiser.restore(state["optimiser"])
        for rewards, saved in zip(self.rewards, state["rewards"], strict=True):
            rewards.restore(saved)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - start


class Reinforce(PolicyGradient):
    """REINFORCE (Williams 1992) as in Mirhoseini et al. 2017, Eq. 3: one step per batch."""

    name = "reinforce"
    options_class = ReinforceOptions

    def improve(self, policy: LearnablePolicy, batch: Batch) -> None:
        self.ascend(policy, batch, batch.weight, batch.entropy_weight)


def between(start: float, end: float | None, progress: float) -> float:
    """A schedule's value at `progress` in [0, 1]."""
    return start if end is None else start + (end - start) * progress
