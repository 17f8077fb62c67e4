"""The policies that come with the plugin: they load into one of default options, and have learned something."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from placekit_placeto.placeto import Placeto
from placekit_testing import fakes

from placekit_core import Placements, Problem, RunError
from placekit_core.run.trained import load_policy

SHIPPED = ("cifar10", "ptb", "nmt")


def makespan_s(problem: Problem, placements: Placements) -> NDArray[np.float64]:
    """[n] seconds that the busiest device takes: of groups that exchange nothing."""
    return np.array([np.bincount(row, problem.op_s[:, 0]).max() for row in placements.device])


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_policies(name: str) -> None:
    """On a program that it has never seen, a trained policy draws faster placements than an untrained one; and its likeliest
    devices are the best possible."""
    problem = fakes.independent(24, devices=4)
    mean = {}
    for trained in (True, False):
        policy = Placeto()
        policy.build([problem], np.random.default_rng(0))
        if trained:
            load_policy(policy, f"pkg://placekit_placeto/pretrained/{name}")
        drawn = policy.rollout(problem, 64, np.random.default_rng(0), 1.0)
        likeliest = policy.rollout(problem, 1, np.random.default_rng(0))
        mean[trained] = makespan_s(problem, drawn.placements).mean()
        best_s = problem.op_s[:, 0].sum() / 4
        assert not trained or makespan_s(problem, likeliest.placements)[0] == pytest.approx(best_s)
    assert mean[True] < 0.8 * mean[False], mean


def test_what_belongs_to_a_run_is_free() -> None:
    """Orders, starts and threads belong to a run, not to what was learned; other options do not."""
    policy = Placeto(order="random", start="one_device", visits=2)
    policy.build([fakes.chain(12)], np.random.default_rng(0))
    load_policy(policy, "pkg://placekit_placeto/pretrained/cifar10")
    policy = Placeto(residual=False)
    policy.build([fakes.chain(12)], np.random.default_rng(0))
    with pytest.raises(RunError, match=r"it was trained with policy.residual=true \(here false\)"):
        load_policy(policy, "pkg://placekit_placeto/pretrained/cifar10")
