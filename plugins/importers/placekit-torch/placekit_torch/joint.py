"""The traced functional graph of the forward and backward pass, and functions that change it. Uses only torch.fx."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree

from placekit_core import ImporterError

TAG = "placekit"  # key of a node's Tag in its meta["custom"]
ALIAS = "placekit_alias"  # key of a node's meta: position of the input that it shares memory with
GRADIENT_SUM = "is_gradient_acc"
# keys of a node's meta for activation checkpointing:
NUMBERS = "placekit_numbers"  # numbers of the traced operations that the node runs
REPEATS = "placekit_repeats"  # number of the operation of the forward pass that the node recomputes
REGION = "placekit_region"  # number of the recomputed region that the node belongs to


class Tag(NamedTuple):
    """The module call that an operation comes from: path, number of the call, and that number for each part of the path."""

    module: str = ""
    call: int = 0
    call_path: str = ""


def outside_calls(module: str) -> Tag:
    """The tag of an operation that belongs to a module, but to no call of it."""
    return Tag(module, 0, ".".join("0" for part in module.split(".") if part))


def own_name(name: str) -> str:
    """The name in the user's module of a traced parameter or buffer; the trace wraps that module in another one."""
    return name.removeprefix("module.")


class Names:
    """All names of each parameter and buffer of a module; tied ones have several."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.parameters = self._grouped(module.named_parameters(remove_duplicate=False))
        self.buffers = self._grouped(module.named_buffers(remove_duplicate=False))

    @staticmethod
    def _grouped(named: Iterable[tuple[str, torch.Tensor]]) -> list[list[str]]:
        groups: dict[int, list[str]] = defaultdict(list)
        for name, tensor in named:
            groups[id(tensor)].append(name)
        return list(groups.values())


@dataclass
class Joint:
    """A functional graph of forward and, when training, backward, with its nodes by role.

    Attributes:
        graph: its `placeholder` and `get_attr` nodes are the sources; there is no output node.
        parameters, buffers: placeholders by name; a tied parameter once, under its first name.
        inputs: placeholders in the order of the arguments.
        constants: `get_attr` nodes by name, and their values.
        gradients: nodes by parameter name; a parameter without gradient is missing.
        new_buffers: new values of the buffers that the step changes.
        new_parameters: new values of the parameters that the forward pass changes (`weight.data.clamp_(-1, 1)`), by name.
        new_inputs: new values of the inputs that the step changes, by position.
        outputs: the outputs of the module, flattened.
    """

    graph: torch.fx.Graph
    parameters: dict[str, torch.fx.Node] = field(default_factory=dict)
    buffers: dict[str, torch.fx.Node] = field(default_factory=dict)
    inputs: dict[int, torch.fx.Node] = field(default_factory=dict)
    constants: dict[str, tuple[torch.fx.Node, torch.Tensor]] = field(default_factory=dict)
    gradients: dict[str, torch.fx.Node] = field(default_factory=dict)
    new_buffers: dict[str, torch.fx.Node] = field(default_factory=dict)
    new_parameters: dict[str, torch.fx.Node] = field(default_factory=dict)
    new_inputs: dict[int, torch.fx.Node] = field(default_factory=dict)
    outputs: list[torch.fx.Node | None] = field(default_factory=list)


def start_backward(graph: torch.fx.Graph, tangent: torch.fx.Node, value: float) -> None:
    """Replace the gradient that enters the backward pass by a constant: 1 for the loss, 0 for buffers that hold activations."""
    if tangent.users:
        like = tangent.meta["val"]
        with graph.inserting_before(next(n for n in graph.nodes if n in tangent.users)):
            first = graph.call_function(
                torch.ops.aten.full.default, (list(like.shape), value), {"dtype": like.dtype, "device": like.device}
            )
        first.meta.update(val=like, partitioner_tag="is_backward", custom={TAG: Tag()})
        tangent.replace_all_uses_with(first)
    graph.erase_node(tangent)


def merge_tied(joint: Joint, names: Names) -> None:
    """Merge tied parameters: tracing gives them an input and a gradient per name; they get one input and a summed gradient.

    As in autograd, gradients are summed in the order of the backward pass.
    """
    changed = joint.new_buffers | joint.new_parameters
    for first, *others in (*names.buffers, *names.parameters):
        for name in others:
            if name in changed or first in changed:
                raise ImporterError(f"{first!r} and {name!r} are one tensor, which the forward pass changes")
    for first, *others in names.buffers:
        for name in others:
            _merge(joint, joint.buffers, first, name)
    place = {node: i for i, node in enumerate(joint.graph.nodes)}
    for tied in names.parameters:
        first = tied[0]
        gradients = sorted((joint.gradients.pop(k) for k in tied if k in joint.gradients), key=place.__getitem__)
        for name in tied[1:]:
            _merge(joint, joint.parameters, first, name)
        if not gradients:
            continue
        total = gradients[0]
        for gradient in gradients[1:]:
            with joint.graph.inserting_after(gradient):
                both = joint.graph.call_function(torch.ops.aten.add.Tensor, (total, gradient))
            both.meta.update(val=total.meta["val"], partitioner_tag="is_backward", seq_nr=-1)
            both.meta[GRADIENT_SUM] = True
            with_value(both)
            total = both
        joint.gradients[first] = total


def _merge(joint: Joint, nodes: dict[str, torch.fx.Node], first: str, name: str) -> None:
    node = nodes.pop(name)
    node.replace_all_uses_with(nodes[first])
    joint.graph.erase_node(node)


def with_value(node: torch.fx.Node) -> torch.fx.Node:
    """Compute the node's fake result, `meta["val"]`, from those of its inputs; returns the node."""
    arguments, keywords = pytree.tree_map_only(torch.fx.Node, lambda n: n.meta["val"], (node.args, node.kwargs))
    fake = next(v for v in pytree.tree_leaves((arguments, keywords)) if isinstance(v, torch.Tensor))
    with fake.fake_mode, torch.no_grad():  # type: ignore[attr-defined]
        node.meta["val"] = node.target(*arguments, **keywords)  # type: ignore[operator]
    return node


def inline(
    target: torch.fx.Graph, source: torch.fx.Graph, inputs: Sequence[torch.fx.Node], meta: dict[str, Any]
) -> list[torch.fx.Node]:
    """Append the operations of `source` to `target` with `meta` added, and `inputs` for its placeholders; returns its outputs."""
    own: dict[torch.fx.Node, torch.fx.Node] = {}
    given = iter(inputs)
    for node in source.nodes:
        if node.op == "placeholder":
            own[node] = next(given)
        elif node.op == "output":
            return [own[n] for n in pytree.tree_leaves(node.args[0])]
        else:
            own[node] = target.node_copy(node, own.__getitem__)
            own[node].meta = {**node.meta, **meta}
    raise AssertionError("a traced graph has an output node")
