"""The recurrent networks keep the contract of importers."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from placekit_testing import ImporterContract
from placekit_testing.contract import Make
from placekit_zoo.nmt import NmtImporter
from placekit_zoo.rnnlm import RnnlmImporter

torch.set_num_threads(1)  # the tensors are small, and tests run side by side


class TestRnnlm(ImporterContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(RnnlmImporter, batch=2, hidden=4, steps=2, vocabulary=5)


@pytest.mark.slow
class TestNmt(ImporterContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(NmtImporter, batch=2, layers=1, hidden=4, length=2, vocabulary=5)
