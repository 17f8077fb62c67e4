"""Importer `model` keeps the contract of importers, for a decoder and for a function of the user's own."""

from __future__ import annotations

import json
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


@pytest.mark.slow
class TestDecode(ImporterContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        pytest.importorskip("transformers")
        config = {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 12,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 11,
        }  # fmt: skip
        (tmp_path / "config.json").write_text(json.dumps(config))
        return partial(ModelImporter, model=f"hf:{tmp_path}", context=3)


class TestOwn(ImporterContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        (tmp_path / "own_contract_model.py").write_text(OWN)
        return partial(ModelImporter, model=f"{tmp_path}/own_contract_model.py:step")
