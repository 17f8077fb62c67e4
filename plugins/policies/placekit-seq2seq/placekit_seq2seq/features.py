"""The inputs of the networks for a problem: types, output sizes and neighbours of its groups, as arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from placekit_learn.op_types import type_shares

from placekit_core import Problem

_LOG_BYTES = 30.0  # log2 of a GiB: scaled sizes of tensors are about 0 to 1


@dataclass(frozen=True, eq=False)
class Features:
    """Features of the g groups of a problem (for a policy that groups operations by itself, each operation is a group).

    Rows and edges follow the order of the sequence, not the groups' numbers.

    Attributes:
        order: [g] group at each place of the sequence.
        type_bucket: [V] embedding of each type in the graph's vocabulary.
        type_share: [g, V] share of each type in the group's operations; the rows add up to 1.
        output_bytes: [g, outputs] bytes of the largest output tensors that others read, in falling order, then zeros.
        source, target: [e] places of the two groups of each edge of the quotient graph.
        allowed: [g, D] whether the device may run the group.
    """

    order: NDArray[np.int32]
    type_bucket: NDArray[np.int64]
    type_share: NDArray[np.float32]
    output_bytes: NDArray[np.float64]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    allowed: NDArray[np.bool_]

    @classmethod
    def of(cls, problem: Problem, outputs: int, buckets: int) -> Features:
        """Features of `problem` in topological order, with `outputs` sizes, types hashed into `buckets`."""
        graph, g = problem.grouped, problem.g
        order = graph.topological_order
        place = np.empty(g, np.int64)
        place[order] = np.arange(g)
        at = place[problem.grouping.group_of]
        return cls(
            order,
            *type_shares(problem, at, buckets),
            _output_bytes(problem, at, outputs),
            place[graph.tensor_producer[graph.input_tensor]],
            place[graph.edge_op],
            problem.allowed[order],
        )

    def in_order(self, order: NDArray[np.int32]) -> Features:
        """The same with the groups in another order [g]."""
        row = np.argsort(self.order)[order]
        place = np.argsort(row)
        return replace(
            self, order=order, type_share=self.type_share[row], output_bytes=self.output_bytes[row], allowed=self.allowed[row],
            source=place[self.source], target=place[self.target],
        )  # fmt: skip

    @property
    def g(self) -> int:
        """Length of the sequence."""
        return len(self.order)

    def adjacency(self, width: int) -> NDArray[np.float32]:
        """[g, 2 * width] ones in the columns of each group's direct inputs, and of its direct outputs plus `width`."""
        near = np.zeros((self.g, 2 * width), np.float32)
        near[self.target, self.source] = 1.0
        near[self.source, width + self.target] = 1.0
        return near


def scaled(output_bytes: NDArray[np.float64]) -> NDArray[np.float32]:
    """Sizes on a logarithmic scale: 0 for none, 1 for a GiB."""
    return (np.log2(1.0 + output_bytes) / _LOG_BYTES).astype(np.float32)


def _output_bytes(problem: Problem, at: NDArray[np.int64], outputs: int) -> NDArray[np.float64]:
    """[g, outputs] bytes of the largest tensors that leave the group at each place."""
    graph = problem.graph
    producer = at[graph.tensor_producer]
    leaves = np.zeros(graph.t, np.bool_)
    leaves[graph.input_tensor[producer[graph.input_tensor] != at[graph.edge_op]]] = True
    tensors = np.flatnonzero(leaves)
    tensors = tensors[np.lexsort((-graph.tensor_bytes[tensors], producer[tensors]))]
    owner = producer[tensors]
    rank = np.arange(len(tensors)) - np.searchsorted(owner, owner)
    kept = rank < outputs
    sizes = np.zeros((problem.g, outputs))
    sizes[owner[kept], rank[kept]] = graph.tensor_bytes[tensors[kept]]
    return sizes
