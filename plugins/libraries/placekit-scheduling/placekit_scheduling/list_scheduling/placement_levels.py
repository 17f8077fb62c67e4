"""Priorities from a placement: b-levels with its devices and transfers.

The b-levels of list scheduling (levels.py) are means over all devices, because no placement is known yet. In a placement, a
path on one device takes only the seconds of its operations, and a path over slow links takes longer.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placekit_core import Problem
from placekit_scheduling.jit import njit

LEAST_FACTOR, MOST_FACTOR = 0.5, 4.0  # factors of the transfers' seconds, which may be longer because links are shared


class LevelGraph(NamedTuple):
    """The arrays of a problem for `set_levels`: n operations, t tensors.

    numba stores argument types with compiled code. The type is defined here, because code for a plugin's type could not be
    loaded where the plugin is not installed.

    Attributes:
        group_of: [n].
        kernel: [n].
        op_s: [n, D] seconds of every operation on every device.
        tensor_bytes: [t].
        output_ptr: [n + 1] the tensors of operation v are output_ptr[v] to output_ptr[v + 1] - 1.
        consumer_ptr, consumer_op: [t + 1], [..] operations that read each tensor, in compressed rows.
        latency_s, s_per_byte: [D, D] of the routes.
        backwards: [n] operations in reverse topological order.
        decides: [n] whether an operation counts for the priority of its group: all kernels; in a group without kernels, all
            sources.
    """

    group_of: NDArray[np.int32]
    kernel: NDArray[np.bool_]
    op_s: Annotated[NDArray[np.float64], 2]
    tensor_bytes: NDArray[np.float64]
    output_ptr: NDArray[np.int32]
    consumer_ptr: NDArray[np.int32]
    consumer_op: NDArray[np.int32]
    latency_s: Annotated[NDArray[np.float64], 2]
    s_per_byte: Annotated[NDArray[np.float64], 2]
    backwards: NDArray[np.int32]
    decides: NDArray[np.bool_]


def level_graph(problem: Problem) -> LevelGraph:
    """The arrays of a problem for `set_levels`."""
    graph, group, routes = problem.graph, problem.grouping.group_of, problem.cluster.routes
    computes = np.zeros(problem.g, np.bool_)
    computes[group[graph.kernel]] = True
    return LevelGraph(
        group_of=_ints(group),
        kernel=graph.kernel.copy(),
        op_s=np.array(problem.op_s, np.float64, order="C"),
        tensor_bytes=np.array(graph.tensor_bytes, np.float64),
        output_ptr=_ints(graph.output_ptr),
        consumer_ptr=_ints(graph.consumer_ptr),
        consumer_op=_ints(graph.consumer_op),
        latency_s=np.array(routes.latency_s, np.float64, order="C"),
        s_per_byte=np.array(routes.s_per_byte, np.float64, order="C"),
        backwards=_ints(graph.topological_order[::-1]),
        decides=graph.kernel | ~computes[group],
    )


def _ints(values: NDArray[Any]) -> NDArray[np.int32]:
    return np.array(values, np.int32)


@njit(cache=True, nogil=True)
def set_levels(graph: Any, device: Any, factor: Any, tail: Any, priority: Any) -> None:
    """Fill `priority` [g] with the b-levels of groups on their devices `device` [g], seconds. `tail` [n] is working space.

    The b-level of an operation is the longest path from it to an exit. A path takes the seconds of its operations on their
    devices, and `factor` times the seconds of its transfers, except those of sources, which can be sent from the beginning.
    The b-level of a group is the highest of its kernels, or of its sources if it has no kernels, as in `group_priority`.
    """
    for group in range(len(priority)):
        priority[group] = -np.inf
    for v in graph.backwards:
        group = graph.group_of[v]
        here = np.int64(device[group])
        longest = 0.0
        for x in range(graph.output_ptr[v], graph.output_ptr[v + 1]):
            for k in range(graph.consumer_ptr[x], graph.consumer_ptr[x + 1]):
                w = graph.consumer_op[k]
                there = np.int64(device[graph.group_of[w]])
                after = tail[w]
                if there != here and graph.kernel[v]:
                    after += factor * (
                        graph.latency_s[here, there] + graph.tensor_bytes[x] * graph.s_per_byte[here, there]
                    )
                longest = max(longest, after)
        tail[v] = longest + graph.op_s[v, here]
        if graph.decides[v]:
            priority[group] = max(priority[group], np.float32(tail[v]))
