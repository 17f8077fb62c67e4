"""The policies that come with the plugin: they load into one of default options, and have learned something."""

from __future__ import annotations

import numpy as np
import pytest
from placekit_placeto.placeto import Placeto
from placekit_sim.simulator import Simulator
from placekit_testing import fakes

from placekit_core import RunError
from placekit_core.run.trained import load_policy

SHIPPED = ("cifar10", "ptb", "nmt")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_policies(name: str) -> None:
    """On a program that it has never seen, a trained policy draws faster placements than an untrained one; and its likeliest
    devices are the best possible."""
    problem = fakes.independent(24, devices=4)
    session, mean = Simulator().open(problem), {}
    for trained in (True, False):
        policy = Placeto()
        policy.build([problem], np.random.default_rng(0))
        if trained:
            load_policy(policy, f"pkg://placekit_placeto/pretrained/{name}")
        drawn = policy.rollout(problem, 64, np.random.default_rng(0), 1.0)
        likeliest = session.evaluate(policy.rollout(problem, 1, np.random.default_rng(0)).placements).value_s[0]
        mean[trained] = session.evaluate(drawn.placements).value_s.mean()
        assert not trained or likeliest == pytest.approx(problem.op_s[:, 0].sum() / 4)
    assert mean[True] < 0.8 * mean[False], mean


def test_what_belongs_to_a_run_is_free() -> None:
    """Orders, starts and threads belong to a run, not to what was learned; other options do not."""
    policy = Placeto(order="random", start="one_device", visits=2)
    policy.build([fakes.chain(12)], np.random.default_rng(0))
    load_policy(policy, "pkg://placekit_placeto/pretrained/cifar10")
    policy = Placeto(residual=False)
    policy.build([fakes.chain(12)], np.random.default_rng(0))
    with pytest.raises(RunError, match=r"it was trained with policy.residual=True \(here False\)"):
        load_policy(policy, "pkg://placekit_placeto/pretrained/cifar10")
