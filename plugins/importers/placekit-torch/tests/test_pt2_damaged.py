"""Damaged programs of torch.export: a valid program or one error that names the file, in bounded time and memory.

A case is a good file after one to three changes: of bytes of the archive; or of the bytes, words or values of one of its JSON
files, in an archive that is sound.
"""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest
import torch
from numpy.random import Generator
from placekit_testing.damaged import changed, check_damaged, of_bytes, of_lines, of_values, of_words
from placekit_torch.pt2 import Pt2Importer

from placekit_core import Program


class Small(torch.nn.Module):
    """Few operations of many kinds: a product, a view, parts, an update of a buffer, a size that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 6)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.relu(self.linear(x))
        self.seen.add_(y.sum(0))  # type: ignore[operator]
        return y.chunk(2, 1)[0].reshape(x.shape[0] * 3)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "small.pt2"
    batch = torch.export.Dim("batch", max=64)
    torch.export.save(torch.export.export(Small(), (torch.zeros(2, 4),), dynamic_shapes=({0: batch},)), path)
    return path.read_bytes()


def of_json(data: bytes, rng: Generator) -> bytes:
    """One of the JSON files in the archive changed; mostly that with the program."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = [(info.filename, archive.read(info)) for info in archive.infolist()]
    except Exception:
        return of_bytes(data, rng)
    ending = "model.json" if rng.random() < 0.9 else "_config.json"
    damages = (of_bytes, of_words, of_lines, of_values, of_values, of_values)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files:
            archive.writestr(name, changed(content, rng, damages) if name.endswith(ending) else content)
    return out.getvalue()


def damage(data: bytes, rng: Generator) -> bytes:
    return of_json(data, rng) if rng.random() < 0.85 else changed(data, rng, (of_bytes,))


def load(path: Path) -> list[Program]:
    return Pt2Importer(path=str(path)).load()


@pytest.mark.slow
def test_some_damaged_programs(good: bytes, tmp_path: Path) -> None:
    check_damaged(load, good, tmp_path / "damaged.pt2", damage, cases=200, seed=1)


@pytest.mark.slow
def test_many_damaged_programs(good: bytes, tmp_path: Path) -> None:
    """PLACEKIT_CASES=20000 takes about eight minutes."""
    cases = int(os.environ.get("PLACEKIT_CASES", "500"))
    check_damaged(load, good, tmp_path / "damaged.pt2", damage, cases=cases, seed=2)
