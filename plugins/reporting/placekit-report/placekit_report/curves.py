"""The curves of a search: the best value and the mean against evaluations and seconds, also of the same job's other seeds."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from placekit_core import HISTORY, RunError, parse_json, parse_text, read_bytes, reading

FILE = "history.csv"
POINTS = 1_000
"""Points of a curve: every improvement, as far as there is room, and others at equal distances."""
SEEDS = 20
"""Other seeds that a report shows at most."""
_SEED = re.compile(r"(?<![\w.])seed=(\d+)")
_OF_NO_RESULT = ("seed", "run_dir", "checkpoint_s", "log", "baselines", "parallel", "python_objects")
_MAX_BYTES = 2**26
Rows = Sequence[tuple[float, ...]]


def curve(rows: Rows, seed: int, label: str = "") -> dict[str, Any]:
    """An entry of `search` in a report; `rows` have the columns `HISTORY`."""
    table = np.asarray(rows, np.float64).reshape(-1, len(HISTORY))
    best = table[:, HISTORY.index("best_s")]
    if len(table) > POINTS:
        table = table[_kept(best)]
    column = dict(zip(HISTORY, table.T, strict=True))
    return {
        "seed": seed,
        "label": label or f"seed {seed}",
        "evaluations": column["evaluations"].astype(np.int64),
        **{name: column[name].tolist() for name in ("seconds", "best_s", "mean_s")},
    }


def _kept(best: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Rows of a long history that its curve goes through."""
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


def other_seeds(run_dir: Path, config: Mapping[str, Any]) -> Iterator[tuple[int, Path]]:
    """Seed and folder of the runs of a sweep that differ from `run_dir` in nothing but their seed, by seed.

    The folders of a sweep's jobs are named by their options, so only folders with another seed in their name are read.
    """
    name = run_dir.absolute().name
    if not _SEED.search(name):
        return
    own, found = _same(config), list[tuple[int, Path]]()
    pattern = re.compile(_SEED.sub(lambda _: r"seed=(\d+)", re.escape(name)))
    for folder in run_dir.absolute().parent.iterdir():
        match = pattern.fullmatch(folder.name)
        if match and folder.name != name:
            found.append((int(match[1]), folder))
    shown = 0
    for seed, folder in sorted(found):
        if shown < SEEDS and (other := _config(folder)) is not None and _same(other) == own:
            shown += 1
            yield seed, folder


def _config(folder: Path) -> Mapping[str, Any] | None:
    """The configuration of a run; None if there is none that can be read."""
    try:
        data = parse_json(read_bytes(folder / "config.json"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _same(config: Mapping[str, Any]) -> str:
    """What two runs share if they differ in their seed only."""
    return json.dumps({k: v for k, v in config.items() if k not in _OF_NO_RESULT}, sort_keys=True)
