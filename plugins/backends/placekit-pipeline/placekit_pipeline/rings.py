"""Ring all-reduces, in buckets while the backward pass runs: the arithmetic that compiled code and Python share.

Compiled code calls these functions; Python calls `all_reduce_s`, or `placekit_scheduling.jit.interpreted(function)`.
"""
# mypy: ignore-errors
# numba checks the types here.

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from placekit_scheduling.jit import inner, interpreted

from placekit_core import Cluster
from placekit_pipeline.nets import held_channels, pointer
from placekit_pipeline.replicas import BUCKET


@inner
def buckets_of(bytes_, overlap):
    """In how many equal buckets a ring averages `bytes_` of gradients; without `overlap`, in one."""
    return max(1, math.ceil(bytes_ / BUCKET)) if overlap else 1


@inner
def ready_s(start_s, end_s, bucket, buckets):
    """When `bucket`, from 0, is ready if the last backward task runs from `start_s` to `end_s`."""
    if bucket + 1 >= buckets:
        return end_s
    return start_s + (end_s - start_s) * (bucket + 1) / buckets


@inner
def edge(member, first, n, i, size):
    """The route, as device * D + device, from the ring's i-th device to the next one."""
    return np.int64(member[first + i]) * size + member[first + (i + 1) % n]


@inner
def ring_s(member, first, n, bytes_, size, latency_s, s_per_byte, held_ptr, held, busy_s):
    """Seconds of a ring over n devices: 2 (n - 1) steps, in which each sends bytes / n to the next.

    A step takes as long as its slowest message. Messages that hold the same channel go one after the other.

    Args:
        member, first, n: the devices are `member[first : first + n]`.
        size: D devices of the machine.
        latency_s, s_per_byte: [D * D] of each route.
        held_ptr, held: the channels that each route holds, in compressed rows.
        busy_s: [channels] zeros, as working space; they are zeros again afterwards.
    """
    step = 0.0
    for i in range(n):
        route = edge(member, first, n, i, size)
        seconds = latency_s[route] + bytes_ / n * s_per_byte[route]
        step = max(step, seconds)
        for x in range(held_ptr[route], held_ptr[route + 1]):
            busy_s[held[x]] += seconds
            step = max(step, busy_s[held[x]])
    for i in range(n):
        route = edge(member, first, n, i, size)
        for x in range(held_ptr[route], held_ptr[route + 1]):
            busy_s[held[x]] = 0.0
    return 2 * (n - 1) * step


def all_reduce_s(cluster: Cluster, member: Sequence[int], bytes_: float) -> float:
    """Seconds in which the devices `member` of a cluster average `bytes_`, in the order of the ring; 0 for one device."""
    routes, held = cluster.routes, held_channels(cluster)
    return interpreted(ring_s)(
        np.asarray(member), 0, len(member), bytes_, cluster.size, routes.latency_s.ravel(), routes.s_per_byte.ravel(),
        pointer(held), np.concatenate(held), np.zeros(len(routes.channels)),
    )  # fmt: skip
