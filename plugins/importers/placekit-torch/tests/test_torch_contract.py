"""Importer `torch` keeps the contract of importers, for modules that are not simple."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from placekit_testing import ImporterContract
from placekit_testing.contract import Make
from placekit_torch.importer import TorchImporter

torch.set_num_threads(1)  # the tensors are small, and tests run side by side

MODEL = """
import torch
from torch import nn
from placekit_torch import Step

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.drop, self.out = nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(3, 2)

    def forward(self, x):
        left, right = self.drop(self.norm(x)).chunk(2, dim=1)   # views of one tensor, and random numbers
        return self.out((left * right).t().contiguous().t())

def step():
    return Step(Net(), torch.randn(5, 6), nn.functional.mse_loss, torch.randn(5, 2), torch.optim.Adam)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("torch_contract")
    (path / "contract_model.py").write_text(MODEL)
    return path


class TestTorch(ImporterContract):
    @pytest.fixture
    def make(self, folder: Path) -> Make:
        return partial(TorchImporter, module="contract_model:step", path=str(folder))
