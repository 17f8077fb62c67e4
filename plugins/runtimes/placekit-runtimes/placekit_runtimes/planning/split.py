"""The device of each tensor of a decoder: `Layout` lists the tensors, a `Split` places them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placekit_core import Graph

EMBEDDINGS = ("token_embd", "per_layer_token_embd")
"""Tensors that a step reads row by row. llama.cpp keeps them in host memory."""
TOWER, TOWERS = -2, ("v", "a", "mm", "resampler", "adapter", "model", "images")
"""The layer of tensors and operations of a tower for images, and what their names begin with."""


@dataclass(frozen=True, eq=False)
class Layout:
    """The t tensors of a decoder of l layers, as importer `checkpoint` and `placekit_models.decoder` name them.

    Attributes:
        names: [t] without `.weight` at the end.
        layer: [t] layer of each tensor; l for those after the layers, -1 for the embeddings, `TOWER` for a tower for images.
        expert: [t] whether it belongs to routed experts.
        bytes: [t] sizes.
        layers: number of layers l.
    """

    names: tuple[str, ...]
    layer: NDArray[np.int64]
    expert: NDArray[np.bool_]
    bytes: NDArray[np.float64]
    layers: int

    @classmethod
    def of(cls, graph: Graph) -> Layout:
        """The layout of a decoder's graph."""
        sources = [v for v in np.flatnonzero(~graph.kernel).tolist() if graph.op_type[v] == "parameter"]
        names = [graph.op_name[v].removesuffix(".weight") for v in sources]
        layers = 1 + max(int(name.split(".")[1]) for name in names if name.startswith("blk."))
        return cls(
            tuple(names), np.asarray([_layer(name, layers) for name in names]),
            np.asarray(["_exps" in name for name in names]), graph.persistent_bytes[sources].astype(np.float64), layers,
        )  # fmt: skip

    @cached_property
    def index(self) -> dict[str, int]:
        """Number of each tensor by its name."""
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def routed(self) -> NDArray[np.bool_]:
        """[l] whether a layer has routed experts."""
        found = np.zeros(self.layers + 1, np.bool_)
        found[self.layer[self.expert]] = True
        return found[: self.layers]

    def split(
        self, home: Sequence[int], embedding: int, experts: Sequence[int] | None = None, tower: int | None = None
    ) -> Split:
        """The split with each layer (and the output, the last of `home` [l + 1]) on its device, and its routed experts on
        that of `experts` [l]; the tower is on the first device unless another is given."""
        homes = np.asarray(home, np.int64)
        held = np.append(homes, [homes[0] if tower is None else tower, embedding])[self.layer]  # -1 is the last element
        if experts is not None:
            held[self.expert] = np.asarray(experts, np.int64)[self.layer[self.expert]]
        return Split(homes, held)


