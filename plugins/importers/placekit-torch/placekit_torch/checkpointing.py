"""Activation checkpointing: marks the operations that recompute others, and the gradients that they wait for.

`torch.utils.checkpoint` keeps only the inputs of a region and runs the region again when the backward pass needs a value
from inside (Chen et al. 2016). By default, tracing leaves the recomputation out; `recorded()` keeps it and marks the nodes.
In a graph without further edges, the second run could start right after the first and keep its values for as long. So its
first operations also read the gradient that triggers the recomputation.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint as torch_checkpoint

from placekit_torch.fusion import kernel_of
from placekit_torch.joint import NUMBERS, REGION, REPEATS

Node = torch.fx.Node
_numbers, _regions = itertools.count(), itertools.count()  # global, because graphs may be joined


def _graph() -> torch.fx.Graph | None:
    """The graph being traced; None while torch only finds shapes."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    return None if mode is None else mode.tracer.graph


def _since(last: Node) -> list[Node]:
    """Nodes of operations after `last`."""
    found, node = [], last.next
    while node.op != "root":
        found += [node] if node.op == "call_function" else []
        node = node.next
    return found


def _last(graph: torch.fx.Graph | None) -> Node | None:
    return None if graph is None else graph._root.prev


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Keep recomputation in the traced backward pass, and mark its nodes.

    Re-entrant checkpoints become non-re-entrant ones, which run the same operations. As in torch, they give no gradients if
    no input requires one.
    """
    first: dict[int, Any] = {}  # hook -> the last node before it
    enter = torch.autograd.graph.saved_tensors_hooks.__enter__
    leave = torch.autograd.graph.saved_tensors_hooks.__exit__

    def begin(self: Any) -> Any:
        first[id(self)] = _last(_graph())
        return enter(self)

    def forward_done(self: Any, *error: Any) -> Any:
        last = first.pop(id(self), None)
        if last is not None:
            self.frame.placekit_nodes = _since(last)
            for node in self.frame.placekit_nodes:
                node.meta.setdefault(NUMBERS, (next(_numbers),))
        return leave(self, *error)

    def recomputed(self: Any, *error: Any) -> Any:
        last, region = first.pop(id(self), None), next(_regions)
        if last is not None:
            before, place = self.frame.placekit_nodes, 0
            for node in _since(last):
                node.meta[REGION] = region
                found = next((i for i in range(place, len(before)) if before[i].target == node.target), None)
                if found is not None:  # torch adds `detach` nodes, which the first run lacks
                    node.meta[REPEATS], place = before[found].meta[NUMBERS][0], found + 1
        return leave(self, *error)

    def knows_frame(hook: Any, frame_of: Any) -> Any:
        make = hook.__init__

        def init(self: Any, *args: Any) -> None:
            self.frame = frame_of(args[0])
            make(self, *args)

        return mock.patch.multiple(hook, __init__=init, __enter__=begin)

    forward, again = torch_checkpoint._checkpoint_hook, torch_checkpoint._recomputation_hook
    with contextlib.ExitStack() as stack:
        stack.enter_context(knows_frame(forward, lambda frame: frame))
        stack.enter_context(knows_frame(again, lambda reference: reference()))
        stack.enter_context(mock.patch.object(forward, "__exit__", forward_done))
        stack.enter_context(mock.patch.object(again, "__exit__", recomputed))
        stack.enter_context(mock.patch.object(torch_checkpoint.CheckpointFunction, "apply", _reentrant))
        shown = mock.Mock(return_value=False)
        stack.enter_context(mock.patch.object(torch._C._autograd, "_saved_tensors_hooks_set_tracing", shown))
        yield


def _reentrant(function: Any, preserve: bool, *args: Any) -> Any:
    """Replaces `checkpoint(..., use_reentrant=True)`."""
    if not any(isinstance(a, torch.Tensor) and a.requires_grad for a in args):
        with torch.no_grad():
            return function(*args)
    return torch_checkpoint.checkpoint(
        function, *args, use_reentrant=False, preserve_rng_state=preserve, early_stop=False
    )


def repeated(nodes: list[Node]) -> dict[Node, Node]:
    """The first run of each recomputed operation."""
    home = {number: node for node in nodes for number in node.meta.get(NUMBERS, ())}
    found = {}
    for node in nodes:
        origin = node
        while (number := origin.meta.get(REPEATS)) in home:
            origin = home[number]
        if origin is not node:
            found[node] = origin
    return found


def gradients_awaited(graph: torch.fx.Graph) -> dict[Node, Node]:
    """For each first operation of a recomputation, the gradient that triggers it.

    It is the first gradient that an operation reads together with a recomputed value, or with a value derived from one.
    """
    kernels = [n for n in graph.nodes if n.op == "call_function" and kernel_of(n) is n]
    regions = dict.fromkeys(n.meta[REGION] for n in kernels if REGION in n.meta)
    found: dict[Node, Node] = {}
    for region in regions:
        members = {n for n in kernels if n.meta.get(REGION) == region}
        first = [n for n in members if not any(kernel_of(i) in members for i in n.all_input_nodes)]
        gradient = _gradient(kernels, members)
        if gradient is not None:
            found.update(dict.fromkeys(first, gradient))
    return found


def _gradient(kernels: list[Node], members: set[Node]) -> Node | None:
    dependent = set(members)
    for node in kernels:
        if node in members or not any(kernel_of(i) in dependent for i in node.all_input_nodes):
            continue
        for read in node.all_input_nodes:
            kernel = kernel_of(read)
            if kernel not in dependent and kernel.meta.get("phase") == "backward" and REGION not in kernel.meta:
                return read
        dependent.add(node)
    return None
