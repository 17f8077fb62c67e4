"""Grouper `auto`: one group per layer of a network; all other operations are placed one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_layers.repeated import find_layers
from placekit_layers.units import position

from placekit_core import PHASES, Graph, Grouper, Grouping
from placekit_grouping.groupers import ModuleGrouper

BACKWARD, UPDATE = (PHASES.index(phase) for phase in ("backward", "update"))


class AutoGrouper(Grouper):
    """One group per layer, for networks of repeated layers. All other operations are placed one by one.

    These include a training step's gradients of weights and updates (`off_path`): a device can compute them while it waits for
    another device's layers.
    """

    name = "auto"
    acyclic: ClassVar[bool] = False
    requested: ClassVar[bool] = False

    def group(self, graph: Graph, rng: Generator) -> Grouping:
        """The groups, with a note that explains the choice; `rng` is not used."""
        layers, fine = find_layers(graph), Grouping.colocated(graph)
        if isinstance(layers, str):
            single = f"operations are placed one by one: {layers}. For whole modules use grouper=module"
            return replace(fine, note=layers and single)
        whole = ModuleGrouper(blocks=layers.patterns).group(graph, rng)
        layer = np.asarray([layers.has(whole.name(i)) for i in range(whole.count)], np.bool_)
        side = off_path(graph, whole)
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


def off_path(graph: Graph, grouping: Grouping) -> NDArray[np.bool_]:
    """[n] whether an operation is not on the path of a training step through the groups and back.

    These are backward kernels whose results only updates of their own group need (gradients of weights), and parameters with
    their state and updates; not operations that must share a device with others. Without backward kernels, there are none.
    """
    backward, update = (graph.kernel & (graph.phase == phase) for phase in (BACKWARD, UPDATE))
    if not backward.any():
        return np.zeros(graph.n, np.bool_)
    place, group = position(graph), grouping.group_of
    u, v = graph.op_edges
    keep = backward[u] & ~update[v]
    u, v = u[keep], v[keep]
    late = np.argsort(-place[v], kind="stable")  # readers come before what they read
    leaves = np.zeros(graph.n, np.bool_).tolist()
    elsewhere = (group[u] != group[v])[late].tolist()
    for a, b, out in zip(u[late].tolist(), v[late].tolist(), elsewhere, strict=True):
        leaves[a] = leaves[a] or out or leaves[b]
    side = (backward & ~np.asarray(leaves, np.bool_)) | update
    tied = graph.colocate >= 0
    busy = np.unique(graph.colocate[tied & graph.kernel & ~side])
    source = tied & ~graph.kernel
    return np.asarray((side | source) & ~(tied & np.isin(graph.colocate, busy)))
