"""Efficiencies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from placekit_core import (
    EFFICIENCY,
    Cluster,
    CostFile,
    DeviceKind,
    Efficiency,
    Graph,
    OperationClass,
    roofline,
    with_figures,
)


def with_efficiency(cluster: Cluster, graphs: Sequence[Graph], costs: CostFile) -> Cluster:
    """`cluster`, whose rates were measured, with the fractions of them that classes of operations reach.

    Rates are what a product and an elementwise operation reach, so these two reach all of theirs, and other classes what
    their nominal fractions say of them beside these. Where `costs` has figures of a class, its fraction is the
    median, over the operations of `graphs`, of the seconds at full rates over the measured ones without
    the launch overhead. Operations that full rates would do in less than a launch, or that took less than three, are mostly
    fixed cost: they say nothing of rates and are left out. It makes the roofline a fair guess for operations of the class that
    were not measured.
    """
    full = dict.fromkeys(EFFICIENCY, Efficiency(compute=1.0, memory=1.0))
    bare = {
        name: kind.model_copy(update={"launch_overhead_s": 0.0, "efficiency": full})
        for name, kind in cluster.kinds.items()
    }
    ideal = cluster.model_copy(update={"kinds": bare})
    reached: dict[tuple[str, OperationClass], list[NDArray[np.float64]]] = {}
    for graph in graphs:
        best = roofline(graph, ideal)
        found = with_figures(best, graph, costs)
        for k, kind in enumerate(found.kinds):
            launch = cluster.kinds[kind].launch_overhead_s
            large = (best.op_s[:, k] > 0) & (best.op_s[:, k] >= launch) & (found.op_s[:, k] > 3 * launch)
            rows = graph.kernel & found.measured[:, k] & large
            for code, name in enumerate(graph.op_class.vocabulary):
                own = np.flatnonzero(rows & (graph.op_class.codes == code))
                if name in EFFICIENCY and len(own):
                    reached.setdefault((kind, name), []).append(best.op_s[own, k] / (found.op_s[own, k] - launch))
    kinds = {
        name: kind.model_copy(update={"efficiency": _beside_measured(kind)}) for name, kind in cluster.kinds.items()
    }
    for (kind, name), parts in reached.items():
        fraction = float(np.clip(float(f"{np.median(np.concatenate(parts)):.3g}"), 1e-3, 1.0))
        table = dict(kinds[kind].efficiency) | {name: Efficiency(compute=fraction, memory=fraction)}
        kinds[kind] = kinds[kind].model_copy(update={"efficiency": table})
    return Cluster(**{**{name: getattr(cluster, name) for name in Cluster.model_fields}, "kinds": kinds})


def _beside_measured(kind: DeviceKind) -> dict[OperationClass, Efficiency]:
    """Fractions of rates that a product (of arithmetic) and an elementwise operation (of memory) reach by definition."""
    own = {**EFFICIENCY, **kind.efficiency}
    compute, memory = own["matmul"].compute, own["elementwise"].memory

    def fraction(value: float, whole: float) -> float:
        return min(float(f"{value / whole:.3g}"), 1.0)

    return {
        name: Efficiency(compute=fraction(e.compute, compute), memory=fraction(e.memory, memory))
        for name, e in own.items()
    }
