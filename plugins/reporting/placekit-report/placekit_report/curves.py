"""The curve of a search: the best value against evaluations and seconds."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from placekit_core import HISTORY, RunError, parse_text, read_bytes, reading

FILE = "history.csv"
POINTS = 1_000
"""Points of a curve: every improvement, as far as there is room, and others at equal distances."""
_MAX_BYTES = 2**26
Rows = Sequence[tuple[float, ...]]


def curve(rows: Rows, seed: int, label: str = "") -> dict[str, Any]:
    """An entry of `search` in a report; `rows` have the columns `HISTORY`. `best_s` is None until a placement fits."""
    table = np.asarray(rows, np.float64).reshape(-1, len(HISTORY))
    best = table[:, HISTORY.index("best_s")]
    if len(table) > POINTS:
        table = table[_kept(best)]
    column = dict(zip(HISTORY, table.T, strict=True))
    return {
        "seed": seed,
        "label": label or f"seed {seed}",
        "evaluations": column["evaluations"].astype(np.int64),
        "seconds": column["seconds"].tolist(),
        "best_s": [value if math.isfinite(value) else None for value in column["best_s"].tolist()],
    }


def _kept(best: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The rows of a long history that are drawn."""
    known = np.r_[np.inf, np.where(np.isfinite(best), best, np.inf)]
    better = np.flatnonzero(known[1:] < known[:-1])
    spread = np.linspace(0, len(best) - 1, POINTS // 2).round().astype(np.int64)
    room = POINTS - len(spread)
    if len(better) > room:
        better = better[np.linspace(0, len(better) - 1, room).round().astype(np.int64)]
    return np.unique(np.r_[better, spread])


def read_history(folder: Path) -> list[tuple[float, ...]]:
    """The rows of `history.csv`, also of a run that has not ended; empty cells are NaN. Raises RunError."""
    path = folder / FILE
    with reading(path, RunError):
        lines = csv.reader(parse_text(read_bytes(path, _MAX_BYTES)).splitlines(), strict=True)
        try:
            if next(lines, [])[: len(HISTORY)] != list(HISTORY):
                raise ValueError(f"its first line does not begin with {','.join(HISTORY)}")
            kept = [row[: len(HISTORY)] for row in lines if len(row) >= len(HISTORY)]
            return [tuple(float(c) if c else math.nan for c in row) for row in kept]
        except csv.Error as e:
            raise ValueError(e) from None
