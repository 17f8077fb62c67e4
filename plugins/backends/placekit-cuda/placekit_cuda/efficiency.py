"""Derives the fractions of its rates that a device reaches, by class of operations, from measured times."""

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
    """`cluster`, which has measured rates, with the fractions of them that classes of operations reach.

    The measured rates are those of a matrix product and of an elementwise operation, so these two classes reach them fully by
    definition; other classes keep their nominal fractions, relative to these two. If `costs` has figures for a class, its
    fraction is a median over the operations of `graphs`: the seconds at full rates, divided by the measured seconds without
    the launch overhead. An operation that would take less than one launch at full rates, or took less than three launches, is
    mostly fixed cost; it says nothing about rates and is left out. The fraction makes the roofline a fair guess for
    operations of the class that were not measured.
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
    """Fractions relative to a product (for arithmetic) and an elementwise operation (for memory), which reach the rates."""
    own = {**EFFICIENCY, **kind.efficiency}
    compute, memory = own["matmul"].compute, own["elementwise"].memory

    def fraction(value: float, whole: float) -> float:
        return min(float(f"{value / whole:.3g}"), 1.0)

    return {
        name: Efficiency(compute=fraction(e.compute, compute), memory=fraction(e.memory, memory))
        for name, e in own.items()
    }
