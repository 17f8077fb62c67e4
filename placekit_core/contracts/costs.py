"""The costs of operations and transfers, in seconds: a roofline by default, measured figures where there are any.

Roofline (Williams et al. 2009): an operation takes the launch overhead of its device, plus the longer of two times: its
arithmetic at the rate of its dtype, and its memory traffic at the memory bandwidth. A graph may have a column `launches`: how
many launches each operation costs, a fraction where one launch serves several. Both rates are the peak times the fraction
that the class of the operation reaches: `DeviceKind.efficiency`, where it was measured, else the nominal value in
`EFFICIENCY`. A cost file from measurements of a program replaces the estimates.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from placekit_core.contracts.arrays import freeze
from placekit_core.contracts.cluster import Cluster, Efficiency, OperationClass
from placekit_core.contracts.errors import GraphError, PlacekitError
from placekit_core.contracts.files import FileModel, read_json
from placekit_core.contracts.graph import Graph, Labels

# Class of operations: fraction of peak FLOP/s, fraction of peak memory bandwidth. A device kind may override rows.
EFFICIENCY: dict[OperationClass, Efficiency] = {
    "matmul": Efficiency(compute=0.75, memory=0.80),
    "unaligned_matmul": Efficiency(compute=0.75, memory=0.80),
    "quantized_matmul": Efficiency(compute=0.58, memory=0.88),  # this and the next: medians of measured devices
    "inference_matmul": Efficiency(compute=0.61, memory=0.84),
    "convolution": Efficiency(compute=0.60, memory=0.70),
    "attention": Efficiency(compute=0.50, memory=0.70),
    "normalization": Efficiency(compute=0.50, memory=0.60),
    "reduction": Efficiency(compute=0.50, memory=0.60),
    "pooling": Efficiency(compute=0.50, memory=0.60),
    "elementwise": Efficiency(compute=0.50, memory=0.80),
    "copy": Efficiency(compute=0.50, memory=0.80),
    "embedding": Efficiency(compute=0.50, memory=0.30),
    "other": Efficiency(compute=0.50, memory=0.50),
}


MAX_SECONDS = 1e12  # per operation: more is a mistake, and sums of times must stay exact enough for a simulation to end


@dataclass(frozen=True, eq=False)
class CostTable:
    """Seconds per (operation, device kind).

    Attributes:
        kinds: K device kinds, the columns; `Cluster.kind_names` of the table's cluster.
        op_s: [n, K] seconds; 0 for sources.
        measured: [n, K] True where the figure was measured rather than estimated.
    """

    kinds: tuple[str, ...]
    op_s: NDArray[np.float64]
    measured: NDArray[np.bool_]

    def __post_init__(self) -> None:
        freeze(self, "op_s", "measured")

    def check(self, graph: Graph) -> None:
        """Raise PlacekitError, naming the operation and the value, unless these can be costs of `graph`."""
        shape = (graph.n, len(self.kinds))
        if self.op_s.shape != shape:
            raise PlacekitError(
                f"the costs of {graph.name!r} have op_s of shape {self.op_s.shape}",
                f"it must be {shape}: operations, device kinds ({', '.join(self.kinds)})",
            )
        allowed = np.where(graph.kernel, MAX_SECONDS, 0.0)[:, None]
        bad = np.argwhere(~((self.op_s >= 0) & (self.op_s <= allowed)))  # true for NaN, too
        if len(bad):
            v, k = bad[0]
            rule = f"it must be 0..{MAX_SECONDS:g}" if graph.kernel[v] else "sources take no time: it must be 0"
            raise PlacekitError(
                f"the cost of operation {graph.op_name[v]!r} of {graph.name!r} is {self.op_s[v, k]} s"
                f" on {self.kinds[k]!r}",
                rule,
            )

    def on(self, cluster: Cluster) -> NDArray[np.float64]:
        """[n, D] seconds of each operation on each device of `cluster`. Raises PlacekitError for a missing kind."""
        missing = sorted(set(cluster.kind_names) - set(self.kinds))
        if missing:
            raise PlacekitError(
                f"the program has no costs for device kind {missing[0]!r}",
                f"it has costs for: {', '.join(self.kinds)}; leave out cluster= if the program brings its machine, choose a"
                " cluster of these kinds, or remove `seconds` from the file",
            )
        return np.ascontiguousarray(self.op_s[:, [self.kinds.index(k) for k in cluster.device_kind]])


Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]


class KindCosts(FileModel):
    """Measured seconds on one device kind, by operation name or by signature (type, shapes and dtype)."""

    operations: dict[str, Seconds] = Field(default={})
    signatures: dict[str, Seconds] = Field(default={})


class CostFile(FileModel):
    """A measured cost file: `{"format": "placekit-costs", "version": 1, "kinds": {"p100": {"signatures": {...}}}}`."""

    format: Literal["placekit-costs"] = "placekit-costs"
    version: Literal[1] = 1
    description: str = ""
    kinds: dict[str, KindCosts]


@dataclass(frozen=True, eq=False)
class Calibration:
    """A machine and the seconds that operations take on it, both measured.

    Attributes:
        cluster: the machine: the given one with measured rates, launch overheads and links.
        costs: seconds of operations, by signature where the graph has one, else by name.
        figures: how many (operation or signature, device kind) pairs were measured.
        repeats: number of samples; each figure is their median.
        spread, largest_spread: median and largest relative spread of the figures. The relative spread of a figure is half
            the interquartile range of its samples, divided by their median; NaN if each figure has one sample.
        notes: what could not be measured on the machine, and which values are used instead.
        failures: operations that failed. They have no figures, nor do the operations after them in their program.
        interrupted: whether Ctrl-C ended the calibration; some figures then have fewer samples, or are missing.
        seconds: how long the calibration took.
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


