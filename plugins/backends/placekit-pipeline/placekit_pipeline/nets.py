"""Tensors between groups, as nets: a producer, the groups that read from it, and the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placekit_core import PHASES, Cluster, Problem

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

FORWARD, BACKWARD, UPDATE = (PHASES.index(p) for p in ("forward", "backward", "update"))
SOURCE, AHEAD, BACK, END, AGAIN = range(5)
"""Kinds of nets, by producer and readers: `SOURCE` a source; `AHEAD` forward operations, for forward or backward ones; `BACK`
backward, for backward ones; `END` forward or backward, for updates (once per step); `AGAIN` updates, for updates."""
TRANSFER_S = "transfer_s"  # column of graphs whose source gives the seconds of a hop (importer `msr`)


@dataclass(frozen=True, eq=False)
class Nets:
    """N nets between g groups. Tensors of one group with the same readers are one net.

    Attributes:
        kind: [N] `SOURCE`, `AHEAD`, `BACK`, `END` or `AGAIN`.
        producer: [N] the group that computes it.
        ptr, reader: the groups that read it, without the producer, in compressed rows.
        late: [R] whether only backward operations of the reader read it (nets `AHEAD`).
        bytes_, count: [N] bytes and number of its tensors.
        hop_s: [N] seconds of one hop from the graph's column `transfer_s`; negative without that column.
    """

    kind: Ints
    producer: Ints
    ptr: Ints
    reader: Ints
    late: NDArray[np.bool_]
    bytes_: Floats
    count: Ints
    hop_s: Floats

    def __len__(self) -> int:
        return len(self.producer)

    def of_groups(self, g: int) -> tuple[Ints, Ints]:
        """The nets that each of g groups makes or reads, in compressed rows."""
        net = np.repeat(np.arange(len(self)), np.diff(self.ptr))
        group = np.concatenate([self.producer, self.reader])
        nets = np.concatenate([np.arange(len(self)), net])
        pairs = np.unique(np.stack([group, nets]), axis=1)
        ptr = np.searchsorted(pairs[0], np.arange(g + 1))
        return ptr.astype(np.int64), pairs[1].astype(np.int64)


def nets_of(problem: Problem, phase: Ints | None = None) -> Nets:
    """The nets of a problem by the phase [n] of each operation; without phases, every net is `AHEAD`."""
    graph, group = problem.graph, problem.grouping.group_of.astype(np.int64)
    tensor, reader = graph.input_tensor.astype(np.int64), graph.edge_op
    producer = graph.tensor_producer[tensor]
    cross = group[producer] != group[reader]
    tensor, reader, producer = tensor[cross], reader[cross], producer[cross]
    kind = np.full(len(tensor), AHEAD)
    late = np.zeros(len(tensor), np.bool_)
    if phase is not None:
        kind[phase[producer] == BACKWARD] = BACK
        kind[phase[reader] == UPDATE] = END
        kind[phase[producer] == UPDATE] = AGAIN
        kind[~graph.kernel[producer]] = SOURCE
        late = (kind == AHEAD) & (phase[reader] == BACKWARD)
    # a reader with forward and backward operations is not late: the row with late = 0 comes first
    row = np.stack([tensor, kind, group[reader], late])
    order = np.lexsort((row[3], row[2], row[1], row[0]))
    row = row[:, order]
    first = np.ones(row.shape[1], np.bool_)
    first[1:] = np.any(row[:3, 1:] != row[:3, :-1], axis=0)
    return _merged(problem, row[:, first], phase is not None)


def _merged(problem: Problem, row: NDArray[np.integer], together: bool) -> Nets:
    """Nets from sorted rows of (tensor, kind, reader, late), merging tensors with equal kind, producer and readers.

    Unless they travel `together`, only tensors of equal bytes are merged, so that all have the same slowest route.
    """
    graph = problem.graph
    begin = np.flatnonzero(np.diff(row[0] * 8 + row[1], prepend=-1))
    ends = np.append(begin, row.shape[1])[1:]
    hop = graph.columns.get(TRANSFER_S)
    hop_s = np.full(graph.n, -1.0) if not isinstance(hop, np.ndarray) else np.asarray(hop, np.float64)
    group = problem.grouping.group_of
    known: dict[tuple[int, int, float, bytes], int] = {}
    kinds, producers, count = list[int](), list[int](), list[int]()
    rows, bytes_, hops = list[Ints](), list[float](), list[float]()
    readers = np.ascontiguousarray((row[2] * 2 + row[3]).astype(np.int64))
    size = [0.0] * graph.t if together else graph.tensor_bytes.astype(np.float64).tolist()
    for a, b in zip(begin.tolist(), ends.tolist(), strict=True):
        tensor, kind = int(row[0, a]), int(row[1, a])
        op = int(graph.tensor_producer[tensor])
        key = (kind, int(group[op]), size[tensor], readers[a:b].tobytes())
        net = known.setdefault(key, len(known))
        if net == len(kinds):
            kinds.append(kind)
            producers.append(int(group[op]))
            rows.append(readers[a:b])
            bytes_.append(0.0)
            count.append(0)
            hops.append(0.0 if hop_s[op] >= 0 else -1.0)
        bytes_[net] += float(graph.tensor_bytes[tensor])
        count[net] += 1
        hops[net] += max(float(hop_s[op]), 0.0)
    flat = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    return Nets(
        kind=np.asarray(kinds, np.int64),
        producer=np.asarray(producers, np.int64),
        ptr=pointer(rows),
        reader=flat >> 1,
        late=(flat & 1) > 0,
        bytes_=np.asarray(bytes_, np.float64),
        count=np.asarray(count, np.int64),
        hop_s=np.asarray(hops, np.float64),
    )


def held_channels(cluster: Cluster) -> list[Ints]:
    """The channels of each route that carry one transfer at a time. Transfers never wait for other channels."""
    routes, capacity = cluster.routes, cluster.routes.capacity
    rows = [routes.channel[routes.ptr[r] : routes.ptr[r + 1]] for r in range(cluster.size**2)]
    return [np.asarray(row[capacity[row] == 1], np.int64) for row in rows]


def pointer(rows: Sequence[Sequence[int] | Ints]) -> Ints:
    """The index at which each row begins in their concatenation, and the total length."""
    return np.cumsum([0, *map(len, rows)]).astype(np.int64)


def grid(total: float) -> float:
    """The finest power of two such that sums up to `total` of its multiples are exact in floating point.

    Costs are rounded to multiples of it (`on_grid`), by less than 2^-52 of the total each. Then their sums are the same in any
    order, to the last bit, so that an evaluation that updates sums after a move equals one from scratch.
    """
    return float(2.0 ** np.ceil(np.log2(max(total, 1e-300)) - 52))


def on_grid(seconds: NDArray[np.float64], step: float) -> Floats:
    """`seconds` rounded to multiples of `step`."""
    return np.rint(seconds / step) * step
