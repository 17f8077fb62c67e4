"""Layered graphs with a known optimal makespan; see `PlantedImporter`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from placekit_core import Cluster, Graph, Importer, Labels, Program, validate_graph
from placekit_zoo.family_options import PlantedOptions

TICK_S = 2.0**-20
"""Every time is a multiple of this, and every speed a power of two, so all sums and quotients below are exact."""
LAYER = 1024  # ticks of a layer
_LABELS = {"op_type": "work", "op_class": "other", "dtype": "float32", "module": "", "allowed": ""}
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
        n, wide = len(plan.layer), o.devices * o.strands * o.width
        reads = _light_reads(o, plan, rng)
        light = rng.integers(LAYER // 4, LAYER, n)
        is_read = np.zeros(n, np.bool_)
        is_read[reads] = True
        producer, heavy, last = _tensors(plan.layer + 1 < o.layers, is_read)
        bytes_ = np.rint(light[producer] * TICK_S * PER_S).astype(np.int64)
        bytes_[heavy] = round(o.communication * LAYER * TICK_S * PER_S)
        counts = np.zeros(n, np.int64)
        counts[wide:] = o.width
        counts[2 * wide :] += reads.shape[1]
        before = np.flatnonzero(heavy)[_same_strand(o, plan)]  # of layer l, the tensors that layer l + 1 reads
        second, others = before[: min(wide, len(before))], before[min(wide, len(before)) :]
        inputs = np.concatenate([second.reshape(-1), np.hstack([others, last[reads]]).reshape(-1)])
        graph = Graph(
            name=self.name, op_name=tuple(f"layer{v // wide:04d}.{v % wide:03d}" for v in range(n)),
            flops=plan.work.astype(np.float64) * TICK_S * PER_S, bytes_accessed=np.zeros(n),
            persistent_bytes=np.zeros(n, np.int64), kernel=np.ones(n, np.bool_), phase=np.zeros(n, np.uint8),
            **{key: Labels(np.zeros(n, np.int32), (value,)) for key, value in _LABELS.items()},
            call=np.zeros(n, np.int32), colocate=np.full(n, -1, np.int32), tensor_producer=producer.astype(np.int32),
            tensor_bytes=bytes_, tensor_storage=np.arange(len(producer), dtype=np.int32),
            shape_ptr=np.zeros(len(producer) + 1, np.int32), shape_dim=np.empty(0, np.int64),
            input_ptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), input_tensor=inputs.astype(np.int32),
            columns={
                "planted_device": plan.device.astype(np.int16),
                "planted_priority": -np.argsort(np.argsort(plan.start, kind="stable")).astype(np.float32),
            },
            attributes={"optimal_makespan_s": o.layers * LAYER * TICK_S},
        )  # fmt: skip
        return [Program(validate_graph(graph), cluster=machine(o))]


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
    per_device, parts = o.strands * o.width, o.layers * o.devices
    share, turn = np.empty((parts, per_device)), np.empty((parts, per_device), np.int64)
    for part in range(parts):  # layer by layer; the order of the draws makes the graph
        share[part] = rng.uniform(1, 3, per_device)
        turn[part] = rng.permutation(per_device)
    speed = np.tile(np.asarray(_speeds(o), np.float64), o.layers)[:, None]
    layer = np.repeat(np.arange(o.layers), o.devices)[:, None]
    device = np.tile(np.arange(o.devices), o.layers)[:, None]
    ends = np.rint(share.cumsum(axis=1) / share.sum(axis=1, keepdims=True) * LAYER * speed).astype(np.int64)
    work = np.diff(ends, prepend=0, axis=1)
    start = layer * float(LAYER) + (ends - work) / speed
    order = np.lexsort((rng.permutation(work.size), np.repeat(np.arange(o.layers), o.devices * per_device)))

    def column(values: NDArray[Any]) -> NDArray[Any]:
        return np.broadcast_to(values, work.shape).reshape(-1)[order]

    return _Plan(*map(column, (layer, device * o.strands + turn % o.strands, device, work, start)))


def _light_reads(o: PlantedOptions, plan: _Plan, rng: Generator) -> NDArray[np.int64]:
    """[n - 2 layers, reads] operations of other devices, two layers before, that each one reads light tensors from."""
    wide, own = o.devices * o.strands * o.width, o.strands * o.width
    count = min(o.reads, wide - own)
    rows = max(o.layers - 2, 0) * wide
    drawn = np.empty((rows, count), np.int64)
    if count:
        for row in range(rows):
            drawn[row] = rng.choice(wide - own, count, replace=False)
    device = plan.device.reshape(o.layers, wide)[:-2] if rows else np.empty((0, wide), np.int64)
    others = np.empty((len(device), o.devices, wide - own), np.int64)
    for d in range(o.devices):  # every layer has equally many operations of other devices
        others[:, d] = np.flatnonzero(device != d).reshape(len(device), wide - own)
    layer = np.repeat(np.arange(len(device)), wide)
    return others[layer[:, None], plan.device[len(plan.device) - rows :][:, None], drawn]


def _same_strand(o: PlantedOptions, plan: _Plan) -> NDArray[np.int64]:
    """[n - 1 layer, width] operations of its strand in the layer before, for each operation."""
    wide = o.devices * o.strands * o.width
    strand = plan.strand.reshape(o.layers, wide)
    members = np.argsort(strand, axis=1, kind="stable").reshape(o.layers, -1, o.width)
    layer = np.repeat(np.arange(o.layers - 1), wide)
    return members[layer, plan.strand[wide:]] + layer[:, None] * wide


def _tensors(
    heavy: NDArray[np.bool_], light: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
    """The tensors of operations that write a heavy one, a light one after it, or both.

    [t] the operation that writes each, [t] whether it is heavy, and [n] the last tensor of each operation.
    """
    count = heavy.astype(np.int64) + light
    producer = np.repeat(np.arange(len(count)), count)
    last = np.cumsum(count) - 1
    is_heavy = np.zeros(len(producer), np.bool_)
    is_heavy[(last - count + 1)[heavy]] = True
    return producer, is_heavy, last
