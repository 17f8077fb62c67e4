"""The machine that backend `cuda` detects: GPUs and memory from the driver, rates and links measured once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from placekit_core import Cluster, ClusterError, read_json, write_atomically

_DTYPES = ("float32", "bfloat16", "float16")
_UNMEASURED = 1.0
CONTEXT_BYTES, _HEADROOM = 512 * 2**20, 0.05
"""Memory that a process with PyTorch holds besides its tensors, and the share that its allocator wastes. parts.yaml of
placekit-inspect has the same values, with sources. `total_memory` already excludes the driver's memory."""
_MEASURED: dict[Path, Cluster] = {}


def described(cuda: Any, gpus: Sequence[int], memory_bytes: int | None) -> Cluster:
    """Devices on `gpus`, each with its part of the GPU's memory (or `memory_bytes`), before rates and links are measured.

    The memory of a device is its part without the CUDA context and the share that the allocator wastes.
    """
    shares, kinds, devices = Counter(gpus), dict[str, Any](), list[dict[str, str]]()
    for gpu in gpus:
        found = cuda.get_device_properties(gpu)
        model = re.sub(r"[^a-z0-9]+", "_", found.name.lower().removeprefix("nvidia")).strip("_")
        kind = model if shares[gpu] == 1 else f"{model}_1of{shares[gpu]}"
        kinds[kind] = {
            "type": "gpu",
            "flops_per_s": dict.fromkeys(_DTYPES, _UNMEASURED),
            "memory_bytes": memory_bytes or found.total_memory // shares[gpu] // 2**20 * 2**20,
            "memory_bytes_per_s": _UNMEASURED,
        }
        if memory_bytes is None:
            reserve = min(CONTEXT_BYTES, found.total_memory // 4) // shares[gpu]
            kinds[kind] |= {"reserve_bytes": reserve, "headroom": _HEADROOM}
        share = sum(g == gpu for g in gpus[: len(devices)])
        devices.append({"kind": kind, "name": f"cuda:{gpu}" if shares[gpu] == 1 else f"cuda:{gpu}/{share}"})
    link = {"mesh": "cuda:*", "bytes_per_s": _UNMEASURED}
    links = [link] if len(devices) > 1 else []
    return Cluster.parse({"name": f"cuda{len(gpus)}", "kinds": kinds, "devices": devices, "links": links})


def remembered(cuda: Any, gpus: Sequence[int], nominal: Cluster, measure: Callable[[], Cluster]) -> Cluster:
    """The first result of `measure` for these GPUs and this version of torch, kept in the user's cache folder.

    A second measurement would differ in its last digits, and turn the same machine into another one.
    """
    uuids = [str(getattr(cuda.get_device_properties(g), "uuid", g)) for g in gpus]
    about = json.dumps([uuids, torch.__version__, nominal.model_dump(mode="json")])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = cache / "placekit" / f"cuda-{hashlib.sha256(about.encode()).hexdigest()[:16]}.json"
    with contextlib.suppress(ClusterError):
        kept = read_json(path, Cluster, error=ClusterError)
        _ = kept.routes
        return kept
    if path in _MEASURED:
        return _MEASURED[path]
    found = _MEASURED[path] = measure()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, found.model_dump_json().encode())
    except OSError as e:
        warnings.warn(
            f"cannot keep the measurements of this computer's GPUs in {path} ({e.strerror}): the next run will measure again"
            " and get another machine; `placekit cluster profile` writes a cluster file to use instead",
            stacklevel=2,
        )
    return found
