"""Importer `einsum` keeps the contract of importers."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from placekit_einsum.importer import EinsumImporter
from placekit_testing import ImporterContract
from placekit_testing.contract import Make

torch.set_num_threads(1)  # the tensors are small, and tests run side by side


class TestEinsum(ImporterContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(EinsumImporter, sizes={"n": 16})


class TestEinsumWithViewsAndComplexNumbers(ImporterContract):
    short = True

    @pytest.fixture
    def make(self) -> Make:
        sizes = {"sequence": 16, "embedding": 32, "heads": 4}
        return partial(EinsumImporter, program="llama_block", sizes=sizes, dtype="bfloat16")
