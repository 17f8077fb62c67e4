"""Checkpoints: `checkpoint.npz`, with a checksum, so that a run never continues from a damaged one.

Its arrays are members, everything else is one JSON member, and the last 32 bytes are the SHA-256 of all before them.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from placekit_core.contracts.arrays import parse_arrays
from placekit_core.contracts.errors import RunError
from placekit_core.contracts.files import (
    FileModel,
    check_json_size,
    checked,
    parse_json,
    read_bytes,
    reading,
    write_atomically,
)
from placekit_core.run.evaluator import EvaluatorState

CHECKPOINT = "checkpoint.npz"
MAX_BYTES, MAX_ARRAYS, MAX_VALUES = 2**31, 100_000, 4_000_000
_SEAL = hashlib.sha256().digest_size
_PER_ARRAY = 1024  # more than the headers of one array have
_HINT = "remove it to start this run again"


class CheckpointTooLargeError(RunError):
    """A checkpoint would be too large to be read again."""


class Saved(FileModel):
    """The content of a checkpoint: `done` stages are complete, and `state` is the state of the next one.

    `identity` says which run it belongs to; `parameters` are the parameters of a learnable policy.
    """

    done: int = Field(ge=0)
    identity: list[str]
    streams: dict[str, dict[str, Any]]
    evaluators: list[EvaluatorState]
    proxies: list[EvaluatorState | None]
    state: dict[str, Any] | None = None
    parameters: dict[str, Any] | None = None


def save_checkpoint(run_dir: Path, state: Mapping[str, Any]) -> None:
    """Write the nested `state` as checkpoint.npz: arrays as members, everything else in one JSON member. Atomic.

    Raises CheckpointTooLargeError, and leaves the previous checkpoint, if `load_checkpoint` would refuse it.
    """
    arrays: dict[str, np.ndarray[Any, Any]] = {}

    def strip(value: Any, path: str) -> Any:
        if isinstance(value, np.ndarray) and value.dtype.kind != "O":
            arrays[f"array{len(arrays)}"] = value
            return {"array": f"array{len(arrays) - 1}"}
        if isinstance(value, Mapping) and all(isinstance(k, str | int) for k in value):
            return {"items": [[k, strip(v, f"{path}.{k}")] for k, v in value.items()]}
        if isinstance(value, list | tuple):
            return [strip(v, f"{path}[{i}]") for i, v in enumerate(value)]
        if isinstance(value, np.generic):
            return value.item()
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise TypeError(
            f"{path} of a checkpoint is a {type(value).__name__}: it holds arrays, numbers, strings, lists, dicts"
        )

    tree = json.dumps(strip(state, "state")).encode()
    arrays["tree.json"] = np.frombuffer(tree, np.uint8)
    _check_size(tree, arrays)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    buffer.write(hashlib.sha256(buffer.getbuffer()).digest())
    write_atomically(run_dir / CHECKPOINT, buffer.getvalue())


def _check_size(tree: bytes, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise CheckpointTooLargeError if a checkpoint of these parts would exceed a limit of the reader."""
    size = sum(a.nbytes + _PER_ARRAY for a in arrays.values()) + _SEAL
    try:
        if size > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
        if len(arrays) > MAX_ARRAYS:
            raise ValueError(f"it has more than {MAX_ARRAYS:,} arrays")
        check_json_size(tree, MAX_VALUES)
    except ValueError as e:
        raise CheckpointTooLargeError(f"a checkpoint of this run could not be read again: {e}") from None


def load_saved(run_dir: Path) -> Saved | None:
    """The checkpoint in `run_dir`, or None if there is none. Raises RunError if it is damaged."""
    state = load_checkpoint(run_dir)
    with reading(run_dir / CHECKPOINT, RunError, hint=_HINT):
        return None if state is None else checked(state, Saved)


def load_checkpoint(run_dir: Path) -> dict[str, Any] | None:
    """The state that `save_checkpoint` wrote, or None if there is none. Raises RunError if it is damaged."""
    path = run_dir / CHECKPOINT
    if not path.is_file():
        return None
    with reading(path, RunError, hint=_HINT):
        data = read_bytes(path, MAX_BYTES)
        content, seal = data[:-_SEAL], data[-_SEAL:]
        if hashlib.sha256(content).digest() != seal:
            raise ValueError("its checksum is wrong")
        arrays = parse_arrays(content, MAX_ARRAYS, len(content))  # none of them is compressed
        try:
            state: dict[str, Any] = _filled(parse_json(arrays["tree.json"].tobytes(), MAX_VALUES), arrays)
        except (KeyError, TypeError) as e:
            raise ValueError(f"its tree is wrong: {e}") from None
    return state


def _filled(value: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """The tree `value` with its arrays put back."""
    if isinstance(value, dict):
        return arrays[value["array"]] if "array" in value else {k: _filled(v, arrays) for k, v in value["items"]}
    return [_filled(v, arrays) for v in value] if isinstance(value, list) else value
