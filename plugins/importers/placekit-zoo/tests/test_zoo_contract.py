"""The networks keep the contract of importers."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from placekit_testing import ImporterContract
from placekit_testing.contract import Make
from placekit_zoo.mlp import MlpImporter

torch.set_num_threads(1)  # the tensors are small, and tests run side by side


class TestMlp(ImporterContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(MlpImporter, batch=4, hidden=[8], optimizer="adam")
