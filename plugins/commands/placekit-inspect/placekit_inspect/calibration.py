"""Compares a calibration with the roofline of the given machine, and writes its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placekit_core import Calibration, Cluster, CostTable, Graph, RunError, roofline, with_figures, write_atomically

CLUSTER, COSTS = "cluster.yaml", "costs.json"


@dataclass(frozen=True)
class ClassRatio:
    """Measured seconds of one class of operations on one device kind, and their roofline on the given machine.

    Attributes:
        kernels: number of measured operations.
        measured_s, roofline_s: sums over these operations.
        ratio: median over the operations of measured over roofline.
    """

    kind: str
    op_class: str
    kernels: int
    measured_s: float
    roofline_s: float
    ratio: float


def measured_costs(graph: Graph, calibration: Calibration) -> CostTable:
    """Costs of `graph` on the calibrated machine: measured, or else its roofline."""
    return with_figures(roofline(graph, calibration.cluster), graph, calibration.costs)


def class_ratios(graphs: Sequence[Graph], cluster: Cluster, calibration: Calibration) -> list[ClassRatio]:
    """A row per device kind and class of operations in `graphs`, longest first; `cluster` is the given machine."""
    seconds: dict[tuple[str, str], list[NDArray[np.float64]]] = {}
    for graph in graphs:
        found, nominal = measured_costs(graph, calibration), roofline(graph, cluster)
        for k, kind in enumerate(found.kinds):
            for code, name in enumerate(graph.op_class.vocabulary):
                rows = graph.kernel & found.measured[:, k] & (graph.op_class.codes == code)
                pairs = np.stack([found.op_s[rows, k], nominal.op_s[rows, nominal.kinds.index(kind)]])
                seconds.setdefault((kind, name), []).append(pairs)
    made = []
    for (kind, name), parts in seconds.items():
        measured, estimated = np.concatenate(parts, axis=1)
        if len(measured):
            ratio = np.median(measured[estimated > 0] / estimated[estimated > 0]) if (estimated > 0).any() else np.nan
            made.append(
                ClassRatio(kind, name, len(measured), float(measured.sum()), float(estimated.sum()), float(ratio))
            )
    return sorted(made, key=lambda r: (calibration.cluster.kind_names.index(r.kind), -r.measured_s))


def write(found: Calibration, folder: Path) -> None:
    """Write `cluster.yaml` and `costs.json` into `folder`, which exists. Raises RunError."""
    import yaml

    data = found.cluster.model_dump(mode="json", exclude_defaults=True)
    text = yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=120)
    try:
        write_atomically(folder / CLUSTER, text.encode())
        write_atomically(folder / COSTS, found.costs.model_dump_json(indent=1).encode())
    except OSError as e:
        raise RunError(f"cannot write {folder}: {e.strerror or e}", "choose another folder") from None
