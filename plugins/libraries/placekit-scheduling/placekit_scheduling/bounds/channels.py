"""The transfers that must go over single channels: the work behind `makespan.channel_bound`, where the proof is."""

from __future__ import annotations

import numpy as np

from placekit_scheduling.bounds.relaxation import Flags, Floats, Relaxation, longest_window


def busiest_channel(relaxation: Relaxation, possible: Flags, head: Floats, tail: Floats) -> float:
    """The bound in seconds, where operations may be on the `possible` kinds; `possible`, `head` and `tail` are [n, K]."""
    graph = relaxation.problem.graph
    kinds = possible.shape[1]
    if kinds == 1:
        return 0.0
    producer = graph.tensor_producer[graph.input_tensor]
    apart = np.flatnonzero(~(possible[producer] & possible[graph.edge_op]).any(axis=1))
    tensor, first = np.unique(graph.input_tensor[apart], return_index=True)
    if not len(tensor):
        return 0.0
    reader = graph.edge_op[apart[first]]
    producer = graph.tensor_producer[tensor]
    way, which = np.unique(np.hstack([possible[producer], possible[reader]]), axis=0, return_inverse=True)
    bytes_ = graph.tensor_bytes[tensor].astype(np.float64)
    duration = np.empty(len(tensor))
    over: dict[int, list[int]] = {}  # channel -> tensors that must go over it
    for i, row in enumerate(way):
        ways, shared = _routes(relaxation, row[:kinds], row[kinds:])
        rows = np.flatnonzero(which.ravel() == i)
        duration[rows] = (ways[:, 0] + bytes_[rows, None] * ways[:, 1]).min(axis=1)
        for channel in shared:
            over.setdefault(channel, []).extend(rows.tolist())
    seconds = np.where(possible, relaxation.seconds, np.inf)
    exists = np.where(possible, head + seconds, np.inf).min(axis=1)[producer]
    after = np.where(possible, tail + seconds, np.inf).min(axis=1)[reader]
    capacity = relaxation.problem.cluster.routes.capacity
    return max(
        (longest_window(exists[r], after[r], duration[r], float(capacity[c])) for c, r in over.items()), default=0.0
    )


def _routes(relaxation: Relaxation, sources: Flags, destinations: Flags) -> tuple[Floats, set[int]]:
    """[w, 2] latencies and seconds per byte from some kinds of devices [K] to others; limited channels on all these routes."""
    cluster = relaxation.problem.cluster
    routes = cluster.routes
    pairs = [
        (a, b) for a in np.flatnonzero(sources[cluster.kind_of]) for b in np.flatnonzero(destinations[cluster.kind_of])
    ]
    rows = [a * cluster.size + b for a, b in pairs]
    held = [set(routes.channel[routes.ptr[r] : routes.ptr[r + 1]].tolist()) for r in rows]
    ways = np.unique([[routes.latency_s[p], routes.s_per_byte[p]] for p in pairs], axis=0)
    return ways, set.intersection(*held)
