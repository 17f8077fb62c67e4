"""Layered graphs whose optimal makespan is known by construction; see `PlantedImporter`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from placekit_core import Cluster, GraphBuilder, Importer, Program
from placekit_zoo.family_options import PlantedOptions

TICK_S = 2.0**-20
"""Every time is a multiple of this, and every speed a power of two, so all sums and quotients below are exact."""
LAYER = 1024  # ticks of a layer
PER_S = 2.0**30  # operations per second of a device of speed 1, and bytes per second of a link


@dataclass(frozen=True)
class _Plan:
    """The planted schedule of n operations, numbered by layer and at random within a layer.

    Attributes:
        layer, strand, device: [n] layer, strand and device of each operation; a strand stays on one device.
        work: [n] ticks on a device of speed 1.
        start: [n] tick at which the operation starts.
    """

    layer: NDArray[np.int64]
    strand: NDArray[np.int64]
    device: NDArray[np.int64]
    work: NDArray[np.int64]
    start: NDArray[np.float64]


class PlantedImporter(Importer):
    """Importer `planted`: a graph for D devices whose optimal makespan is L layers of length T, and its machine.

    The planted schedule. Device d, of speed s_d, executes `strands` strands. In each layer l a strand has `width`
    operations. The operations of all strands of a device together take exactly T: they run one after another, in random
    order, from l T to (l + 1) T. An operation reads

    - a heavy tensor from every operation of its strand in the layer before. All of them have ended by l T on the same
      device.
    - light tensors from `reads` operations of other devices, two layers before, which have ended by (l - 1) T. A link
      carries any number of transfers at once, and a light tensor takes less than T: it arrives before l T.

    So every operation can start when the one before it on its device ends. With priorities in planted order, a
    work-conserving execution does just that, and ends at L T.

    No schedule is shorter. All operations together are L T sum(s_d) ticks of work, and in a time t the devices do at most
    t sum(s_d). The planted schedule is optimal because no device is ever idle in it.

    Why list schedulers miss it. The operations of a strand in one layer become ready together, and idle devices start them
    at once: earliest start scatters a strand over the devices. Each operation of its next layer then reads from several
    devices, waits for a heavy tensor (`communication` T, and nothing hides all of it, because all strands wait), and is
    scattered again. To keep a strand together, operations must wait for a busy device while others are idle, which no rule
    of earliest start does. A method that keeps the strands together must still pack strands of different work so that the
    devices have equal loads, despite light reads between all strands.
    """

    name = "planted"
    options_class = PlantedOptions

    def load(self) -> list[Program]:
        """One program with its cluster.

        The columns `planted_device` and `planted_priority` are the planted placement, and the attribute
        `optimal_makespan_s` is its makespan; both are for the program's own cluster only.
        """
        o: PlantedOptions = self.options
        rng = np.random.default_rng(o.seed)
        plan = _plan(o, rng)
        builder = GraphBuilder(self.name)
        n = len(plan.layer)
        rows = [np.flatnonzero(plan.layer == layer) for layer in range(o.layers)]
        light_reads = _light_reads(o, plan, rows, rng)
        is_read = {int(u) for reads in light_reads for u in reads}
        light = rng.integers(LAYER // 4, LAYER, n)
        heavy = round(o.communication * LAYER * TICK_S * PER_S)
        outputs: list[list[int]] = []
        for v in range(n):
            layer = int(plan.layer[v])
            before = rows[layer - 1][plan.strand[rows[layer - 1]] == plan.strand[v]] if layer else ()
            inputs = [outputs[u][0] for u in before]
            inputs += [outputs[u][-1] for u in light_reads[v]]
            sizes = [heavy] if layer + 1 < o.layers else []
            sizes += [round(light[v] * TICK_S * PER_S)] if v in is_read else []
            outputs.append(
                builder.add(
                    f"layer{layer:04d}.{v - rows[layer][0]:03d}", op_type="work", inputs=inputs, outputs=sizes,
                    flops=float(plan.work[v]) * TICK_S * PER_S,
                )
            )  # fmt: skip
        builder.columns = {
            "planted_device": plan.device.astype(np.int16),
            "planted_priority": -np.argsort(np.argsort(plan.start, kind="stable")).astype(np.float32),
        }
        builder.attributes = {"optimal_makespan_s": o.layers * LAYER * TICK_S}
        return [Program(builder.build(), cluster=machine(o))]


def machine(o: PlantedOptions) -> Cluster:
    """Devices of the given speeds, with a link between any two, without contention."""
    kinds = {
        f"speed{s}": {
            "flops_per_s": {"float32": s * PER_S},
            "memory_bytes": 2**50,
            "memory_bytes_per_s": PER_S,
            "efficiency": {"other": {"compute": 1, "memory": 1}},
        }
        for s in dict.fromkeys(_speeds(o))
    }
    devices = [{"kind": f"speed{s}", "name": f"device{d}"} for d, s in enumerate(_speeds(o))]
    links = [{"mesh": "device*", "bytes_per_s": PER_S, "concurrent": "unlimited"}]
    return Cluster.parse({"name": "planted", "kinds": kinds, "devices": devices, "links": links})


def _speeds(o: PlantedOptions) -> list[int]:
    return [o.speeds[d % len(o.speeds)] for d in range(o.devices)]


def _plan(o: PlantedOptions, rng: Generator) -> _Plan:
    """The planted schedule: each device's time in each layer is cut into operations of its strands."""
    per_device = o.strands * o.width
    parts = []
    for layer in range(o.layers):
        for d, speed in enumerate(_speeds(o)):
            share = rng.uniform(1, 3, per_device)
            ends = np.rint(share.cumsum() / share.sum() * LAYER * speed).astype(np.int64)
            work = np.diff(ends, prepend=0)
            strand = d * o.strands + rng.permutation(per_device) % o.strands
            full = np.full(per_device, 1)
            parts.append((layer * full, strand, d * full, work, layer * LAYER + (ends - work) / speed))
    columns = [np.concatenate(c) for c in zip(*parts, strict=True)]
    order = np.lexsort((rng.permutation(len(columns[0])), columns[0]))
    return _Plan(*(c[order] for c in columns))


def _light_reads(
    o: PlantedOptions, plan: _Plan, rows: list[NDArray[np.int64]], rng: Generator
) -> list[NDArray[np.int64]]:
    """For each operation, the operations of other devices, two layers before, that it reads light tensors from."""
    reads = [np.empty(0, np.int64)] * len(plan.layer)
    for layer in range(2, o.layers):
        for v in rows[layer]:
            others = rows[layer - 2][plan.device[rows[layer - 2]] != plan.device[v]]
            reads[v] = rng.choice(others, min(o.reads, len(others)), replace=False)
    return reads
