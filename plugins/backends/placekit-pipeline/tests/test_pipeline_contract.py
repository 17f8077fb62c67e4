"""The contracts of the three backends and of the policy."""

from __future__ import annotations

from functools import partial

import pytest
from placekit_pipeline.blocking import BlockingLatency
from placekit_pipeline.chain import ChainPolicy
from placekit_pipeline.max_load import MaxLoad
from placekit_pipeline.pipeline import Pipeline
from placekit_testing import BackendContract, PolicyContract
from placekit_testing.contract import Make


class TestMaxLoad(BackendContract):
    @pytest.fixture
    def make(self) -> Make:
        return MaxLoad


class TestBlockingLatency(BackendContract):
    @pytest.fixture
    def make(self) -> Make:
        return BlockingLatency


class TestPipeline(BackendContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(Pipeline, schedule="inference", microbatches=4)


class TestThroughput(BackendContract):
    short = True

    @pytest.fixture
    def make(self) -> Make:
        return partial(Pipeline, schedule="inference", objective="throughput", threads=2)


class TestToken(BackendContract):
    short = True

    @pytest.fixture
    def make(self) -> Make:
        return partial(Pipeline, schedule="inference", objective="token")


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero_bubble"])
class TestTraining(BackendContract):
    """Random problems of which some have a backward phase."""

    short = True
    seeds = range(4)

    @pytest.fixture
    def make(self, schedule: str) -> Make:
        return partial(Pipeline, schedule=schedule, microbatches=3)


class TestChain(PolicyContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(ChainPolicy, otherwise="single_device")
