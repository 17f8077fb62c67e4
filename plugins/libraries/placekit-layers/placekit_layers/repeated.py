"""Recognizes the repeated layers of a network, such as `model.layers.0`, `model.layers.1`, ..."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from glob import escape

import numpy as np
from numpy.typing import NDArray

from placekit_core import Graph
from placekit_layers.module_calls import block_tags
from placekit_layers.units import FORWARD, position

FLOPS_PER_S, BYTES_PER_S, LAUNCH_S = 1e13, 5e11, 5e-6  # a nominal device: only ratios between operations matter
MIN_LAYERS = 6  # fewest similar layers that count as a list of layers
MIN_KERNELS = 100  # a smaller network is placed operation by operation
MAX_WIDTH = 2.0  # if more kernels could run in parallel on average, placing whole layers would leave devices idle
SHARE = 0.5  # smallest share of the forward work that the layers do
SIMILAR = 2.0  # layers are similar if their work is between 1/2 and 2 times the median of their list


def nominal_s(graph: Graph) -> NDArray[np.float64]:
    """[n] seconds of each operation on a nominal device; 0 for sources."""
    busy = np.maximum(graph.flops / FLOPS_PER_S, graph.bytes_accessed / BYTES_PER_S)
    return np.asarray(np.where(graph.kernel, LAUNCH_S + busy, 0.0))


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
        """Whether a group of this name is a layer or a part of one: `h.0`, `h.0 (2)`."""
        parent, _, number = name.partition(" ")[0].rpartition(".")
        return parent in self.lists and number.isdecimal()

    @property
    def patterns(self) -> tuple[str, ...]:
        """The layers as patterns for `block_tags`."""
        return tuple(f"{escape(path)}.*" for path in self.lists)


def find_layers(graph: Graph) -> Layers | str:
    """The layers of `graph`, or the reason why operations are placed one by one instead (empty for small graphs)."""
    forward = graph.kernel & (graph.phase == FORWARD)
    if int(forward.sum()) < MIN_KERNELS:
        return ""
    seconds = nominal_s(graph)
    work: NDArray[np.float64] = np.bincount(
        graph.module.codes, np.where(forward, seconds, 0.0), minlength=len(graph.module.vocabulary)
    ).astype(np.float64)
    lists = _lists(graph.module.vocabulary, work)
    share = sum(sum(layers.values()) for layers in lists.values()) / max(float(work.sum()), 1e-300)
    if share < SHARE:
        return "this network has no long run of similar layers"
    found = Layers(tuple(lists), sum(map(len, lists.values())), share, _width(graph, seconds, forward))
    tags = block_tags(graph, found.patterns)
    if any("@" in tags[v] and _inside(graph.module[v], found.lists) for v in np.flatnonzero(forward).tolist()):
        return "its layers are called more than once"
    if found.width > MAX_WIDTH:
        return f"on average {found.width:.1f} of its kernels could run at the same time"
    return found


def _lists(paths: Sequence[str], work: NDArray[np.float64]) -> dict[str, dict[str, float]]:
    """The outermost lists of modules that have at least `MIN_LAYERS` similar children: each layer with its work."""
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
        similar = int(((values <= SIMILAR * middle) & (values >= middle / SIMILAR)).sum())
        if similar >= MIN_LAYERS and not _inside(path, found):
            found[path] = every[path]
    return {path: found[path] for path in every if path in found}


def _inside(path: str, lists: Sequence[str] | dict[str, dict[str, float]]) -> bool:
    """Whether a module is inside one of the others."""
    return any(path.startswith(f"{outer}.") for outer in lists)


def _width(graph: Graph, seconds: NDArray[np.float64], forward: NDArray[np.bool_]) -> float:
    """Total work of the forward kernels, divided by that of the longest path through them."""
    place = position(graph)
    u, v = graph.op_edges
    keep = np.flatnonzero(forward[u] & forward[v])
    keep = keep[np.argsort(place[u[keep]], kind="stable")]  # all edges into an operation come before those out of it
    own, start = seconds.tolist(), [0.0] * graph.n
    for a, b in zip(u[keep].tolist(), v[keep].tolist(), strict=True):
        start[b] = max(start[b], start[a] + own[a])
    end = np.asarray(start) + seconds
    return float(seconds[forward].sum() / max(float(end[forward].max(initial=0.0)), 1e-300))
