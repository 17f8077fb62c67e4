"""Importer `onnx` keeps the contract of importers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from placekit_onnx.importer import OnnxImporter
from placekit_testing import ImporterContract
from placekit_testing.contract import Make


class TestOnnx(ImporterContract):
    @pytest.fixture
    def make(self, rich: bytes, tmp_path: Path) -> Make:
        path = tmp_path / "rich.onnx"
        path.write_bytes(rich)
        return partial(OnnxImporter, path=str(path), batch=2, dims={"length": 5})
