"""The networks' view of a program: static features of operations (appendix D.1), edges, and critical paths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling import b_level, op_cost, t_level, transfer_cost

from placekit_core import Problem


@dataclass(frozen=True, eq=False)
class Features:
    """A program of k kernels and e edges, for networks. Operations are numbered 0..k-1 in the order of the graph.

    Attributes:
        op: [k] number of each kernel in the graph.
        static: [k, 5] seconds of computation (mean over devices), of transfers received and sent, on the longest path from
            an entry and to an exit; each column has mean 0 and standard deviation 1.
        edge: [2, 2 e] from and to, each edge in both directions.
        edge_s: [2 e] seconds of the transfer over their mean.
        to_entry, to_exit: paths, as (row, member): for each operation those on its longest path to an entry (its t-level)
            and to an exit (its b-level), itself included; ties by the lower number.
        b_level: [n] seconds, of all operations of the graph.
        kind: [k] number of each distinct row of static features.
    """

    op: NDArray[np.int64]
    static: NDArray[np.float32]
    edge: NDArray[np.int64]
    edge_s: NDArray[np.float32]
    to_entry: tuple[NDArray[np.int64], NDArray[np.int64]]
    to_exit: tuple[NDArray[np.int64], NDArray[np.int64]]
    b_level: NDArray[np.float64]
    kind: NDArray[np.int64]

    @classmethod
    def of(cls, problem: Problem) -> Features:
        """The features of a problem."""
        graph = problem.graph
        op = np.flatnonzero(graph.kernel)
        number = np.full(graph.n, -1)
        number[op] = np.arange(len(op))
        reader, tensor = graph.edge_op, graph.input_tensor
        source = graph.tensor_producer[tensor]
        inside = graph.kernel[source] & graph.kernel[reader]
        u, v, sent = source[inside], reader[inside], transfer_cost(problem)[tensor[inside]]
        own, b, t = op_cost(problem), b_level(problem), t_level(problem)
        columns = [
            own,
            np.bincount(v, sent, minlength=graph.n),
            np.bincount(u, sent, minlength=graph.n),
            t,
            b,
        ]
        static = np.stack(columns, axis=1)[op]
        pair = np.stack([number[u], number[v]]).astype(np.int64)
        return cls(
            op=op.astype(np.int64),
            static=standardised(static).astype(np.float32),
            edge=np.concatenate([pair, pair[::-1]], axis=1),
            edge_s=np.tile(sent / max(float(sent.mean()) if len(sent) else 1.0, 1e-300), 2).astype(np.float32),
            to_entry=_paths(number[v], number[u], t[u] + own[u] + sent, t[op]),
            to_exit=_paths(number[u], number[v], sent + b[v], b[op]),
            b_level=b,
            kind=_kinds(standardised(static)),
        )


def standardised(values: NDArray[np.float64], least: float = 1e-9) -> NDArray[np.float64]:
    """Columns with mean 0 and standard deviation 1; 0 where that is at most `least` of the largest value."""
    if not len(values):
        return values
    centred = values - values.mean(axis=0)
    deviation = centred.std(axis=0)
    scale = np.abs(values).max(axis=0)
    constant = deviation <= least * scale
    return np.where(constant, 0.0, centred / np.where(constant, 1.0, deviation))


def _kinds(static: NDArray[np.float64]) -> NDArray[np.int64]:
    """Numbers of the distinct rows; sums in another order differ in the last bits."""
    return np.unique(static.round(6), axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _paths(
    of: NDArray[np.int64], by: NDArray[np.int64], length: NDArray[np.float64], level: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and members of the longest paths: operation `by` may follow operation `of` on a path of length `length`."""
    k = len(level)
    following = np.full(k, -1, np.int64)
    for i in np.lexsort((-by, length)):  # the last assignment stays: the longest path, of equal ones the lowest number
        following[of[i]] = by[i]
    rows, members = [np.arange(k)], [np.arange(k)]
    at = following.copy()
    while (going := np.flatnonzero(at >= 0)).size:
        rows.append(going)
        members.append(at[going])
        at[going] = following[at[going]]
    return np.concatenate(rows), np.concatenate(members)
