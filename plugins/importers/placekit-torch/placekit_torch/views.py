"""Finds the views in an fx graph, and the tensor that each one reads.

A view is not an operation. If it covers all bytes of its base (transposes, reshapes, expansions), its readers read the base. If
it covers fewer (slices, chunks), it is a tensor of its own that shares memory with its base, and equal views are one tensor.
A device that needs one chunk of a tensor receives that chunk only, and views cost nothing.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from placekit_torch.joint import ALIAS
from placekit_torch.operators import size

Node = torch.fx.Node


class Views:
    """The views of a functional fx graph, by node.

    Attributes:
        base: for a view, the node that it shares memory with, which is not a view.
        read: for a folded view, the base or smaller view that its readers read instead.
        same: for a smaller view, the first node that makes an equal one (maybe itself).
    """

    def __init__(self, graph: torch.fx.Graph) -> None:
        self.base: dict[Node, Node] = {}
        self.read: dict[Node, Node] = {}
        self.same: dict[Node, Node] = {}
        known: dict[Any, Node] = {}
        for node in graph.nodes:
            if node.op == "call_function" and (source := self.source(node)) is not None:
                self._add(node, source, known)

    def source(self, node: Node) -> Node | None:
        """The node that this node is a view of, directly or as an item of a list of views."""
        if node.target is operator.getitem:
            return node.args[0] if node.args[0] in self.base else None  # type: ignore[return-value]
        return node.all_input_nodes[node.meta[ALIAS]] if ALIAS in node.meta else None

    def _add(self, node: Node, source: Node, known: dict[Any, Node]) -> None:
        base = self.base[node] = self.base.get(source, source)
        near, value = self.tensor(source), node.meta["val"]
        if not isinstance(value, torch.Tensor):  # a list of views: its items are tensors
            self.read[node] = near
            return
        if node.target is torch.ops.aten.as_strided.default:  # its offset counts from the start of the base
            node.args, node.kwargs = (base, [*value.shape], [*value.stride()], value.storage_offset()), {}
            near = base
        if size(value) >= size(near.meta["val"]):
            self.read[node] = near
        else:
            key = (base, value.dtype, value.shape, value.stride(), value.storage_offset())
            self.same[node] = known.setdefault(key, node)

    def __contains__(self, node: Node) -> bool:
        return node in self.base

    def tensor(self, node: Node) -> Node:
        """The node of the tensor that readers of `node` read."""
        return self.same.get(node) or self.read.get(node) or node

    def exact(self, node: Node) -> Node | None:
        """The node of the tensor that `node` makes; None for folded views."""
        return None if node in self.read else self.same.get(node, node)
