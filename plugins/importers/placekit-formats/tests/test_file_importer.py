"""Importer `file` keeps the contract of importers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from placekit_formats.file_importer import FileImporter
from placekit_testing import ImporterContract
from placekit_testing.contract import Make
from placekit_testing.strategies import random_step

from placekit_core import ImporterError, save_graph


class TestFile(ImporterContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        path = save_graph(random_step(np.random.default_rng(0), 20), tmp_path / "step.graph.npz")
        return partial(FileImporter, path=str(path))


def test_a_path_is_needed() -> None:
    with pytest.raises(ImporterError, match="importer 'file' needs a file"):
        FileImporter().load()
