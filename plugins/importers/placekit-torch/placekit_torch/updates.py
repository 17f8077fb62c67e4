"""The optimiser's update of one parameter as a functional graph, traced from the optimiser's own code."""

from __future__ import annotations

import copy
import operator
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from placekit_torch.joint import with_value
from placekit_torch.tracing import mark_aliases, tracing


@dataclass
class Update:
    """The update of one parameter as a functional graph.

    Attributes:
        graph: its placeholders are parameter, gradient, then the state; its output node returns the new parameter and state
            in that order.
        state: names and fake values of the state's tensors, all zero before the first step.
    """

    graph: torch.fx.Graph
    state: dict[str, torch.Tensor]


def trace_update(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: torch.Tensor, mode: FakeTensorMode
) -> Update:
    """Trace one step of `optimizer` for one parameter with the settings of `group`. The gradient has the parameter's layout."""

    def stepped(tensor: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any]) -> dict[str, Any]:
        single = copy.copy(optimizer)
        single.param_groups = [{**group, "params": [tensor]}]
        single.state = defaultdict(dict, {tensor: state} if state else {})
        tensor.grad = gradient
        single.step()
        tensor.grad = None
        return dict(single.state[tensor])

    def step(tensor: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor]) -> Any:
        own = tensor.clone()
        after = stepped(own, gradient, {**settings, **{k: v.clone() for k, v in state.items()}})
        return own, {k: after[k] for k in state}

    def fresh() -> torch.Tensor:
        return torch.empty_strided(parameter.shape, parameter.stride(), dtype=parameter.dtype)

    with tracing(mode), torch.no_grad():
        made = stepped(fresh(), fresh(), {})  # the first step makes the state
        state = {k: v for k, v in made.items() if isinstance(v, torch.Tensor)}
        settings = {k: v for k, v in made.items() if k not in state}
        functional: Callable[..., Any] = torch.func.functionalize(step, remove="mutations")
        graph = make_fx(functional, tracing_mode="fake")(fresh(), fresh(), state).graph
    for node in reversed(graph.nodes):  # drop copies that protect the inputs (nothing changes them) and profiling
        if node.target is torch.ops.aten.clone.default and node.args[0].op == "placeholder":
            node.replace_all_uses_with(node.args[0])
        if node.target is torch.ops.aten.copy.default and node.args[1].target is operator.getitem:
            node.replace_all_uses_with(node.args[1])  # a fused kernel writes the new value itself
        if node.op == "call_function" and not node.users:
            graph.erase_node(node)
    mark_aliases(graph)
    return Update(graph, state)


def repeat_update(update: Update, parameter: torch.Tensor, mode: FakeTensorMode) -> Update | None:
    """The same update for a parameter of another shape; None if it might differ.

    It is the same if all operations are pointwise, and each state tensor has the parameter's layout or is one number.
    """
    given = next(iter(update.graph.nodes)).meta["val"]
    operations = {n.target for n in update.graph.nodes if n.op == "call_function"} - {torch.ops.aten.copy.default}
    if given.dim() == 0 or not all(torch.Tag.pointwise in getattr(op, "tags", ()) for op in operations):
        return None
    with mode, torch.no_grad():
        layout = torch.empty_like(given).stride()
        own = [torch.empty_strided(parameter.shape, parameter.stride(), dtype=parameter.dtype) for _ in range(2)]
        state = {}
        for key, value in update.state.items():
            if value.shape == given.shape and value.stride() == layout:
                state[key] = torch.empty_like(own[0], dtype=value.dtype)
            elif value.dim() == 0:
                state[key] = torch.empty_like(value)
            else:
                return None
    graph = torch.fx.Graph()
    made: dict[torch.fx.Node, torch.fx.Node] = {}
    values = iter([*own, *state.values()])
    for node in update.graph.nodes:
        made[node] = graph.node_copy(node, made.__getitem__)
        if node.op == "placeholder":
            made[node].meta["val"] = next(values)
        elif node.op == "call_function":
            with_value(made[node])
    mark_aliases(graph)
    return Update(graph, state)
