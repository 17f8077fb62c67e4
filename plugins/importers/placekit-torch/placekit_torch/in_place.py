"""Finds the operations that write into existing memory.

A traced graph is functional: `x[2:4] = y` becomes a slice of x, a `copy` of y with the shape of the slice, and a `slice_scatter`
that makes a new tensor of the size of x. A GPU runs only the copy, which writes into the memory of x. So if nothing reads the
old value afterwards, the new one takes over its memory, and only the part that is written costs.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Collection
from typing import Any, cast

import torch

from placekit_torch import operators
from placekit_torch.capture import Captured
from placekit_torch.views import Node, Views

aten = torch.ops.aten
_VIEW_OF = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
    aten.diagonal_scatter.default: aten.diagonal.default,
    aten.as_strided_scatter.default: aten.as_strided.default,
}
"""For each operator that replaces a part of a tensor, the view that shows this part."""
_FILLS = frozenset([aten.copy.default, aten.fill.Scalar, aten.fill.Tensor, aten.zero.default])


class InPlace:
    """The kernels of a captured step that write into memory that exists already.

    Attributes:
        memory: for each such kernel, the kernel or source whose memory it writes to.
        free: kernels among them that no GPU runs, because the kernel before wrote into the view itself.
    """

    def __init__(self, captured: Captured, views: Views) -> None:
        self.views = views
        self.memory: dict[Node, Node] = {}
        self.free: set[Node] = set()
        self._number = {node: i for i, node in enumerate(captured.graph.nodes)}
        self._readers: dict[Node, list[Node]] = {}
        for node in self._number:
            if node.op == "call_function" and node not in views and node.target is not operator.getitem:
                for read in dict.fromkeys(views.base.get(n, n) for n in node.all_input_nodes):
                    self._readers.setdefault(read, []).append(node)
        kept = [*captured.results.values(), *captured.updates.values()]
        self._kept = {views.base.get(n, n) for n in kept}
        self._source_of = self._written_sources(captured)
        for node in self._number:
            if operators.writes_part(node.target) or node.target in _FILLS:
                self._add(node)

    def _tensor(self, argument: object) -> Node:
        """The tensor that is read where a node is an argument."""
        return self.views.tensor(cast(Node, argument))

    def _written_sources(self, captured: Captured) -> dict[Node, Node]:
        """For each kernel in a chain of writes into a source, that source; the last one makes its new value."""
        found: dict[Node, Node] = {}
        for source in captured.sources:
            node = captured.updates.get(source.name, source.node)
            while node is not source.node and operators.writes_part(node.target):
                found[node] = source.node
                node = self._tensor(node.args[0])
        return found

    def _add(self, node: Node) -> None:
        """Let `node` write into the memory of its first argument, if nothing reads the old value afterwards."""
        old = self._tensor(node.args[0])
        if old in self.views or operators.size(old.meta["val"]) != operators.size(node.meta["val"]):
            return  # the outer one of nested views has it
        members, direct = self._written(node)
        if node in self._source_of:
            memory = self._source_of[node]
        elif self._dies(old, members):
            memory = self.memory.get(old, old)
        else:
            return
        self.memory.update(dict.fromkeys(members, memory))
        scatters = [n for n in members if n.target in _VIEW_OF]
        self.free.update(scatters if direct else scatters[:-1])

    def _written(self, node: Node) -> tuple[list[Node], bool]:
        """`node`, the writes into views of views that it completes, and whether the last of them fills the view itself."""
        members = [node]
        while node.target in _VIEW_OF:
            part = node.args[1]
            if not isinstance(part, torch.fx.Node) or list(part.users) != [node] or part in self._kept:
                break
            if part.target in _VIEW_OF and self._is_place(part.args[0], node):
                members.append(part)
                node = part
            elif part.op == "call_function" and part not in self.views and self._fills(part, node):
                return [*members, part], True
            else:
                break
        return members, False

    def _fills(self, part: Node, scatter: Node) -> bool:
        """Whether a kernel writes into the view that the scatter replaces, like `x[2].zero_()` or `x[2].add_(y)`."""
        value = part.meta["val"]
        known = part.target in _FILLS or operators.is_pointwise(part.target)
        return known and isinstance(value, torch.Tensor) and self._is_place(part.args[0], scatter, value)

    def _is_place(self, view: object, scatter: Node, value: torch.Tensor | None = None) -> bool:
        """Whether the scatter replaces `view`; with `value`, also whether `value` has its shape and type."""
        if not isinstance(view, torch.fx.Node) or view not in self.views:
            return False
        whole = cast(Node, scatter.args[0])
        if self.views.base[view] is not self.views.base.get(whole, whole):
            return False
        shown, old = view.meta["val"], whole.meta["val"]
        if value is not None and (value.shape != shown.shape or value.dtype != shown.dtype):
            return False
        with getattr(old, "fake_mode", contextlib.nullcontext()):
            # not by operator: `chunk`, `unbind` and `narrow` show the same parts as slices
            place = _VIEW_OF[cast(Any, scatter.target)](old, *scatter.args[2:], **scatter.kwargs)
        return _geometry(place) == _geometry(shown)

    def _dies(self, old: Node, members: Collection[Node]) -> bool:
        """Whether `old` is a kernel's value that nothing but `members` reads from the first of them on."""
        if old.op != "call_function" or old in self._kept:
            return False
        first = min(self._number[n] for n in members)
        return all(n in members or self._number[n] < first for n in self._readers[old])


def _geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
