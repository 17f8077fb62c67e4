"""Grouper `my_method`: pieces of a topological order."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from placekit_core import Graph, Grouper, Grouping, strongly_connected
from placekit_my_method import MyMethodOptions


class MyMethod(Grouper):
    """Cuts a topological order into at most `max_groups` pieces with equal numbers of units.

    A unit is a set of co-located operations. Sets that depend on each other are one unit, together with the operations
    between them. Data flows only from earlier to later pieces, so groups have no cycle. Additional cuts separate operations
    that run only on CPUs from operations that run only on GPUs.
    """

    name = "my_method"
    options_class = MyMethodOptions
    acyclic = True

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        """The groups; `rng` is not used."""
        position = _positions(graph)
        size = int(position.max(initial=-1)) + 1
        types = _types(graph, position, size)
        pieces = min(self.options.max_groups, size)
        group, shared = np.zeros(size, np.int64), set[str]()
        for i in range(size):
            cut = i == 0 or i * pieces // size != (i - 1) * pieces // size or not shared & types[i]
            shared = types[i] if cut else shared & types[i]
            group[i] = group[i - 1] + cut
        return Grouping.of(group[position])


def _positions(graph: Graph) -> NDArray[np.int64]:
    """[n] position of each operation's unit in a topological order, 0, 1, ... without gaps.

    A source that is alone in its unit joins its first reader: reads of sources impose no order.
    """
    finest = Grouping.colocated(graph)
    unit, count = finest.group_of, finest.count
    u, v = graph.op_edges
    flow = graph.kernel[u]
    edges = np.unique(unit[u[flow]].astype(np.int64) * count + unit[v[flow]])
    position = strongly_connected(count, edges // max(count, 1), edges % max(count, 1))  # [units]
    first_reader = np.full(count, graph.n)
    np.minimum.at(first_reader, unit[u[~flow]], position[unit[v[~flow]]])
    alone = (np.bincount(unit, graph.kernel, minlength=count) == 0) & (first_reader < graph.n)
    return np.unique(np.where(alone, first_reader, position)[unit], return_inverse=True)[1]


def _types(graph: Graph, position: NDArray[np.int64], size: int) -> list[set[str]]:
    """For each position, the device types that may run all its operations."""
    of = [set(text.split("|")) for text in graph.allowed.vocabulary]
    every = set().union(*of)
    types = [every] * size
    for i, code in zip(position.tolist(), graph.allowed.codes.tolist(), strict=True):
        if graph.allowed.vocabulary[code]:  # an empty text means any type
            types[i] = types[i] & of[code]
    return types
