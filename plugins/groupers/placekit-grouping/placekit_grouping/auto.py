"""Grouper `auto`: layers are placed whole, other operations one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_layers.repeated import find_layers, position

from placekit_core import PHASES, Graph, Grouper, Grouping
from placekit_grouping.groupers import ModuleGrouper

BACKWARD, UPDATE = (PHASES.index(phase) for phase in ("backward", "update"))


class AutoGrouper(Grouper):
    """For networks of repeated layers, each layer is a group; all else, and all of other networks, is placed one by one.

    In a training step, what lies beside the path through the layers and back (`beside`) is left one by one: a device
    that waits for another one's layers may compute gradients of weights and updates meanwhile.
    """

    name = "auto"
    acyclic: ClassVar[bool] = False
    requested: ClassVar[bool] = False

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        """The groups, with a note that says which were chosen and why; `rng` is not used."""
        layers, fine = find_layers(graph), Grouping.colocated(graph)
        if isinstance(layers, str):
            single = f"operations are placed one by one: {layers}. For whole modules use grouper=module"
            return replace(fine, note=layers and single)
        whole = ModuleGrouper(blocks=layers.patterns).group(graph, rng)
        layer = np.asarray([layers.has(whole.name(i)) for i in range(whole.count)], np.bool_)
        side = beside(graph, whole)
        apart = side | ~layer[whole.group_of]
        key = np.where(apart, whole.count + fine.group_of, whole.group_of)
        names = tuple(grouping.name(i) for grouping in (whole, fine) for i in range(grouping.count))
        note = (
            f"layers are placed whole: the {layers.count} layers in {', '.join(layers.lists)} do"
            f" {layers.share:.0%} of the forward work"
        )
        if side.any():
            note += "; gradients of weights and updates are placed one by one"
        note += ". grouper=none splits layers, too, which may be faster and takes longer to search"
        return replace(Grouping.of(key, names).check(graph), note=note)


def beside(graph: Graph, grouping: Grouping) -> NDArray[np.bool_]:
    """[n] the work of a training step beside its path through the groups and back.

    These are the backward kernels that lead to updates of their own group only (gradients of weights); and parameters with their
    state and updates. What shares a device with other work is not among them. Without backward kernels, nothing is.
    """
    backward, update = (graph.kernel & (graph.phase == phase) for phase in (BACKWARD, UPDATE))
    if not backward.any():
        return np.zeros(graph.n, np.bool_)
    place, group = position(graph), grouping.group_of
    u, v = graph.op_edges
    keep = backward[u] & ~update[v]
    u, v = u[keep], v[keep]
    late = np.argsort(-place[v], kind="stable")  # all readers of an operation come before what it reads
    leaves = np.zeros(graph.n, np.bool_).tolist()
    elsewhere = (group[u] != group[v])[late].tolist()
    for a, b, out in zip(u[late].tolist(), v[late].tolist(), elsewhere, strict=True):
        leaves[a] = leaves[a] or out or leaves[b]
    side = (backward & ~np.asarray(leaves, np.bool_)) | update
    tied = graph.colocate >= 0
    busy = np.unique(graph.colocate[tied & graph.kernel & ~side])
    source = tied & ~graph.kernel
    return np.asarray((side | source) & ~(tied & np.isin(graph.colocate, busy)))
