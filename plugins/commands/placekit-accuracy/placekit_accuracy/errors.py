"""Errors of predictions by kind of row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placekit_accuracy.bands import BANDS
from placekit_accuracy.predict import Prediction, missing, predict
from placekit_accuracy.rows import Row, measurements
from placekit_core import Registry

FEW = 3  # rows that make a band at least
WRONG = 0.2  # a row is wrong if its error is larger
PLACES = ("one GPU", "several GPUs", "unlike GPUs", "experts on the CPU")
"""Devices in the order of the table; others come last."""


@dataclass(frozen=True)
class Errors:
    """The relative errors of the rows of a kind."""

    kind: str
    errors: NDArray[np.float64]

    @classmethod
    def of(cls, kind: str, predictions: Sequence[Prediction]) -> Errors:
        """The errors of some predictions."""
        return cls(kind, np.array([p.error for p in predictions]))

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.errors)

    @property
    def median(self) -> float:
        """Half of the rows are closer."""
        return float(np.median(np.abs(self.errors)))

    @property
    def p90(self) -> float:
        """90% of the rows are closer: the error band."""
        return float(np.percentile(np.abs(self.errors), 90))

    @property
    def worst(self) -> float:
        """The largest error."""
        return float(np.abs(self.errors).max())

    @property
    def bias(self) -> float:
        """The median with its sign: positive if predictions are too fast."""
        return float(np.median(self.errors))


def by_kind(predictions: Sequence[Prediction]) -> list[tuple[bool, Errors]]:
    """The errors of each kind, of rows that were held out first; and whether the rows set figures.

    Rows with unlike GPUs count twice: with the others of several GPUs, and as a kind of their own.
    """
    found: dict[tuple[bool, str], list[Prediction]] = {}
    for p in predictions:
        for kind in (p.row.kind, p.row.kind.replace("several", "unlike")) if p.row.unlike else (p.row.kind,):
            found.setdefault((p.row.fits_rates, kind), []).append(p)
    return [
        (fit, Errors.of(kind, own)) for (fit, kind), own in sorted(found.items(), key=lambda item: _order(*item[0]))
    ]


def _order(fit: bool, kind: str) -> tuple[bool, bool, int, str]:
    """Where the kind of row stands in the table: decode before prompts, the usual devices first."""
    mode, _, place = kind.partition(", ")
    return fit, mode != "decode", PLACES.index(place) if place in PLACES else len(PLACES), place


def unpredicted(rows: Sequence[Row]) -> dict[str, int]:
    """The reasons why rows of the table are not predicted, with the number of rows."""
    return dict(Counter(why for row in rows if (why := missing(row))).most_common())


FEW_TOKENS = "products of experts with few tokens reach less of the peak; no such row set figures"
REASONS: tuple[tuple[str, str], ...] = (
    ("Vulkan", "kernels of llama.cpp's Vulkan backend"),
    ("OpenCL", "kernels of llama.cpp's OpenCL backend"),
    ("SYCL", "kernels of llama.cpp's SYCL backend"),
    ("distributed-llama", "kernels of distributed-llama"),
    ("ollama", "the source mixes backends, and does not state which one ran"),
    ("mlc", "fused kernels of MLC: fewer launches"),
    ("exllama", "fused kernels of ExLlamaV2: fewer launches"),
    ("KTransformers", "experts are computed with AMX, not copied to the GPU"),
    ("prompt, one GPU gpt-oss", FEW_TOKENS),
    ("prompt, one GPU Qwen3-30B", FEW_TOKENS),
    ("prompt, one GPU Qwen3-Coder-30B", FEW_TOKENS),
    ("prompt, experts on the CPU", "weights were copied to the GPU, or multiplied by the CPU: the source is silent"),
    ("decode, several GPUs DeepSeek", "a build of early 2025, with many small kernels in attention and experts"),
    ("issues 629", "on Windows, where this owner's two GPUs were slower than one"),
    ("A100_SXM_4_v3", "a machine on which prompts of the same model, too, took longer than on one such GPU"),
    ("Metal", "without flash attention, Metal's kernels read the cache more often"),
)
"""Words in a row's kind, model, runtime and source, and why its speed differs from that of the program that is simulated."""


def reason(row: Row) -> str:
    """Why the prediction of a row may be wrong, if a general reason is known."""
    if row.on_cpu and min(row.use.bits, row.use.expert_bits or 16) < 2:
        return "weights of fewer than two bits are bound by the CPU's arithmetic"
    text = f"{row.kind} {row.model} {row.runtime} {row.source}"
    return next((why for word, why in REASONS if word in text), "")


def bands_of(predictions: Sequence[Prediction]) -> dict[str, tuple[int, float]]:
    """The error bands of the held-out rows, by kind."""
    return {e.kind: (e.n, round(e.p90, 3)) for fit, e in by_kind(predictions) if not fit and e.n >= FEW}


def write_bands(registry: Registry) -> None:
    """Predict every row, and keep the bands: runs read them and simulate nothing."""
    lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in bands_of(predict(measurements(), registry)).items()]
    BANDS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
