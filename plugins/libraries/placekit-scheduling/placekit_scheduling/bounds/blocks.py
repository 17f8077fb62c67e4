"""Blocks of operations that run one after another, for `makespan.chain_bound`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placekit_scheduling.bounds.kinds import Flags, Ints
from placekit_scheduling.bounds.relaxation import Relaxation
from placekit_scheduling.list_scheduling.levels import b_level

WIDEST = 32  # operations beside more kernels of the path are left out: they would join blocks into one


@dataclass(frozen=True)
class Blocks:
    """Operations of consecutive blocks: all of a block end before any of the next one starts.

    A kernel v that is not on the path is *beside* its operations between the last one that v waits for and the first one that
    waits for v. An operation of the path without kernels beside it is a block. All others in a row are a block, together with
    the kernels beside them. So of two blocks in a row, one is a single operation of the path: all operations of the blocks
    before end before it starts, and all of the blocks after start after it ends.

    Attributes:
        op: [o] operations.
        block: [o] the block of each, from 0.
        on_path: [o] whether it is on the longest path, which visits every block.
    """

    op: Ints
    block: Ints
    on_path: Flags

    @classmethod
    def of(cls, relaxation: Relaxation) -> Blocks:
        """The blocks around a longest path by the least seconds."""
        graph = relaxation.problem.graph
        path = _longest_path(relaxation)
        last, first = _neighbours(relaxation, path)
        on_path = np.zeros(graph.n, np.bool_)
        on_path[path] = True
        begin, end = np.where(on_path, last, last + 1), np.where(on_path, last, first - 1)
        op = np.flatnonzero(graph.kernel & (begin <= end) & (end - begin < WIDEST))
        beside = op[~on_path[op]]
        change = np.zeros(len(path) + 1, np.int64)
        np.add.at(change, begin[beside], 1)
        np.add.at(change, end[beside] + 1, -1)
        alone = change.cumsum()[:-1] == 0
        starts = alone | np.concatenate([[True], alone[:-1]])
        return cls(op, (starts.cumsum() - 1)[begin[op]], on_path[op])


def _longest_path(relaxation: Relaxation) -> Ints:
    """The kernels of a longest path by the least seconds, first to last."""
    level = np.where(relaxation.problem.graph.kernel, b_level(relaxation.problem, "min", communication=0.0), -1.0)
    order = np.argsort(level[relaxation.consumer], kind="stable")
    following = np.full(relaxation.n, -1, np.int64)
    following[relaxation.producer[order]] = relaxation.consumer[order]  # the last one written has the highest level
    path = [int(level.argmax())]
    while following[path[-1]] >= 0:
        path.append(int(following[path[-1]]))
    return np.asarray(path, np.int64)


def _neighbours(relaxation: Relaxation, path: Ints) -> tuple[Ints, Ints]:
    """[n] the position of the last operation of the path that each must wait for, and of the first that must wait for it.

    -1 and the length of the path if there is none; for operations of the path, their own position twice.
    """
    position = np.empty(relaxation.n, np.int64)
    position[relaxation.problem.graph.topological_order] = np.arange(relaxation.n)
    last, first = np.full(relaxation.n, -1, np.int64), np.full(relaxation.n, len(path), np.int64)
    last[path] = first[path] = np.arange(len(path))
    by_consumer = np.argsort(position[relaxation.consumer], kind="stable")
    by_producer = np.argsort(-position[relaxation.producer], kind="stable")
    for values, order, here, there, better in (
        (last, by_consumer, relaxation.consumer, relaxation.producer, max),
        (first, by_producer, relaxation.producer, relaxation.consumer, min),
    ):
        found = values.tolist()
        for v, u in zip(here[order].tolist(), there[order].tolist(), strict=True):
            found[v] = better(found[v], found[u])
        values[:] = found
    return last, first
