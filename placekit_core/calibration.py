"""What a backend measured of a machine: its cluster with measured rates and links, and the seconds of operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placekit_core.cluster import Cluster, DeviceKind, Efficiency, OperationClass
from placekit_core.costs import EFFICIENCY, CostFile, CostTable, from_file, roofline
from placekit_core.errors import RunError
from placekit_core.graph import Graph
from placekit_core.graph_file import write_atomically

CLUSTER, COSTS = "cluster.yaml", "costs.json"


@dataclass(frozen=True, eq=False)
class Calibration:
    """A machine and what operations take on it, both measured.

    Attributes:
        cluster: the machine: the given one with measured rates, launch overheads and links.
        costs: seconds of operations, by signature where the graph has one, else by name.
        figures: how many (operation or signature, device kind) pairs were measured.
        repeats: of how many samples each figure is the median.
        spread, largest_spread: median and largest over the figures of their relative spread: half the interquartile range
            of the samples over their median; NaN where each has one sample.
        notes: what could not be measured of the machine, and what stands in its place.
        failures: operations that failed; they and what follows them in their program have no figures.
        interrupted: whether Ctrl-C ended it; figures are of fewer samples then, or missing.
        seconds: what the calibration took.
    """

    cluster: Cluster
    costs: CostFile
    figures: int
    repeats: int
    spread: float
    largest_spread: float
    notes: tuple[str, ...]
    failures: tuple[str, ...]
    interrupted: bool
    seconds: float

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write `cluster.yaml` and `costs.json` into `folder`, which exists. Raises RunError."""
        import yaml

        data = self.cluster.model_dump(mode="json", exclude_defaults=True)
        text = yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=120)
        paths = folder / CLUSTER, folder / COSTS
        try:
            write_atomically(paths[0], text.encode())
            write_atomically(paths[1], self.costs.model_dump_json(indent=1).encode())
        except OSError as e:
            raise RunError(f"cannot write {folder}: {e.strerror or e}") from None
        return paths


@dataclass(frozen=True)
class ClassRatio:
    """What operations of one class take on one device kind, beside the roofline of the machine as it was given.

    Attributes:
        kernels: operations with a measured figure.
        measured_s, roofline_s: all of them one after the other.
        ratio: median over the operations of measured over roofline.
    """

    kind: str
    op_class: str
    kernels: int
    measured_s: float
    roofline_s: float
    ratio: float


def measured_costs(graph: Graph, calibration: Calibration) -> CostTable:
    """Costs of `graph` on the calibrated machine: measured where there is a figure, else its roofline."""
    return from_file(roofline(graph, calibration.cluster), graph, calibration.costs)


def class_ratios(graphs: Sequence[Graph], cluster: Cluster, calibration: Calibration) -> list[ClassRatio]:
    """A row per device kind and class of operations in `graphs`, longest first; `cluster` is the machine as given."""
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
        found = from_file(best, graph, costs)
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
