"""The repeated layers of a network, for grouper `auto`: whether it has them, and which work beside them stays free."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from glob import escape

import numpy as np
from numpy.typing import NDArray

from placekit_core import PHASES, Graph, Grouping
from placekit_grouping import AutoOptions, ModuleOptions
from placekit_grouping.blocks import block_tags
from placekit_grouping.contraction import nominal_s

FORWARD, BACKWARD, UPDATE = (PHASES.index(phase) for phase in ("forward", "backward", "update"))
SHARE = 0.5  # of the forward work, which the layers do
ALIKE = 2.0  # the work of an alike layer is at most this many times the list's median, and at least its inverse


@dataclass(frozen=True)
class Layers:
    """The layers of a network.

    Attributes:
        lists: module paths whose numbered children are layers: `model.layers`.
        count: number of layers in all lists.
        share: their share of the forward work, in seconds on a nominal device.
        width: forward work over the longest path through it: how many kernels run side by side at best, on average.
    """

    lists: tuple[str, ...]
    count: int
    share: float
    width: float

    def has(self, name: str) -> bool:
        """Whether this is the name of a layer's group; `(2)` and the like tell the parts of a layer apart."""
        parent, _, number = name.partition(" ")[0].rpartition(".")
        return parent in self.lists and number.isdecimal()

    @property
    def patterns(self) -> tuple[str, ...]:
        """The layers as patterns of `ModuleOptions.blocks`."""
        return tuple(f"{escape(path)}.*" for path in self.lists)


def find_layers(graph: Graph, options: AutoOptions) -> Layers | str:
    """The layers of `graph`, or why none is placed whole: the end of a sentence, empty for small graphs."""
    forward = graph.kernel & (graph.phase == FORWARD)
    if int(forward.sum()) < options.min_kernels:
        return ""
    seconds = nominal_s(graph)
    work: NDArray[np.float64] = np.bincount(
        graph.module.codes, np.where(forward, seconds, 0.0), minlength=len(graph.module.vocabulary)
    ).astype(np.float64)
    lists = _lists(graph.module.vocabulary, work, options.min_layers)
    share = sum(sum(layers.values()) for layers in lists.values()) / max(float(work.sum()), 1e-300)
    if share < SHARE:
        return f"no lists of at least {options.min_layers} alike layers do half of the forward work"
    found = Layers(tuple(lists), sum(map(len, lists.values())), share, _width(graph, seconds, forward))
    tags = block_tags(graph, ModuleOptions.model_validate({"blocks": found.patterns}))
    if any("@" in tags[v] and _inside(graph.module[v], found.lists) for v in np.flatnonzero(forward).tolist()):
        return "its layers are called more than once"
    if found.width > options.max_width:
        return f"its forward kernels can run {found.width:.1f} side by side"
    return found


def _lists(paths: Sequence[str], work: NDArray[np.float64], least: int) -> dict[str, dict[str, float]]:
    """The outermost lists of modules that have at least `least` alike children: their layers, each with its work."""
    every: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for path, seconds in zip(paths, work.tolist(), strict=True):
        parts = path.split(".")
        for i in range(1, len(parts)) if seconds else ():
            if parts[i].isdecimal():
                layers, layer = every[".".join(parts[:i])], ".".join(parts[: i + 1])
                layers[layer] = layers.get(layer, 0.0) + seconds
    found: dict[str, dict[str, float]] = {}
    for path in sorted(every, key=lambda path: path.count(".")):
        values = np.asarray(list(every[path].values()))
        middle = float(np.median(values))
        alike = int(((values <= ALIKE * middle) & (values >= middle / ALIKE)).sum())
        if alike >= least and not _inside(path, found):
            found[path] = every[path]
    return {path: found[path] for path in every if path in found}


def _inside(path: str, lists: Sequence[str] | dict[str, dict[str, float]]) -> bool:
    """Whether a module is below one of these."""
    return any(path.startswith(f"{outer}.") for outer in lists)


def _width(graph: Graph, seconds: NDArray[np.float64], forward: NDArray[np.bool_]) -> float:
    """Work of the forward kernels over that of the longest path through them."""
    position = _position(graph)
    u, v = graph.op_edges
    keep = np.flatnonzero(forward[u] & forward[v])
    keep = keep[np.argsort(position[u[keep]], kind="stable")]  # all edges into an operation come before those out of it
    own, start = seconds.tolist(), [0.0] * graph.n
    for a, b in zip(u[keep].tolist(), v[keep].tolist(), strict=True):
        start[b] = max(start[b], start[a] + own[a])
    end = np.asarray(start) + seconds
    return float(seconds[forward].sum() / max(float(end[forward].max(initial=0.0)), 1e-300))


def beside(graph: Graph, grouping: Grouping) -> NDArray[np.bool_]:
    """[n] the work of a training step beside its path through the groups and back.

    These are the backward kernels that lead to updates of their own group only (gradients of weights); and parameters with their
    state and updates. What shares a device with other work is not among them. Without backward kernels, nothing is.
    """
    backward, update = (graph.kernel & (graph.phase == phase) for phase in (BACKWARD, UPDATE))
    if not backward.any():
        return np.zeros(graph.n, np.bool_)
    position, group = _position(graph), grouping.group_of
    u, v = graph.op_edges
    keep = backward[u] & ~update[v]
    u, v = u[keep], v[keep]
    late = np.argsort(-position[v], kind="stable")  # all readers of an operation come before what it reads
    leaves = np.zeros(graph.n, np.bool_).tolist()
    elsewhere = (group[u] != group[v])[late].tolist()
    for a, b, out in zip(u[late].tolist(), v[late].tolist(), elsewhere, strict=True):
        leaves[a] = leaves[a] or out or leaves[b]
    side = (backward & ~np.asarray(leaves, np.bool_)) | update
    tied = graph.colocate >= 0
    busy = np.unique(graph.colocate[tied & graph.kernel & ~side])
    source = tied & ~graph.kernel
    return np.asarray((side | source) & ~(tied & np.isin(graph.colocate, busy)))


def _position(graph: Graph) -> NDArray[np.int64]:
    """[n] place of each operation in the topological order."""
    position = np.empty(graph.n, np.int64)
    position[graph.topological_order] = np.arange(graph.n)
    return position
