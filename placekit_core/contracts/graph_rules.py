"""Checks that a graph is valid."""

from __future__ import annotations

import numpy as np

from placekit_core.contracts.errors import GraphError
from placekit_core.contracts.graph import PHASES, Graph, Labels, distinct


def validate_graph(g: Graph) -> Graph:
    """`g` itself. Raises GraphError, naming the operation, unless it keeps every rule of the docstring of Graph."""
    _check_columns(g)
    _check_names(g)
    _check_values(g)
    _check_memory(g)
    _ = g.topological_order
    return g


def _check_columns(g: Graph) -> None:
    """Raise GraphError unless every column has its length, and points to rows that exist."""
    for key, column in g.all_columns().items():
        rows = (
            g.t if key in ("tensor_producer", "tensor_bytes", "tensor_storage") else
            g.n + 1 if key == "input_ptr" else g.t + 1 if key == "shape_ptr" else
            len(column) if key in ("input_tensor", "shape_dim") else g.n
        )  # fmt: skip
        if len(column) != rows:
            raise GraphError(f"column {key!r} of graph {g.name!r} has {len(column)} rows, not {rows}")
        if (
            isinstance(column, Labels)
            and len(column)
            and not 0 <= column.codes.min() <= column.codes.max() < len(column.vocabulary)
        ):
            raise GraphError(f"column {key!r} of graph {g.name!r} has codes outside its vocabulary")
    for ptr, rows, what in ((g.input_ptr, g.e, "input_ptr"), (g.shape_ptr, len(g.shape_dim), "shape_ptr")):
        if len(ptr) == 0 or ptr[0] != 0 or ptr[-1] != rows or np.any(np.diff(ptr) < 0):
            raise GraphError(f"{what} of graph {g.name!r} is not an ascending row pointer that ends at {rows}")
    for key, top in (("tensor_producer", g.n), ("tensor_storage", g.t), ("input_tensor", g.t)):
        column = getattr(g, key)
        if len(column) and not 0 <= column.min() <= column.max() < top:
            raise GraphError(f"{key} of graph {g.name!r} points outside 0..{top - 1}")
    if np.any(np.diff(g.tensor_producer) < 0):
        raise GraphError(f"tensors of graph {g.name!r} are not sorted by producer")


def _check_names(g: Graph) -> None:
    """Raise GraphError unless the operations have distinct names that a file can hold."""
    if len(set(g.op_name)) != g.n:
        names, counts = np.unique(np.asarray(g.op_name), return_counts=True)
        raise GraphError(f"operation name {str(names[counts > 1][0])!r} of graph {g.name!r} occurs twice")
    broken = next((name for name in g.op_name if "\n" in name), None)
    if broken is not None:
        raise GraphError(
            f"operation name {broken!r} of graph {g.name!r} has a line break", "graph files separate names by it"
        )


def _check_values(g: Graph) -> None:
    """Raise GraphError unless numbers, phases and inputs are possible ones."""
    for key in ("flops", "bytes_accessed", "persistent_bytes", "tensor_bytes"):
        column = getattr(g, key)
        bad = np.flatnonzero(~(np.isfinite(column) & (column >= 0)))
        if len(bad):
            op = g.tensor_producer[bad[0]] if key == "tensor_bytes" else bad[0]
            raise GraphError(f"{key} of operation {g.op_name[op]!r} is {column[bad[0]]}", "it must be finite and >= 0")
    if len(g.phase) and g.phase.max() >= len(PHASES):
        raise GraphError(f"phase of graph {g.name!r} is outside {PHASES}")
    pair = g.edge_op.astype(np.int64) * max(g.t, 1) + g.input_tensor
    if len(distinct(pair)) != len(pair):
        raise GraphError(f"an operation of graph {g.name!r} lists one tensor twice among its inputs")
    reading = np.flatnonzero(~g.kernel & (np.diff(g.input_ptr) > 0))
    if len(reading):
        raise GraphError(f"source {g.op_name[reading[0]]!r} reads a tensor", "only kernels have inputs")


def _check_memory(g: Graph) -> None:
    """Raise GraphError unless tensors share memory only where they may."""
    owner = g.tensor_producer[g.tensor_storage]
    other = np.flatnonzero(owner != g.tensor_producer)
    home, own = g.colocate[owner[other]], g.colocate[g.tensor_producer[other]]
    kernel = other[g.kernel[owner[other]]]
    # a kernel writes into another one's memory if it reads what is there
    reads = np.isin(
        g.tensor_producer[kernel].astype(np.int64) * max(g.t, 1) + g.tensor_storage[kernel],
        g.edge_op.astype(np.int64) * max(g.t, 1) + g.tensor_storage[g.input_tensor],
    )
    for t in [*other[(home < 0) | (home != own)], *kernel[~reads]]:
        raise GraphError(
            f"an output of {g.op_name[g.tensor_producer[t]]!r} shares the memory of {g.op_name[owner[t]]!r}",
            "an output may share the memory of another output of the same operation, of a co-located source, or of a co-located"
            " kernel whose output the operation reads",
        )
    if np.any(g.tensor_storage[g.tensor_storage] != g.tensor_storage):
        raise GraphError(f"tensor_storage of graph {g.name!r} points to a tensor that owns no memory")
