"""Lets a policy place one program."""

from __future__ import annotations

import contextlib

from numpy.random import Generator

from placekit_core.contracts.errors import BudgetExhausted, PluginError
from placekit_core.contracts.interfaces import Checkpoint, LearnablePolicy, Policy, ResumablePolicy, State
from placekit_core.contracts.placement import Placement
from placekit_core.contracts.task import Task


def place_one(policy: Policy, task: Task, rng: Generator, state: State | None, checkpoint: Checkpoint | None) -> None:
    """Let the policy place one program; then evaluate what it returned, and the best placement on the proxy."""
    found: list[Placement] = []
    with contextlib.suppress(BudgetExhausted):
        if isinstance(policy, ResumablePolicy):
            placement = policy.place(task, rng, state, checkpoint)
        else:
            placement = policy.place(task, rng)
        if not isinstance(placement, Placement):
            raise PluginError(
                f"policy {policy.name!r} returned {type(placement).__name__}, not a Placement",
                "make one with task.problem.placement(device, priority)",
            )
        found.append(placement)
    if task.opened_proxy is not None and task.opened_proxy.best is not None:
        found.append(task.opened_proxy.best.placement)
    with contextlib.suppress(BudgetExhausted):
        for i, placement in enumerate(found):
            best, learned = task.evaluate.best, i == 0 and isinstance(policy, LearnablePolicy)
            known = best is not None and best.placement.same_as(placement)
            if task.evaluate.remaining > 0 and (learned or not known):
                task.evaluate(placement.batch())
