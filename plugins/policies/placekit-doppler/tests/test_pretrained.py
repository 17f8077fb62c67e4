"""The policies that come with the plugin: they load into one of default options, and have learned something."""

from __future__ import annotations

import numpy as np
import pytest
from placekit_doppler.doppler import Doppler
from placekit_testing import fakes

from placekit_core import RunError
from placekit_core.run.trained import load_policy


@pytest.mark.parametrize("name", ["chainmm", "ffnn_sharded"])
def test_shipped_policies(name: str) -> None:
    """Nothing is gained by leaving a chain's device: trained on other programs they do so less often than untrained."""
    problem = fakes.chain(12)
    moves = {}
    for trained in (True, False):
        policy = Doppler()
        policy.build([problem], np.random.default_rng(0))
        if trained:
            load_policy(policy, f"pkg://placekit_doppler/pretrained/{name}")
        drawn = policy.rollout(problem, 64, np.random.default_rng(0), 1.0)
        moves[trained] = (np.diff(drawn.extra["device"], axis=1) != 0).mean()
    assert moves[True] < 0.7 * moves[False], moves


def test_exploration_and_threads_are_free() -> None:
    """They belong to a run, not to what was learned; other options do not."""
    policy = Doppler(episode_threads=1, exploration="greedy")
    policy.build([fakes.chain(12)], np.random.default_rng(0))
    load_policy(policy, "pkg://placekit_doppler/pretrained/chainmm")
    policy = Doppler(noise=0)
    policy.build([fakes.chain(12)], np.random.default_rng(0))
    with pytest.raises(RunError, match=r"it was trained with policy.noise=1.0 \(here 0.0\)"):
        load_policy(policy, "pkg://placekit_doppler/pretrained/chainmm")
