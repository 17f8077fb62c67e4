"""Modules whose weights live on the CPU while another device computes them: accelerate's `cpu`.

accelerate keeps the weights of a module on `cpu` in the host's memory, copies them to the main device when the module runs, and
drops them after. So that is the entry for modules which a placement streams (`backend.prefetch`), not the device that computes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placekit_torch.modules import Placed, above


def as_if_on_cpu(placed: Placed) -> NDArray[np.bool_]:
    """Put all operations of offloaded modules where their weights are; [n] whether an operation was moved.

    A module is offloaded if all parameters and buffers of it and of all modules in it are on CPUs. Then accelerate computes
    what is in it on the main device, modules without weights included.
    """
    problem, graph = placed.problem, placed.graph
    on_cpu = np.asarray([problem.device_type(d) == "cpu" for d in range(problem.cluster.size)], np.bool_)
    home: dict[str, int] = {}  # modules with weights -> the device of the first, -1 if some are on no CPU
    for module, tensors in placed.own_tensors.items():
        devices = [int(placed.device[v]) for v in tensors]
        own = devices[0] if on_cpu[devices].all() else -1
        for path in (module, *above(module)):
            home[path] = -1 if home.get(path, own) < 0 else home.get(path, own) if own >= 0 else -1
    target = [
        next((home[p] for p in (module, *above(module)) if home.get(p, -1) >= 0), -1) if module else -1
        for module in placed.modules
    ]
    to = np.asarray(target, np.int16)[graph.module.codes]
    moved = graph.kernel & (to >= 0) & ~on_cpu[placed.device]
    placed.device[moved] = to[moved]
    placed.seconds = problem.op_s[np.arange(graph.n), placed.device] * graph.kernel
    return moved
