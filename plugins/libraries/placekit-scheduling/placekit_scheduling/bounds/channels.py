"""Transfers that must go over single channels: the computation of `makespan.channel_bound`, which has the proof."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from placekit_scheduling.bounds.kinds import Flags, Floats
from placekit_scheduling.bounds.relaxation import Relaxation, longest_window
from placekit_scheduling.bounds.routes import channels_of, least_transfer_s


def busiest_channel(relaxation: Relaxation, possible: Flags, head: Floats, tail: Floats) -> float:
    """The bound in seconds, if operations can be on the `possible` kinds; `possible`, `head` and `tail` are [n, K]."""
    graph, cluster, kinds = relaxation.problem.graph, relaxation.problem.cluster, possible.shape[1]
    if kinds == 1:
        return 0.0
    producer = graph.tensor_producer[graph.input_tensor]
    apart = np.flatnonzero(~(possible[producer] & possible[graph.edge_op]).any(axis=1))
    tensor, first = np.unique(graph.input_tensor[apart], return_index=True)
    if not len(tensor):
        return 0.0
    reader = graph.edge_op[apart[first]]
    producer = graph.tensor_producer[tensor]
    ends, which = np.unique(np.hstack([possible[producer], possible[reader]]), axis=0, return_inverse=True)
    bytes_ = graph.tensor_bytes[tensor].astype(np.float64)
    duration = np.empty(len(tensor))
    tensors_over: defaultdict[int, list[int]] = defaultdict(list)
    for i, row in enumerate(ends):
        sources, destinations = (
            np.flatnonzero(row[:kinds][cluster.kind_of]),
            np.flatnonzero(row[kinds:][cluster.kind_of]),
        )
        pairs = [(a, b) for a in sources for b in destinations]
        rows = np.flatnonzero(which.ravel() == i)
        duration[rows] = least_transfer_s(cluster.routes, pairs, bytes_[rows])
        for channel in set.intersection(*map(set, channels_of(cluster.routes, pairs))):
            tensors_over[channel].extend(rows.tolist())
    seconds = np.where(possible, relaxation.seconds, np.inf)
    exists = np.where(possible, head + seconds, np.inf).min(axis=1)[producer]
    after = np.where(possible, tail + seconds, np.inf).min(axis=1)[reader]
    capacity = cluster.routes.capacity
    return max(
        (longest_window(exists[r], after[r], duration[r], float(capacity[c])) for c, r in tensors_over.items()),
        default=0.0,
    )
