"""Small graphs and machines, whose times are easy to follow by hand."""

from __future__ import annotations

import numpy as np

from placekit_core import Cluster, Graph, GraphBuilder


def machine(devices: int = 2, memory_bytes: int = 2**30, **kind: object) -> Cluster:
    """Equal GPUs of 1 TFLOP/s with full efficiency, linked to one hub at 1 GB/s."""
    full = {"compute": 1.0, "memory": 1.0}
    data = {
        "name": f"test{devices}",
        "kinds": {
            "gpu": {
                "flops_per_s": {"float32": 1e12},
                "memory_bytes": memory_bytes,
                "memory_bytes_per_s": 1e15,
                "efficiency": {"other": full},
                **kind,
            }
        },
        "devices": [{"kind": "gpu", "count": devices}],
        "links": [{"a": "gpu:*", "b": "hub", "bytes_per_s": 1e9}],
    }
    return Cluster.parse(data)


def chain(n: int, seed: int = 0) -> Graph:
    """A chain of n operations of random length."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder(f"chain{n}")
    t = b.source("x", 1000, op_type="input")
    for i in range(n):
        [t] = b.add(f"op{i}", inputs=[t], outputs=[1000], flops=float(rng.integers(1, 10)) * 1e9)
    return b.build()
