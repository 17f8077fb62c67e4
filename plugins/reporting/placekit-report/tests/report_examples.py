"""A small problem whose schedule is easy to follow by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from placekit_core import Cluster, CostTable, GraphBuilder, Problem

DEVICES = [0, 0, 0, 1, 0]
"""x, a, d and c on device 0; b on device 1."""
SECONDS = [0.0, 2.0, 1.0, 4.0, 1.0]


def with_seconds(problem: Problem, op_s: Sequence[float]) -> Problem:
    """The problem with these seconds of its operations, on every kind of device."""
    kinds = problem.cluster.kind_names
    table = np.repeat(np.asarray(op_s, np.float64)[:, None], len(kinds), axis=1)
    return Problem(
        problem.graph, problem.grouping, problem.cluster, CostTable(kinds, table, np.zeros(table.shape, np.bool_))
    )


def three_on_two(**kind: Any) -> Problem:
    """x -> a -> b -> c on two devices, and d, which reads x; a writes 3 bytes, b 5; the link sends a byte per second.

    With `SECONDS` and `DEVICES`, a runs to 2 s, d beside the transfer to 3 s, b from 5 s to 9 s, c from 14 s to 15 s.
    """
    b = GraphBuilder("three")
    x = b.source("x", 8)
    [y] = b.add("a", inputs=[x], outputs=[3], flops=4.0, bytes_accessed=2.0)
    b.add("d", inputs=[x])
    [z] = b.add("b", inputs=[y], outputs=[5], flops=4.0)
    b.add("c", inputs=[z])
    full = {"compute": 1.0, "memory": 1.0}
    gpu = {
        "flops_per_s": {"float32": 1.0}, "memory_bytes": 1000, "memory_bytes_per_s": 1.0, "efficiency": {"other": full}, **kind
    }  # fmt: skip
    cluster = Cluster.parse(
        {
            "kinds": {"gpu": gpu},
            "devices": [{"kind": "gpu", "count": 2}],
            "links": [{"mesh": "*", "bytes_per_s": 1.0}],
        }
    )
    return Problem.of(b.build(), cluster)