@dataclass(frozen=True, eq=False)
class Split:
    """The device of each tensor.

    Attributes:
        home: [l + 1] device of each layer's cache and small operations, and of the output.
        held: [t] device whose memory has the tensor. Its product runs there, too.
        streams: whether products run at home instead, and the tensor is copied there in every step.
    """

    home: NDArray[np.int64]
    held: NDArray[np.int64]
    streams: bool = False

    @property
    def key(self) -> tuple[bytes, bytes, bool]:
        """A key that is equal for equal splits."""
        return self.home.tobytes(), self.held.tobytes(), self.streams

    def used(self, layout: Layout) -> list[int]:
        """The devices with layers, then those with tensors of layers; an embedding in host memory does not count."""
        return list(dict.fromkeys([*self.home.tolist(), *self.held[layout.layer >= 0].tolist()]))

    def parts(self, layout: Layout) -> int:
        """The number of runs of layers, and of experts apart from their layers, that are placed equally."""
        home, away = self.home, self.away(layout)
        apart = np.where(away == home[:-1], -1, away)[layout.routed]
        own = np.where(
            np.isin(np.arange(layout.layers), layout.layer[self.held != np.append(home, 0)[layout.layer]]), 1, 0
        )
        changes = [int(np.count_nonzero(np.diff(x))) for x in (home[:-1], apart, own if self.streams else home[:0])]
        return len({*home.tolist()}) + sum(changes)

    def away(self, layout: Layout) -> NDArray[np.int64]:
        """[l] device of the routed experts of each layer, of the first of their tensors; its home without experts."""
        found = self.home[: layout.layers].copy()
        for i in np.flatnonzero(layout.expert)[::-1]:
            found[layout.layer[i]] = self.held[i]
        return found

    @classmethod
    def of(cls, layout: Layout, graph: Graph, device: NDArray[np.integer]) -> Split:
        """The split of a placement, `device` [n]: a layer's home has most of its operations that read no experts."""
        found = Operations(layout, graph)
        mine = graph.kernel & ~np.isin(found.tensor, np.flatnonzero(layout.expert)) & (found.layer >= 0)
        counts = np.zeros((layout.layers + 1, int(device.max()) + 1))
        np.add.at(counts, (found.layer[mine], device[mine]), 1)
        held = np.zeros(len(layout.names), np.int64)
        held[found.tensor[~graph.kernel & (found.tensor >= 0)]] = device[~graph.kernel & (found.tensor >= 0)]
        return cls(counts.argmax(axis=1), held)


class Operations:
    """The operations of a decoder's graph, by the tensors that they read.

    Attributes:
        tensor: [n] tensor of a source or product; -1 for the other operations.
        layer: [n] layer; l after the layers, -1 for the embedding.
        product: [n] whether it is a kernel that reads a tensor.
        tower: the first tensor of a tower for images; 0 without one.
        helped: [n] whether it is a kernel of a layer that another device may run for it: all but attention and recurrences.
        priority: [n] runtimes finish a micro-batch on a device before they begin the next.
    """

    def __init__(self, layout: Layout, graph: Graph) -> None:
        keys = [name.partition("@")[0].removesuffix(".weight").replace("_act", "_down") for name in graph.op_name]
        self.tensor = np.asarray([layout.index.get(key, -1) for key in keys])
        self.layer = np.asarray([_layer(key, layout.layers) for key in keys])
        self.product = (self.tensor >= 0) & graph.kernel
        mixes = np.asarray([key.endswith((".attn", ".ssm")) for key in keys])
        towers = np.flatnonzero(layout.layer == TOWER)
        self.tower = int(towers[0]) if len(towers) else 0
        self.helped = graph.kernel & ~mixes & (self.layer >= 0) & (self.layer < layout.layers)
        self.priority = -np.asarray([float(name.partition("@")[2] or 0) for name in graph.op_name])

    def devices(self, splits: Sequence[Split], cpu: int | None = None, gpus: Sequence[int] = ()) -> NDArray[np.int64]:
        """[b, n] device of each operation for each split.

        With `cpu` and `gpus` [b], products of layers whose tensors are in the CPU's memory run on this GPU, wherever the layer
        is: llama.cpp copies such tensors to its first GPU for micro-batches of 32 tokens and more
        (`ggml_backend_sched_backend_id_from_cur` in ggml-backend.cpp).
        """
        rows = []
        for split, gpu in zip(splits, gpus or [-1] * len(splits), strict=True):
            home = np.append(split.home, split.held[[self.tower, 0]])  # the last is -1's: beside the embedding
            at = home[self.layer]
            found = np.where(self.tensor >= 0, split.held[self.tensor], at)
            if split.streams:
                found = np.where(self.product, at, found)
            elif cpu is not None and gpu >= 0:
                found = np.where(self.helped & (found == cpu), gpu, found)
            rows.append(found)
        return np.stack(rows)


def _layer(key: str, layers: int) -> int:
    first, number, *_ = [*key.split("."), ""]
    if first == "blk":
        return int(number)
    return TOWER if first in TOWERS else -1 if first in (*EMBEDDINGS, "tokens") else layers
