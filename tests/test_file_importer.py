"""The core's own importer `file` keeps the contract of importers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from placekit_core.builtin import FileImporter
from placekit_core.graph_file import save_graph
from placekit_core.testing import ImporterContract
from placekit_core.testing.contract import Make
from placekit_core.testing.strategies import random_step


class TestFile(ImporterContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Make:
        path = save_graph(random_step(np.random.default_rng(0), 20), tmp_path / "step.graph.npz")
        return partial(FileImporter, path=str(path))
