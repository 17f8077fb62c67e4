"""Prepares a problem for the networks: neighbours, ancestors, longest paths and features of its groups."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from placekit_core import Graph, Problem
from placekit_placeto.arrays import Groups

WORD = 64


def groups_of(problem: Problem, devices: int, sums: Literal["scaled", "plain"]) -> Groups:
    """The arrays of a problem, for a network with room for this many devices, and the option `sums`."""
    graph, g = problem.grouped, problem.g
    source, target, _ = edges(graph)
    sides = (_senders(g, source, target), _senders(g, target, source))
    before = ancestor_bits(graph, source, target)
    allowed = np.zeros((g, devices), np.bool_)
    allowed[:, : problem.cluster.size] = problem.allowed
    pointer = np.stack([pointer for pointer, _ in sides])
    scaled = sums == "scaled"
    return Groups(
        pointer=pointer,
        neighbour=np.stack([senders for _, senders in sides]),
        before=before,
        after=_transposed(before, g),
        share=(1.0 / np.maximum(np.diff(pointer), 1) if scaled else np.ones((2, g))).astype(np.float32),
        pooled_share=1.0 / g if scaled else 1.0,
        static=np.stack([_scaled(mean_seconds(problem)), _scaled(_output_bytes(graph))], axis=1).astype(np.float32),
        allowed=allowed,
    )


def edges(graph: Graph) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """[e] the sender, the receiver and the bytes of each edge between groups."""
    source, target = graph.tensor_producer[graph.input_tensor].astype(np.int64), graph.edge_op.astype(np.int64)
    return source, target, graph.tensor_bytes[graph.input_tensor].astype(np.float64)


def edges_by_target(
    g: int, source: NDArray[np.int64], target: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Edges sorted by target, then by source: where those of each target begin [g + 1], and the edges in this order [e]."""
    order = np.lexsort((source, target))
    return np.searchsorted(target[order], np.arange(g + 1)), order


def ancestor_bits(graph: Graph, source: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.uint64]:
    """[g, words] the ancestors of each group: bit u of row v is set if a path leads from u to v, and u is not v."""
    g = graph.n
    found = np.zeros((g, -(-g // WORD)), np.uint64)
    pointer, senders = _senders(g, source, target)
    for v in graph.topological_order:
        near = senders[pointer[v] : pointer[v + 1]]
        if len(near):
            found[v] = np.bitwise_or.reduce(found[near], axis=0)
            np.bitwise_or.at(found[v], near // WORD, np.uint64(1) << (near % WORD).astype(np.uint64))
    return found


def longest_paths(graph: Graph, time: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[g] the time of the longest path that ends with each group, and [g] of the one that begins with it, without transfers."""
    source, target, _ = edges(graph)
    order, found = graph.topological_order, []
    for a, b, turned in ((source, target, order), (target, source, order[::-1])):
        pointer, senders = _senders(graph.n, a, b)
        way = time.copy()
        for v in turned:
            near = senders[pointer[v] : pointer[v + 1]]
            if len(near):
                way[v] += way[near].max()
        found.append(way)
    return found[0], found[1]


def as_matrix(bits: NDArray[np.uint64], g: int) -> NDArray[np.bool_]:
    """[g, g] the bits, one by one."""
    return np.unpackbits(bits.view(np.uint8), axis=1, count=g, bitorder="little").astype(np.bool_)


def one_device(problem: Problem) -> NDArray[np.int16]:
    """[g] the device where the groups take least time in all; for groups that it may not run, their fastest device."""
    time_s = np.where(problem.allowed, problem.group_s, np.inf)
    fastest = int(np.argmin(problem.group_s.sum(axis=0)))
    return np.where(problem.allowed[:, fastest], fastest, time_s.argmin(axis=1)).astype(np.int16)


def _transposed(bits: NDArray[np.uint64], g: int) -> NDArray[np.uint64]:
    turned = np.packbits(as_matrix(bits, g).T, axis=1, bitorder="little")
    whole = np.zeros((g, bits.shape[1] * 8), np.uint8)
    whole[:, : turned.shape[1]] = turned
    return whole.view(np.uint64)


def _senders(
    g: int, source: NDArray[np.int64], target: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The sources of each target: where those of each begin [g + 1], and the sources [e]."""
    pointer, order = edges_by_target(g, source, target)
    return pointer, source[order]


def mean_seconds(problem: Problem) -> NDArray[np.float64]:
    """[g] run time, the mean over the devices that may run the group."""
    total = np.where(problem.allowed, problem.group_s, 0.0).sum(axis=1)
    return np.asarray(total / np.maximum(problem.allowed.sum(axis=1), 1))


def _output_bytes(graph: Graph) -> NDArray[np.float64]:
    return np.asarray(np.bincount(graph.tensor_producer, graph.tensor_bytes, minlength=graph.n), np.float64)


def _scaled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """log(1 + values / mean), which does not depend on their unit, nor much on the size of the graph."""
    mean = values.mean()
    return np.log1p(values / mean) if mean > 0 else np.zeros_like(values)
