"""The networks keep the contract of importers."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from placekit_testing import ImporterContract
from placekit_testing.contract import Make
from placekit_zoo.inception_v3 import InceptionV3Importer
from placekit_zoo.mlp import MlpImporter

torch.set_num_threads(1)  # the tensors are small, and tests run side by side

SMALL_INCEPTION = partial(InceptionV3Importer, batch=2, image_size=75, width=0.05, classes=3, optimizer="sgd")


class TestMlp(ImporterContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(MlpImporter, batch=4, hidden=[8], optimizer="adam")


@pytest.mark.slow
class TestInceptionV3Inference(ImporterContract):
    short = True

    @pytest.fixture
    def make(self) -> Make:
        return partial(SMALL_INCEPTION, mode="inference")


@pytest.mark.slow
class TestInceptionV3(ImporterContract):
    @pytest.fixture
    def make(self) -> Make:
        return SMALL_INCEPTION
