"""Finds the meta-operations of a graph, in the order in which `enumerative` places them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from placekit_core import Graph, GraphBuilder, GraphError, Labels, NotApplicable

Step = NDArray[np.int64]
"""Operations that are assigned together: the shard operations or the reduce operations of a meta-operation."""


def from_columns(graph: Graph) -> list[Step]:
    """The shard operations and then the reduce operations of each meta-operation, in topological order, without empty steps.

    They are read from the columns `meta_op` and `meta_role`. Raises NotApplicable if these are missing, if an operation belongs
    to no meta-operation, or if meta-operations depend on each other.
    """
    meta, role = (graph.columns.get(key) for key in ("meta_op", "meta_role"))
    if not (isinstance(meta, Labels) and isinstance(role, Labels)):
        raise NotApplicable(
            f"policy 'enumerative' needs meta-operations, and graph {graph.name!r} has no columns meta_op and meta_role",
            "importer=einsum writes them; policy.meta_operations=recovered uses runs of equal operations instead, which works for"
            " the published graphs of importer=doppler",
        )
    reduce = role.is_value("reduce")
    lost = np.flatnonzero(graph.kernel & (meta.is_value("") | ~(reduce | role.is_value("shard"))))
    if len(lost):
        name, given = graph.op_name[lost[0]], (meta[lost[0]], role[lost[0]])
        raise NotApplicable(
            f"operation {name!r} of {graph.name!r} has meta_op {given[0]!r} and meta_role {given[1]!r}",
            "every operation but the inputs is a `shard` or `reduce` of a meta-operation with a name",
        )
    steps = []
    for members in _in_order(graph, meta.codes, [f"meta-operation {name}" for name in meta.vocabulary]):
        steps += [members[~reduce[members]], members[reduce[members]]]
    return [s for s in steps if len(s)]


def recovered(graph: Graph) -> list[Step]:
    """Runs of consecutive kernels with the same operator, number of FLOPs and depth, in topological order.

    In the graphs that Doppler's authors published, a run is the shard or the reduce operations of one meta-operation of the
    paper: the file lists all blocks of an expression, then its formations (sums of blocks).
    """
    kernels = np.flatnonzero(graph.kernel)
    properties = np.stack([graph.op_type.codes, graph.flops, graph.depth])[:, kernels]
    starts = np.any(np.diff(properties, axis=1) != 0, axis=0)
    run = np.full(graph.n, -1)
    run[kernels] = np.concatenate([[0], np.cumsum(starts)])[: len(kernels)]
    return _in_order(graph, run, [f"run {i}" for i in range(run.max(initial=-1) + 1)])


def _in_order(graph: Graph, unit: NDArray[np.integer], names: list[str]) -> list[Step]:
    """The kernels of each unit (`unit` [n] has its number), in topological order of the units; ties in the order of the graph."""
    kernels = np.flatnonzero(graph.kernel)
    found, first = np.unique(unit[kernels], return_index=True)
    found = found[np.argsort(first)]
    number = np.full(len(names), -1)
    number[found] = np.arange(len(found))
    builder = GraphBuilder(f"{graph.name}/meta-operations")
    output = [builder.add(names[u], outputs=[0])[0] for u in found.tolist()]
    u, v = (number[unit[ends[graph.kernel[graph.op_edges[0]]]]] for ends in graph.op_edges)
    for a, b in np.unique(np.stack([u, v])[:, u != v], axis=1).T.tolist():
        builder.operations[b].inputs.append(output[a])
    try:
        order = builder.build().topological_order
    except GraphError as e:
        raise NotApplicable(e.message, e.hint) from None
    by_unit = kernels[np.argsort(number[unit[kernels]], kind="stable")]
    ends = np.cumsum(np.bincount(number[unit[kernels]], minlength=len(found)))
    members = [by_unit[a:b] for a, b in pairwise([0, *ends.tolist()])]
    return [members[i] for i in order.tolist()]
