"""Policy `post` and its ablations keep to the contract of policies."""

from __future__ import annotations

from functools import partial

import pytest
from placekit_post.post import Post
from placekit_testing import PolicyContract
from placekit_testing.contract import Make


class TestPost(PolicyContract):
    finds_optimum = True
    budget = 90  # cross-entropy minimisation once, and PPO before and after it

    @pytest.fixture
    def make(self) -> Make:
        return Post


class TestPpoOnly(PolicyContract):
    short = True

    finds_optimum = True

    @pytest.fixture
    def make(self) -> Make:
        return partial(Post, update="ppo")


class TestPolicyGradient(PolicyContract):
    short = True

    finds_optimum = True

    @pytest.fixture
    def make(self) -> Make:
        return partial(Post, update="policy_gradient")


class TestCrossEntropy(PolicyContract):
    short = True

    finds_optimum = True

    @pytest.fixture
    def make(self) -> Make:
        return partial(Post, update="cross_entropy", window=24)
