"""Splits and their costs in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from placekit_core import Cluster
from placekit_runtimes.planning.split import Layout, Split


def ranges(numbers: Sequence[int]) -> str:
    """`0-8, 12`."""
    runs = []
    for _, own in groupby(enumerate(numbers), lambda x: x[1] - x[0]):
        values = [n for _, n in own]
        runs.append(str(values[0]) if len(values) == 1 else f"{values[0]}-{values[-1]}")
    return ", ".join(runs)


def place(cluster: Cluster, device: int) -> str:
    """`on rtx4090:0`, `in host memory`."""
    cpu = cluster.kinds[cluster.device_kind[device]].type == "cpu"
    return "in host memory" if cpu else f"on {cluster.device_names[device]}"


def described(cluster: Cluster, layout: Layout, split: Split) -> str:
    """Where the layers are, and which experts and tensors are apart: `layers 0-29 on rtx4090:0, 30-35 on rtx3060:0`."""
    home = split.home[: layout.layers]
    devices = list(dict.fromkeys(home.tolist()))
    if len(devices) == 1:
        parts = [f"everything {place(cluster, devices[0])}"]
    else:
        own = [f"{ranges(np.flatnonzero(home == d).tolist())} {place(cluster, d)}" for d in devices]
        parts = [f"layers {', '.join(own)}"]
    return "; ".join([*parts, *_apart(cluster, layout, split)])


def _apart(cluster: Cluster, layout: Layout, split: Split) -> Iterator[str]:
    home, away = split.home[: layout.layers], split.away(layout)
    for d in dict.fromkeys(away[away != home].tolist()):
        layers = np.flatnonzero((away == d) & (away != home)).tolist()
        whole = len(layers) == layout.routed.sum()
        which = "all experts" if whole else f"the experts of layers {ranges(layers)}"
        if not split.streams:
            yield f"{which} {place(cluster, d)}"
    if split.streams:
        inside = (layout.layer >= 0) & (layout.layer < layout.layers)
        moved = np.unique(layout.layer[inside & (split.held != np.append(split.home, 0)[layout.layer])])
        yield f"the weights of layers {ranges(moved.tolist())} in host memory, copied in every step"