def roofline(graph: Graph, cluster: Cluster) -> CostTable:
    """Costs of `graph` on the kinds of `cluster` by the roofline model (see the module docstring)."""
    kinds = cluster.kind_names
    op_s = np.zeros((graph.n, len(kinds)))
    launches, quantized = launches_of(graph), graph.op_class.is_value("quantized_matmul")
    short = graph.dtype.is_value("float16") | graph.dtype.is_value("bfloat16")
    for k, name in enumerate(kinds):
        kind = cluster.kinds[name]
        peak = np.asarray([_peak(kind.flops_per_s, d) for d in graph.dtype.vocabulary])
        table: dict[str, Efficiency] = dict((*EFFICIENCY.items(), *kind.efficiency.items()))
        rows = [table.get(c, table["other"]) for c in graph.op_class.vocabulary]
        compute, half = (np.asarray([f(r) for r in rows]) for f in (_compute, _compute_16bit))
        memory, code = np.asarray([r.memory for r in rows]), graph.op_class.codes
        if graph.n:
            # expanded to 16 bits; without tensor cores to 8 bits, if the kind has such a rate
            expanded = max(kind.flops_per_s.get(d, 0.0) for d in ("float32", "float16", "int8"))
            rate = np.where(quantized, expanded, peak[graph.dtype.codes])
            arithmetic = graph.flops / (rate * np.where(short, half[code], compute[code]))
            traffic = graph.bytes_accessed / (kind.memory_bytes_per_s * memory[code])
            seconds = launches * kind.launch_overhead_s + np.maximum(arithmetic, traffic)
            op_s[:, k] = np.where(graph.kernel, seconds, 0.0)
    return CostTable(kinds, op_s, np.zeros(op_s.shape, np.bool_))


def _peak(rates: dict[str, float], dtype: str) -> float:
    """The rate of a dtype; numbers of 16 bits are computed in float32 where that is faster (GPUs before tensor cores)."""
    rate = rates.get(dtype, rates["float32"])
    return max(rate, rates["float32"]) if dtype in ("float16", "bfloat16") else rate


def _compute(row: Efficiency) -> float:
    return row.compute


def _compute_16bit(row: Efficiency) -> float:
    return row.compute if row.compute_16bit is None else row.compute_16bit


def launches_of(graph: Graph) -> NDArray[np.float64]:
    """[n] launches of each operation: the column `launches`, else 1. Raises GraphError unless all are finite and >= 0."""
    column = graph.columns.get("launches")
    if column is None:
        return np.ones(graph.n)
    if isinstance(column, Labels) or not (np.isfinite(column) & (column >= 0)).all():
        raise GraphError(f"column 'launches' of {graph.name!r} holds no launch counts", "give finite numbers >= 0")
    return np.asarray(column, np.float64)


def with_measured(costs: CostTable, graph: Graph, path: str | Path) -> CostTable:
    """`costs` with the figures of a measured cost file in place of the estimates. Raises PlacekitError."""
    path = Path(path)
    hint = "it is JSON; its form is in docs/machine-model.md"
    file = read_json(path, CostFile, error=PlacekitError, what="cost file", hint=hint)
    found = with_figures(costs, graph, file)
    if not found.measured.any():
        raise PlacekitError(
            f"cost file {path} has no figure for any operation of {graph.name!r} on {', '.join(costs.kinds)}",
            f"it has figures for: {', '.join(file.kinds) or 'none'}",
        )
    return found


def with_figures(costs: CostTable, graph: Graph, file: CostFile) -> CostTable:
    """`costs` with the figures of `file`."""
    op_s, measured = costs.op_s.copy(), costs.measured.copy()
    signatures = signatures_of(graph)
    for k, name in enumerate(costs.kinds):
        known = file.kinds.get(name)
        if known is None:
            continue
        for v in np.flatnonzero(graph.kernel):
            seconds = known.operations.get(graph.op_name[v], known.signatures.get(signatures[v]))
            if seconds is not None:
                op_s[v, k], measured[v, k] = seconds, True
    return CostTable(costs.kinds, op_s, measured)


def signatures_of(graph: Graph) -> list[str]:
    """[n] type, shapes and dtype of each operation, the key of its measured cost; '' where the graph has none."""
    signature = graph.columns.get("signature")
    return signature.tolist() if isinstance(signature, Labels) else [""] * graph.n
