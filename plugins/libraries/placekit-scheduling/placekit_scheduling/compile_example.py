"""A tiny problem. Code that solves it compiles its numba loops, or loads them from disk, before they are timed."""

from __future__ import annotations

from placekit_core import Cluster, GraphBuilder, Problem


def warm_up_problem() -> Problem:
    """A diamond of four operations on two devices."""
    builder = GraphBuilder("warm_up")
    [a] = builder.add("a", outputs=[1], flops=1)
    sides = [builder.add(name, inputs=[a], outputs=[1], flops=1)[0] for name in ("b", "c")]
    builder.add("d", inputs=sides, flops=1)
    kind = {"flops_per_s": {"float32": 1.0}, "memory_bytes": 10, "memory_bytes_per_s": 1.0}
    link = {"a": "d:0", "b": "d:1", "bytes_per_s": 1.0}
    cluster = {"kinds": {"d": kind}, "devices": [{"kind": "d", "count": 2}], "links": [link]}
    return Problem.of(builder.build(), Cluster.parse(cluster))
