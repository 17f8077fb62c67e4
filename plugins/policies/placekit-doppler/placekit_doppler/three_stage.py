"""Trainer `three_stage`: imitation, then REINFORCE on the simulator, then on what measures (section 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

from numpy.random import Generator
from placekit_learn.optimisers import OPTIMISERS, clipped
from placekit_learn.policy_gradient import Batch, PolicyGradient, between
from placekit_learn.ppo import ratios, surrogate_weights

from placekit_core.errors import BudgetExhausted, ConfigError
from placekit_core.interfaces import Checkpoint, LearnablePolicy, Rollouts, State
from placekit_core.problem import Task
from placekit_doppler import ThreeStageOptions


class ThreeStage(PolicyGradient):
    """Three stages; option `stages` says which.

    I: `imitation_episodes` in which the policy learns from its own teacher (`LearnablePolicy.teach`); nothing is evaluated.
    II: REINFORCE on the proxy, or where the run's backend is one simulator, on that. III: REINFORCE on the run's backend, if
    that is another one than the proxy. What is left of the budget after the last stage is spent on placements that the policy
    draws, from which nothing is learned.

    Attributes:
        imitated: episodes of stage I so far.
    """

    name = "three_stage"
    options_class = ThreeStageOptions
    options: ThreeStageOptions
    imitated: int

    def fit(
        self,
        policy: LearnablePolicy,
        tasks: Sequence[Task],
        rng: Generator,
        state: State | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        o = self.options
        self.start(tasks)
        if state is not None:
            self.restore(state)
        two = any(task.open_proxy is not None for task in tasks)
        if 3 in o.stages and not two and 2 not in o.stages:
            raise ConfigError(
                "stage 3 learns from another backend than the simulator, and the run has one",
                "choose trainer.stages=[1,2], or a backend that measures: backend=cpu",
            )
        if o.near_best_from is not None and type(policy).rollout_near is LearnablePolicy.rollout_near:
            raise ConfigError(
                f"policy {policy.name!r} has no episodes near a placement", "choose trainer.near_best_from=null"
            )
        if 1 in o.stages:
            with tasks[0].evaluate.ledger.paused() if two else nullcontext():  # its seconds are for what measures
                self._imitate(policy, tasks, rng, checkpoint)
        if 2 in o.stages and two and not self.pretrained:
            cheaper = [replace(task, evaluate=task.proxy) for task in tasks]
            budget = tasks[0].proxy.ledger.limited(o.simulated_episodes)
            with suppress(BudgetExhausted), tasks[0].evaluate.ledger.paused(), budget:
                self._learn(policy, cheaper, rng, checkpoint)
            self.pretrained, self.begun = True, self.updates
            self.rewards = self._no_rewards(tasks)
        self.learns = (3 if two else 2) in o.stages
        self._learn(policy, tasks, rng, checkpoint)

    def _imitate(
        self, policy: LearnablePolicy, tasks: Sequence[Task], rng: Generator, checkpoint: Checkpoint | None
    ) -> None:
        o = self.options
        while self.imitated < o.imitation_episodes and tasks[0].evaluate.remaining > 0:
            progress = self.imitated / o.imitation_episodes
            problem = tasks[self.imitated // o.imitation_samples % len(tasks)].problem
            count = min(o.imitation_samples, o.imitation_episodes - self.imitated)
            lesson = policy.teach(problem, count, rng, between(1.0, 0.0, progress))
            _, found = policy.imitate(problem, lesson, rng)
            steps = self.teaching.steps(clipped(found, o.max_gradient_norm), o.imitation_learning_rate)
            policy.apply(steps)
            self.imitated += count
            if checkpoint is not None:
                checkpoint(self.state())

    def draw(self, policy: LearnablePolicy, task: Task, rng: Generator, explore: float) -> Rollouts:
        o, best, progress = self.options, task.evaluate.best, task.evaluate.progress
        if best is None or o.near_best_from is None or progress < o.near_best_from:
            return super().draw(policy, task, rng, explore)
        so_far = (progress - o.near_best_from) / max(1 - o.near_best_from, 1e-9)
        drawn = between(o.near_best_explore, o.near_best_explore_end, so_far)
        return policy.rollout_near(task.problem, best.placement, o.samples, rng, drawn)

    def improve(self, policy: LearnablePolicy, batch: Batch) -> None:
        if not self.learns:
            return
        o = self.options
        self.climb(policy, batch, batch.weight, batch.entropy_weight)  # at first all ratios are 1
        for _ in range(o.epochs - 1):
            ratio = ratios(policy.log_prob(batch.problem, batch.rollouts), batch.rollouts.log_prob)
            self.climb(policy, batch, surrogate_weights(ratio, batch.weight, o.clip), batch.entropy_weight)

    def start(self, tasks: Sequence[Task]) -> None:
        super().start(tasks)
        self.imitated, self.learns = 0, True
        self.teaching = OPTIMISERS[self.options.optimiser]()

    def state(self) -> dict[str, Any]:
        return {**super().state(), "imitated": self.imitated, "teaching": self.teaching.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.imitated = int(state["imitated"])
        self.teaching.restore(state["teaching"])
