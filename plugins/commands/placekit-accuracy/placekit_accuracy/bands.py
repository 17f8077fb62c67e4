"""The error bands that results of runs carry. Importing this imports nothing heavy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from placekit_core import ErrorBand, Graph, Problem

BANDS = Path(__file__).with_name("bands.json")


def band(problem: Problem, devices: Sequence[int]) -> ErrorBand:
    """The band of a problem whose kernels run on `devices`."""
    kind = kind_of(problem.graph, [(problem.cluster.device_kind[d], problem.device_type(d)) for d in devices])
    if len({*problem.cluster.launchers.host[list(devices)].tolist()}) > 1:
        kind = f"{kind.partition(',')[0]}, over a network"
    rows, error = bands().get(kind, (0, None))
    return ErrorBand(kind=kind, rows=rows, error=error)


def kind_of(graph: Graph, devices: Sequence[tuple[str, str]]) -> str:
    """The kind of published rows that a program is like, on devices given as (kind, type)."""
    named = str(graph.attributes.get("mode"))
    mode = {"prefill": "prompt", "decode": "decode", "prompt": "prompt"}.get(named, "another program")
    gpus = [kind for kind, type_ in devices if type_ == "gpu"]
    if len(gpus) < len(devices):
        names = (*graph.op_name, *graph.module.vocabulary)
        experts = any("_exps" in name or "experts" in name for name in names)
        place = "CPU" if not gpus else "experts on the CPU" if experts else "GPU with CPU"
    else:
        place = "one GPU" if len(gpus) == 1 else "several GPUs" if len({*gpus}) == 1 else "unlike GPUs"
    return f"{mode}, {place}"


@cache
def bands() -> dict[str, tuple[int, float]]:
    """For each kind of held-out rows, their number and the band, as `placekit accuracy --write` kept them."""
    data: dict[str, tuple[int, float]] = json.loads(BANDS.read_text())
    return {kind: (int(n), float(error)) for kind, (n, error) in data.items()}
