"""Packs states (nested dicts and lists of arrays, numbers, strings) into bytes with a checksum. Nothing in them is executable.

Arrays are members of a zip (`.npz`), everything else is one JSON member, and the last 32 bytes are the SHA-256 of all before.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placekit_core.contracts.arrays import parse_arrays

_SEAL = hashlib.sha256().digest_size


def pack_state(state: Mapping[str, Any]) -> bytes:
    """The nested `state` as bytes. Raises TypeError that names a value of another kind."""
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
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    buffer.write(hashlib.sha256(buffer.getbuffer()).digest())
    return buffer.getvalue()


def unpack_state(data: bytes) -> dict[str, Any]:
    """The state that `pack_state` packed. Raises ValueError if the bytes are damaged."""
    content, seal = data[:-_SEAL], data[-_SEAL:]
    if hashlib.sha256(content).digest() != seal:
        raise ValueError("its checksum is wrong")
    arrays = parse_arrays(content, len(content))  # none of them is compressed
    state: dict[str, Any] = _filled(json.loads(arrays["tree.json"].tobytes()), arrays)
    return state


def _filled(value: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """The tree `value` with its arrays put back."""
    if isinstance(value, dict):
        return arrays[value["array"]] if "array" in value else {k: _filled(v, arrays) for k, v in value["items"]}
    return [_filled(v, arrays) for v in value] if isinstance(value, list) else value
