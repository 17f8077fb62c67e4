"""The types of a problem's operations, hashed into buckets, so that networks recognize them in other graphs."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from placekit_core import Problem


def bucket(name: str, buckets: int) -> int:
    """Index of a type's embedding. It is the same in every process and graph, so that trained embeddings can be reused."""
    return zlib.crc32(name.encode()) % buckets


def type_shares(problem: Problem, at: NDArray[np.int64], buckets: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The bucket [V] of each type of the graph's vocabulary, and the types' shares [g, V] in the operations of each group.

    Args:
        at: [n] row of each operation, of 0..g-1.
        buckets: number of embeddings that the types are hashed to.
    """
    types = problem.graph.op_type
    count = np.zeros((problem.g, len(types.vocabulary)), np.float32)
    np.add.at(count, (at, types.codes), 1.0)
    hashed = np.asarray([bucket(name, buckets) for name in types.vocabulary], np.int64)
    return hashed, count / count.sum(axis=1, keepdims=True)
