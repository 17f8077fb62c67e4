"""The optimiser's update of one parameter as a functional graph, traced from the optimiser's own code."""

from __future__ import annotations

import copy
import operator
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from placekit_core import ImporterError
from placekit_torch.fusion import Fused, fuse, is_fusible, is_part
from placekit_torch.joint import with_value
from placekit_torch.multi_tensor import TENSORS, is_multi_tensor, launches, traceable
from placekit_torch.tracing import compiling, is_data_dependent, mark_aliases, tracing


@dataclass
class Update:
    """The update of one parameter as a functional graph.

    Attributes:
        graph: takes the parameter, its gradient and the state's tensors; returns the new parameter and the new state.
        state: fake tensors of the state by name.
        initial: by name of a state tensor, the value of all its elements before the first step.
        fixed: names of Python numbers that change from step to step, but are constants in the graph, as in the second step.
    """

    graph: torch.fx.Graph
    state: dict[str, torch.Tensor]
    initial: dict[str, float] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()


class _Recording(dict[str, Any]):
    """The optimiser's state of one parameter; `first` keeps the first value of each key."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, Any] = {}

    def __setitem__(self, key: str, value: Any) -> None:
        self.first.setdefault(key, value.clone() if isinstance(value, torch.Tensor) else value)
        super().__setitem__(key, value)


def _step_one(optimizer: torch.optim.Optimizer, group: dict[str, Any], p: torch.Tensor, g: Any, state: Any) -> None:
    """Update only the parameter `p`, with gradient `g`; changes `p` and `state`."""
    single = copy.copy(optimizer)
    single.param_groups = [{**group, "params": [p]}]
    single.state = defaultdict(_Recording, {p: state})
    p.grad = g
    single.step()
    p.grad = None


def _first_values(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: torch.Tensor
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Find the state's initial values, and the names of its Python numbers that change from step to step.

    The optimiser updates a small real tensor with zero gradients: of ones and of zeros, to reject a state that starts from
    the parameter's values. SGD is exempt: it creates its momentum in the first step, with the weight decay in it.
    """
    state, numbers = _Recording(), []
    with compiling(), torch.no_grad():
        for start in (torch.ones, torch.zeros):
            other, state = state.first, _Recording()
            p = start([min(d, 2) for d in parameter.shape], dtype=parameter.dtype)
            _step_one(optimizer, group, p, torch.zeros_like(p), state)
        for _ in range(2):
            numbers.append({k: v for k, v in state.items() if isinstance(v, int | float) and not isinstance(v, bool)})
            _step_one(optimizer, group, p, torch.zeros_like(p), state)
    changing = tuple(k for k, v in numbers[1].items() if v != numbers[0].get(k))
    initial = {}
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            first = state.first[key].flatten()
            same = type(optimizer) is torch.optim.SGD or torch.equal(other[key].flatten(), first)
            if first.numel() and not (same and bool((first == first[0]).all())):
                raise ImporterError(
                    f"the state {key!r} of {type(optimizer).__name__} starts from values that depend on the parameter",
                    "start it from one number, e.g. torch.zeros_like(parameter)",
                )
            initial[key] = float(first[0]) if first.numel() else 0.0
        elif key in changing:
            initial[key] = float(state.first[key])
    return initial, changing


def trace_update(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: torch.Tensor, mode: FakeTensorMode
) -> Update:
    """Trace the update of one parameter with the settings of `group`. The gradient has the parameter's strides.

    Python numbers in the state that change from step to step become tensors, or constants (`Update.fixed`) if the
    optimiser's code needs them as numbers.
    """
    initial, changing = _first_values(optimizer, group, parameter)
    try:
        return _trace(optimizer, group, parameter, mode, initial, changing)
    except Exception as e:
        if not changing or not is_data_dependent(e):
            raise
    update = _trace(optimizer, group, parameter, mode, initial, ())
    update.fixed = changing
    return update


def _trace(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    parameter: torch.Tensor,
    mode: FakeTensorMode,
    initial: dict[str, float],
    numbers: tuple[str, ...],
) -> Update:
    """Trace the update; the Python numbers in the state that `numbers` names become tensors."""

    def step(tensor: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor]) -> Any:
        own, after = tensor.clone(), {**settings, **{k: v.clone() for k, v in state.items()}}
        _step_one(optimizer, group, own, gradient, after)
        return own, {k: after[k] for k in state}

    def fresh() -> torch.Tensor:
        return torch.empty_strided(parameter.shape, parameter.stride(), dtype=parameter.dtype)

    with tracing(mode), torch.no_grad(), traceable():
        made: dict[str, Any] = {}
        _step_one(optimizer, group, fresh(), fresh(), made)  # the first step creates the state
        made |= {k: torch.zeros((), dtype=torch.float64) for k in numbers}
        state = {k: v for k, v in made.items() if isinstance(v, torch.Tensor)}
        settings = {k: v for k, v in made.items() if k not in state}
        functional: Callable[..., Any] = torch.func.functionalize(step, remove="mutations")
        graph = make_fx(functional, tracing_mode="fake")(fresh(), fresh(), state).graph
    for node in reversed(graph.nodes):  # drop profiling, and copies of inputs, which nothing changes
        if node.target is torch.ops.aten.clone.default and node.args[0].op == "placeholder":
            node.replace_all_uses_with(node.args[0])
        if node.target is torch.ops.aten.copy.default and node.args[1].target is operator.getitem:
            node.replace_all_uses_with(node.args[1])  # a fused kernel writes the new value itself
        if node.op == "call_function" and not node.users:
            graph.erase_node(node)
    mark_aliases(graph)
    return Update(graph, state, {k: v for k, v in initial.items() if k in state})


def fuse_update(update: Update) -> None:
    """Fuse all kernels of an update into one if all are pointwise."""
    kernels = [n for n in update.graph.nodes if n.op == "call_function" and not is_part(n)]
    if len(kernels) > 1 and all(is_fusible(n.target) for n in kernels):
        fuse(update.graph, kernels, pytree.tree_leaves(update.graph.output_node().args[0]))


def share_launches(update: Update, together: int, kernels: str) -> None:
    """Set `meta["launches"]` of each kernel: its share of the launches, if one launch updates `together` parameters."""
    for node in update.graph.nodes:
        if node.op != "call_function" or is_part(node):
            continue
        share = 1.0
        if isinstance(node.target, Fused) or (kernels != "single" and is_multi_tensor(node.target)):
            share = launches(node, together)
            if (
                isinstance(node.target, Fused) and "fused_update" in node.target.names
            ):  # for the kernels that count the steps
                share += (len(node.target.names) - 1) / min(together, TENSORS[0])
        node.meta["launches"] = share


def repeat_update(update: Update, parameter: torch.Tensor, mode: FakeTensorMode) -> Update | None:
    """Copy an update for a parameter of another shape; returns None if a trace might give something else.

    A copy is right if all operations are pointwise, and each state tensor has the parameter's layout or is a scalar.
    """
    given = next(iter(update.graph.nodes)).meta["val"]
    operations = {n.target for n in update.graph.nodes if n.op == "call_function"}
    operations -= {torch.ops.aten.copy.default, operator.getitem}
    created = any(n.op == "call_function" and not n.all_input_nodes for n in update.graph.nodes)
    if given.dim() == 0 or created or not all(map(is_fusible, operations)):
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
    return Update(graph, state, update.initial, update.fixed)
