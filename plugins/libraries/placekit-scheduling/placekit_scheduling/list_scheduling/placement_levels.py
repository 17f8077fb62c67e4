"""Priorities that follow the devices: b-levels of a placement, with the transfers that it makes and no others.

The b-levels of list scheduling (levels.py) take the mean over all devices, before any placement is known.
Once it is, a path whose operations are on one device is as short as their seconds, and one that crosses slow links is longer.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

LEAST_FACTOR, MOST_FACTOR = 0.5, 4.0  # of the transfers' seconds: links are shared, so that a transfer may take longer


@njit(cache=True, nogil=True)
def set_levels(flow: Any, device: Any, factor: Any, tail: Any, priority: Any) -> None:
    """Fill `priority` [g] with the b-levels of groups on their devices `device` [g], in seconds; `tail` [n] is space.

    The b-level of an operation: the longest path from it to an exit, with every operation's seconds on its device and
    `factor` times those of every transfer between devices. That of a group is the highest of its kernels or, without any,
    of its sources, as in `group_priority`. Sources are there from the beginning: nothing is added for sending them.

    `flow` is any tuple of a graph of n operations and t tensors that has these fields: `group_of` [n]; `kernel` [n]; `op_s`
    [n, D] seconds; `tensor_bytes` [t]; `output_ptr` [n + 1], the tensors of operation v are output_ptr[v] to output_ptr[v + 1] -
    1; `consumer_ptr` [t + 1] and `consumer_op`, operations that read each tensor; `latency_s` and `s_per_byte` [D, D] of sending;
    `backwards` [n], operations, each after all that read from it; `decides` [n], whether an operation counts for the priority of
    its group: kernels; in a group without kernels, its sources.
    """
    priority[:] = -np.inf
    for v in flow.backwards:
        group = flow.group_of[v]
        here = np.int64(device[group])
        longest = 0.0
        for x in range(flow.output_ptr[v], flow.output_ptr[v + 1]):
            for k in range(flow.consumer_ptr[x], flow.consumer_ptr[x + 1]):
                w = flow.consumer_op[k]
                there = np.int64(device[flow.group_of[w]])
                after = tail[w]
                if there != here and flow.kernel[v]:
                    after += factor * (
                        flow.latency_s[here, there] + flow.tensor_bytes[x] * flow.s_per_byte[here, there]
                    )
                longest = max(longest, after)
        tail[v] = longest + flow.op_s[v, here]
        if flow.decides[v]:
            priority[group] = max(priority[group], np.float32(tail[v]))
