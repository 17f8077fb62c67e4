"""Predicts the speed of a published row: its program, its machine, its placement, and one simulation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from statistics import median

import numpy as np
from numpy.typing import NDArray
from placekit_inspect.data_sheets import parts
from placekit_inspect.machine_file import machine_file
from placekit_models.checkpoint.buffers import OFFLOADED
from placekit_models.decoder import Use, decoder
from placekit_models.shape import Shape
from placekit_runtimes.llamacpp import gpu_of_layers
from placekit_runtimes.planning.split import Layout, Operations
from placekit_runtimes.planning.steps import unlimited

from placekit_accuracy.rows import BITS, Row, shapes
from placekit_core import Cluster, Graph, Placements, Problem, Registry
from placekit_core.contracts.files import parse_yaml


@dataclass(frozen=True)
class Prediction:
    """A row and its simulated speed, tokens per second."""

    row: Row
    tokens_per_s: float

    @property
    def error(self) -> float:
        """Relative error of the speed: positive if it is predicted too fast."""
        return self.tokens_per_s / self.row.tokens_per_s - 1.0


def missing(row: Row) -> str:
    """Why a row cannot be predicted; empty if it can."""
    if row.model not in shapes():
        return f"no shape of {row.model}"
    if not row.bytes and row.quantisation not in BITS:
        return f"no size of the file in {row.quantisation or 'an unknown quantisation'}"
    unknown = next((d for d in row.devices if d not in parts().kinds), None)
    return f"no device kind {unknown}" if unknown else "" if _fits(row) else "larger than the memory of the devices"


def _fits(row: Row) -> bool:
    """Whether the weights fit on the GPUs, if none are on the CPU: else the runtime swapped, or the row is not complete."""
    total = sum(
        gb * 2**30 * (1 - parts().withheld_of(d).headroom) for d, gb in zip(row.devices, row.gigabytes, strict=True)
    )
    weights = row.bytes or shapes()[row.model].weights * row.use.bits / 8
    return row.on_cpu or not row.devices or weights <= total


def predict(rows: Iterable[Row], registry: Registry) -> list[Prediction]:
    """The rows that can be predicted, with their simulated speeds.

    Rows that measured the same thing become one row with their median: some sources repeat a measurement up to five times.
    """
    same: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if not missing(row):
            machine_ = (row.devices, row.gigabytes, row.slots, row.memory, row.runtime)
            same.setdefault((row.model, row.use, *machine_, row.split), []).append(row)
    found = []
    for alike in same.values():
        row = replace(alike[0], tokens_per_s=median(r.tokens_per_s for r in alike))
        tokens = row.tokens if row.prompt else row.batch
        found.append(Prediction(row, tokens / seconds(row, registry)))
    return found


def seconds(row: Row, registry: Registry) -> float:
    """Simulated seconds of the row's step."""
    graph = program(row.model, row.use)
    cluster = machine(row)
    device = placement(row, graph, cluster)
    backend = registry.build("backend", "simulator", {"threads": 1, "prefetch": 0 if _streams(row) else None})
    session = backend.open(Problem.of(graph, cluster))
    priority = Operations(Layout.of(graph), graph).priority
    return float(session.evaluate(Placements.of(device, priority)).value_s[0])


@cache
def program(model: str, use: Use) -> Graph:
    """The program of a row."""
    return decoder(model, shapes()[model], use)


def machine(row: Row) -> Cluster:
    """The machine of a row, with all of its memory."""
    slots = row.slots or ("",) * len(row.devices)
    words = [" ".join([d, s]).strip() for d, s in zip(row.devices, slots, strict=True)]
    return _cluster(" + ".join([*words, *([row.memory] if row.memory else [])]))


@cache
def _cluster(words: str) -> Cluster:
    """The machine of these words. Its memory has no limit, because the row ran."""
    cluster = Cluster.parse(parse_yaml(machine_file(words).encode()), words)
    return unlimited(cluster, "graph")  # llama.cpp launches ahead of the devices, or records graphs


def placement(row: Row, graph: Graph, cluster: Cluster) -> NDArray[np.int64]:
    """[n] device of each operation, as the runtime places it: layers in shares, then the overrides of the row."""
    gpus, cpu = _devices(row, cluster)
    if not gpus:
        return np.full(graph.n, cpu)
    layout = Layout.of(graph)
    home = [gpus[i] for i in _layers(row, shapes()[row.model], len(gpus))]
    split = layout.split(home, home[0])
    for i, name in enumerate(layout.names):
        if device := row.override(f"{name}.weight"):
            split.held[i] = cpu if device == "CPU" else gpus[int(device.removeprefix("CUDA"))]
    helper = (cpu, gpus[:1]) if _streams(row) else ()
    found: NDArray[np.int64] = Operations(layout, graph).devices([split], *helper)[0]
    return found


def _streams(row: Row) -> bool:
    """Whether weights in host memory are copied to the GPU, and multiplied there."""
    return row.on_cpu and row.prompt and min(row.tokens, row.ubatch) >= OFFLOADED


def _devices(row: Row, cluster: Cluster) -> tuple[list[int], int]:
    """The GPUs in the row's order, and the CPU (-1 without one)."""
    seen: dict[str, int] = {}
    gpus = []
    for kind in row.devices:
        gpus.append(cluster.device_index(f"{kind}:{seen.get(kind, 0)}"))
        seen[kind] = seen.get(kind, 0) + 1
    cpu = next((i for i, kind in enumerate(cluster.device_kind) if cluster.kinds[kind].type == "cpu"), -1)
    return gpus, cpu


def _layers(row: Row, shape: Shape, gpus: int) -> list[int]:
    """[layers + 1] the GPU of each layer and of the output: by the given shares, else by memory."""
    shares = [float(x) for x in row.split.split()[1].split(",")] if row.split.startswith("-ts") else list(row.gigabytes)
    return list(gpu_of_layers(shape.layers, shares[:gpus], shape.layers + 1))
