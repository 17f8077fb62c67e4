"""Damaged files of every format: always a valid program or one error of ours that names the file, in bounded time and memory.

Each format has a good file; a case is the file after one to three random changes: of bytes, lines, words and, where the format
has them, values and columns.
"""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from placekit_formats.doppler import DopplerImporter
from placekit_formats.file_importer import FileImporter
from placekit_formats.json_program import JsonImporter
from placekit_formats.msr import MsrImporter, placed_devices
from placekit_formats.pipedream import PipeDreamImporter
from placekit_formats.profile import ProfileImporter
from placekit_testing.damaged import TEXT, changed, check_damaged, of_bytes, of_values
from placekit_testing.strategies import random_step

from placekit_core import Graph, Importer, Labels, Program, save_graph

SAMPLES = Path(__file__).with_name("samples")


def changed_graph(graph: Graph, path: Path, rng: Generator) -> None:
    """Write a graph file in which a column is wrong, with the fingerprint that it then has."""
    columns = [f.name for f in fields(graph) if isinstance(getattr(graph, f.name), np.ndarray | Labels)]
    key = columns[int(rng.integers(0, len(columns)))]
    column: Any = getattr(graph, key)
    values = np.array(column.codes if isinstance(column, Labels) else column)
    match int(rng.integers(0, 4)):
        case 0:
            values = values[: int(rng.integers(0, len(values) + 1))]
        case 1:
            values = values.astype(str(rng.choice(["int8", "uint64", "float16", "float64", "bool", "complex64", "U3"])))
        case 2:
            values = rng.permutation(values)
        case _ if len(values):
            number = (
                rng.choice([-1, 0, 1, 2, 5, 100, 127])
                if values.dtype.kind in "iu"
                else rng.choice([-1.0, np.nan, np.inf])
            )
            with np.errstate(invalid="ignore"):
                values[int(rng.integers(0, len(values)))] = np.asarray(number).astype(values.dtype)
    save_graph(
        graph.replace(**{key: Labels(values, column.vocabulary) if isinstance(column, Labels) else values}), path
    )


def graph_of_file() -> Graph:
    """The graph of the good graph file."""
    return random_step(np.random.default_rng(0), 12)


def damaged(name: str, path: Path, good: bytes, rng: Generator) -> bytes | None:
    """One damaged file; None if it has been written."""
    if name == "file" and rng.random() < 0.1:  # which takes longer
        changed_graph(graph_of_file(), path, rng)
        return None
    damages = (of_bytes,) if name == "file" else (*TEXT, of_values, of_values) if name in ("json", "msr") else TEXT
    return changed(good, rng, damages)


IMPORTERS: dict[str, tuple[type[Importer], str]] = {
    "json": (JsonImporter, "pair.json"),
    "doppler": (DopplerImporter, "triangle.txt"),
    "msr": (MsrImporter, "training.json"),
    "pipedream": (PipeDreamImporter, "tower.txt"),
    "profile": (ProfileImporter, "profile.csv"),
    "file": (FileImporter, ""),
}


@pytest.mark.parametrize("name", IMPORTERS)
def test_damaged_files(name: str, tmp_path: Path) -> None:
    importer, sample = IMPORTERS[name]
    path = tmp_path / f"damaged{Path(sample).suffix}"

    def load(path: Path) -> list[Program]:
        programs = importer(path=str(path)).load()
        if name == "msr":
            placed_devices(path)
        return programs

    good = (SAMPLES / sample if sample else save_graph(graph_of_file(), path)).read_bytes()
    check_damaged(load, good, path, partial(damaged, name, path), cases=300, seed=1)
