"""Trainer `three_stage`: imitation, then REINFORCE on the simulator, then on measurements (section 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.random import Generator
from placekit_learn.optimisers import clipped
from placekit_learn.policy_gradient import Batch, PolicyGradient, between
from placekit_learn.ppo import ratios, surrogate_weights
from placekit_learn.rewards import Advantages
from placekit_scheduling import RULES, ListScheduler, b_level, group_priority

from placekit_core import (
    BudgetExhausted,
    Checkpoint,
    ConfigError,
    ExploresNear,
    LearnablePolicy,
    Ledger,
    Placements,
    Problem,
    RecomputesLogProb,
    Rollouts,
    State,
    Task,
    Teaches,
    able,
    report_progress,
)
from placekit_doppler import ThreeStageOptions

SHARE = 0.5
"""Largest share of a budget in seconds that stage I takes, where the budget is not paused for it."""
NEAR_BEST = 0.05, 0.01
"""Share of decisions that the networks make in episodes near the best placement, at first and at the end of the budget."""


class ThreeStage(PolicyGradient):
    """Three stages; option `stages` says which.

    I: `imitation_episodes` in which the policy learns from its own teacher (`Teaches.teach`); nothing is evaluated.
    II: REINFORCE on the simulator: the run's backend or, if that measures, the proxy. III: REINFORCE on a backend that
    measures. It begins with the best placement of stage II and the policy's own placement at that time, because a simulator
    may not tell the two apart. Any budget left after the last stage is spent on placements that the policy draws; nothing is
    learned from them.

    A run that simulates has a stage III only where `budget.proxy_evaluations` asks for a stage II on another simulator.

    Ours, not the paper's: with `list_schedules_first` the first evaluations are list schedules, so that there is a result before
    anything is learned.

    Attributes:
        imitated: episodes of stage I so far.
        learns: whether this stage changes the policy.
        measured: whether this is stage III.
    """

    name = "three_stage"
    options_class = ThreeStageOptions
    options: ThreeStageOptions
    imitated: int
    learns: bool
    measured: bool

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
        two = any(task.open_proxy is not None and (task.measures or task.pretraining is not None) for task in tasks)
        if 3 in o.stages and not two and 2 not in o.stages:
            raise ConfigError(
                "stage 3 learns from a backend that measures, and the run has none besides the proxy",
                "choose trainer.stages=[1,2], or a backend that measures: backend=cpu",
            )
        if 1 in o.stages:
            able(policy, Teaches, "stage 1 needs that; choose trainer=auto, the policy's own trainer")
        near = {o.near_best_from} | ({o.measured_near_best_from} if two else set())
        if near != {None}:
            off = " trainer.measured_near_best_from=null" if two else ""
            able(policy, ExploresNear, f"choose trainer.near_best_from=null{off}")
        if o.list_schedules_first and state is None:
            for task in (task for task in tasks if task.evaluate.remaining > 0):
                first = list_schedules(task.problem)
                task.evaluate(first[:1] if task.measures else first)  # a measurement takes long
        if 1 in o.stages:
            with tasks[0].evaluate.ledger.paused() if two else nullcontext():  # its seconds are for measurements
                self._imitate(policy, tasks, rng, checkpoint, two)
        if 2 in o.stages and two and not self.pretrained:
            cheaper = [replace(task, evaluate=task.proxy) for task in tasks]
            budget = limited(tasks[0].proxy.ledger, o.simulated_episodes)
            with suppress(BudgetExhausted), tasks[0].evaluate.ledger.paused(), budget:
                for task in cheaper if o.list_schedules_first else []:
                    if task.evaluate.best is None:  # else it goes on from a checkpoint
                        task.evaluate(list_schedules(task.problem))
                self._learn(policy, cheaper, rng, checkpoint)
            self.pretrained, self.proxy_updates = True, self.updates
            self.rewards, self.optimiser = self._new_rewards(tasks), self.new_optimiser("measured")
            for task in tasks:
                found = [] if task.proxy.best is None else [task.proxy.best.placement.batch()]
                for placements in (*found, policy.rollout(task.problem, 1, rng).placements):
                    if task.evaluate.remaining > 0:
                        task.evaluate(placements)
        self.measured = two
        for rewards in self.rewards:
            assert isinstance(rewards, Advantages)
            rewards.at_most = o.measured_at_most if two else None
        self.learns = (3 if two else 2) in o.stages
        learn = self.learn_until_end if self.learns else self._learn
        learn(policy, tasks, rng, checkpoint)

    def _imitate(
        self,
        policy: LearnablePolicy,
        tasks: Sequence[Task],
        rng: Generator,
        checkpoint: Checkpoint | None,
        paused: bool,
    ) -> None:
        assert isinstance(policy, Teaches)
        o, evaluate = self.options, tasks[0].evaluate
        while self.imitated < o.imitation_episodes and (paused or evaluate.progress < SHARE):
            progress = self.imitated / o.imitation_episodes
            report_progress(f"stage 1, imitation: {self.imitated:,} of {o.imitation_episodes:,} episodes", progress)
            task = tasks[self.imitated // o.imitation_samples % len(tasks)]
            problem = task.problem
            count = min(o.imitation_samples, o.imitation_episodes - self.imitated)
            lesson = policy.teach(problem, count, rng, between(1.0, 0.0, progress))
            if o.imitation_entropy_weight:  # the same gradient, and that of the entropy
                weight = np.full(lesson.log_prob.shape, 1.0 / max(lesson.log_prob.size, 1))
                found = policy.gradients(
                    problem, lesson, weight, o.imitation_entropy_weight / max(lesson.log_prob.size, 1)
                )
            else:
                loss, found = policy.imitate(problem, lesson, rng)
                task.log(imitation_loss=loss)
            steps = self.teaching.steps(clipped(found, o.max_gradient_norm), o.imitation_learning_rate)
            policy.apply(steps)
            self.imitated += count
            if checkpoint is not None:
                checkpoint(self.state())

    def draw(self, policy: LearnablePolicy, task: Task, rng: Generator, explore: float) -> Rollouts:
        o, best, progress = self.options, task.evaluate.best, task.evaluate.progress
        since = o.measured_near_best_from if self.measured else o.near_best_from
        if not self.learns or best is None or since is None or progress < since:
            return super().draw(policy, task, rng, explore)
        so_far = (progress - since) / max(1 - since, 1e-9)
        drawn = between(*NEAR_BEST, so_far)
        assert isinstance(policy, ExploresNear)
        return policy.rollout_near(task.problem, best.placement, o.samples, rng, drawn)

    def improve(self, policy: LearnablePolicy, batch: Batch) -> None:
        if not self.learns:
            return
        o = self.options
        self.ascend(policy, batch, batch.weight, batch.entropy_weight)  # at first all ratios are 1
        for _ in range(o.epochs - 1):
            again = able(policy, RecomputesLogProb, "choose trainer.epochs=1")
            ratio = ratios(again.log_prob(batch.problem, batch.rollouts), batch.rollouts.log_prob)
            self.ascend(policy, batch, surrogate_weights(ratio, batch.weight, o.clip), batch.entropy_weight)

    def start(self, tasks: Sequence[Task]) -> None:
        super().start(tasks)
        self.imitated, self.learns, self.measured = 0, True, False
        self.teaching = self.new_optimiser("teaching")

    def state(self) -> dict[str, Any]:
        return {**super().state(), "imitated": self.imitated, "teaching": self.teaching.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.imitated = int(state["imitated"])
        self.teaching.restore(state["teaching"])


def list_schedules(problem: Problem) -> Placements:
    """A list schedule by every rule, and the single devices that may run everything; priorities are b-levels."""
    scheduler, level = ListScheduler(problem, few=True), b_level(problem)
    rows = []
    for rule in RULES:
        scheduler.reset()
        rows.append(scheduler.run(rule).devices())
    rows += [np.full(problem.g, d, np.int16) for d in np.flatnonzero(problem.allowed.all(axis=0))]
    return Placements.of(np.stack(rows), np.tile(group_priority(problem, level), (len(rows), 1)))


@contextmanager
def limited(ledger: Ledger, evaluations: int) -> Iterator[None]:
    """Inside the block, limit an unlimited budget to this many evaluations."""
    limit, ledger.limit = ledger.limit, evaluations if ledger.limit is None else ledger.limit
    try:
        yield
    finally:
        ledger.limit = limit
