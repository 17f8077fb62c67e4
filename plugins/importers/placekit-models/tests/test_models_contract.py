"""Importer `model` keeps the contract of importers, for a function of the user's own."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from placekit_models.importer import ModelImporter
from placekit_testing import ImporterContract
from placekit_testing.contract import Make

torch.set_num_threads(1)  # the tensors are small, and tests run side by side

OWN = """
import torch
from placekit_torch import Step

def step(batch=2):
    return Step(torch.nn.Linear(3, 2), torch.randn(batch, 3), torch.nn.functional.mse_loss, torch.randn(batch, 2))
"""


class TestOwn(ImporterContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        (tmp_path / "own_contract_model.py").write_text(OWN)
        return partial(ModelImporter, model=f"{tmp_path}/own_contract_model.py:step")
