"""The optimiser's update of every parameter, traced from torch.optim's own code and appended to the joint graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from placekit_core import ImporterError
from placekit_torch.fused import FusedAdam
from placekit_torch.joint import TAG, Joint, inline, outside_calls, own_name, with_value
from placekit_torch.tracing import explain
from placekit_torch.updates import Update, repeat_update, trace_update

# Settings that keep each optimiser's code free of Python numbers that depend on data, and give one operation per tensor.
_SETTINGS: dict[type, dict[str, Any]] = {
    torch.optim.SGD: {"foreach": False, "fused": False},
    torch.optim.RMSprop: {"foreach": False, "capturable": True},
    torch.optim.Adam: {"foreach": False, "fused": False, "capturable": True},
    torch.optim.AdamW: {"foreach": False, "fused": False, "capturable": True},
    FusedAdam: {},
}


class Optimizer:
    """A user's optimiser for a module's parameters; made before tracing, which can leave the module unusable."""

    def __init__(self, make: Callable[[Any], Any], module: torch.nn.Module, mode: Any, name: str) -> None:
        self.mode, self.name = mode, name
        self.names = {id(p): k for k, p in module.named_parameters()}
        try:
            with mode:
                self.optimizer: torch.optim.Optimizer = make([p for p in module.parameters() if p.requires_grad])
        except Exception as e:
            message, _ = explain(e, f"the optimizer of {name} failed")
            raise ImporterError(message, "it is called with a list of parameters") from e
        self.kind = type(self.optimizer)
        if self.kind not in _SETTINGS:
            raise ImporterError(
                f"the optimizer of {name} is {self.kind.__name__}, which cannot be imported",
                f"use one of torch.optim: {', '.join(sorted(t.__name__ for t in _SETTINGS if t is not FusedAdam))}; or"
                " placekit_torch.fused.FusedAdam",
            )
        if any(id(p) not in self.names for group in self.optimizer.param_groups for p in group["params"]):
            raise ImporterError(
                f"the optimizer of {name} updates a tensor that is no parameter of the module",
                "build it from the parameters that it receives",
            )
        asked = [k for k in ("foreach", "fused") if any(group.get(k) for group in self.optimizer.param_groups)]
        if asked:
            warnings.warn(
                f"{name}: {self.kind.__name__} was made with {asked[0]}=True, but its update is traced with one kernel per"
                " operation and parameter: the graph has more and smaller kernels than your step.",
                stacklevel=2,
            )

    def append(self, joint: Joint, updates: dict[str, torch.fx.Node]) -> Iterator[tuple[str, str, torch.fx.Node]]:
        """Append the updates to `joint.graph` and the new values to `updates`.

        Yields name, parameter and placeholder of each tensor of the optimiser's state. Parameters that have no gradient
        stay as they are, as in torch.optim. Raises ImporterError for an update that cannot be traced.
        """
        traced: dict[Any, Update] = {}
        first: dict[Any, Update] = {}
        for number, group in enumerate(self.optimizer.param_groups):
            settings = {**group, **_SETTINGS[self.kind]}
            for parameter in group["params"]:
                own = self.names[id(parameter)]
                if own not in joint.gradients:
                    continue
                signature = (number, parameter.shape, parameter.dtype, parameter.stride())
                if signature not in traced:
                    try:
                        traced[signature] = self._update(settings, parameter, first, (number, parameter.dtype))
                    except Exception as e:
                        message, _ = explain(e, f"the update of {self.kind.__name__} in {self.name} cannot be traced")
                        raise ImporterError(message, "learning rates and other settings must be Python numbers") from e
                yield from _append(joint, traced[signature], own, updates)

    def _update(self, settings: dict[str, Any], parameter: torch.Tensor, first: dict[Any, Update], kind: Any) -> Update:
        repeated = repeat_update(first[kind], parameter, self.mode) if kind in first else None
        if repeated is not None:
            return repeated
        traced = trace_update(self.optimizer, settings, parameter, self.mode)
        first.setdefault(kind, traced)
        return traced


def has_layout_of(node: torch.fx.Node, other: torch.fx.Node) -> bool:
    """Whether two nodes' tensors have the same shape, type and layout (strides of dimensions of size 1 do not matter)."""
    a, b = node.meta["val"], other.meta["val"]

    def layout(t: torch.Tensor) -> list[int]:
        return [s for s, d in zip(t.stride(), t.shape, strict=True) if d != 1]

    return a.shape == b.shape and a.dtype == b.dtype and layout(a) == layout(b)


def _append(
    joint: Joint, update: Update, parameter: str, updates: dict[str, torch.fx.Node]
) -> Iterator[tuple[str, str, torch.fx.Node]]:
    graph, node = joint.graph, joint.parameters[parameter]
    own = own_name(parameter)
    tag = {TAG: outside_calls(own.rpartition(".")[0])}
    first = next(iter(graph.nodes))
    state = []
    for key, value in update.state.items():
        with graph.inserting_before(first):
            placeholder = graph.placeholder(f"state_{len(graph.nodes)}")
        placeholder.meta["val"] = value
        state.append(placeholder)
        yield f"{own}/{key}", own, placeholder
    gradient = joint.gradients[parameter]
    if not has_layout_of(gradient, node) and node.meta["val"].is_contiguous():
        # autograd stores a gradient in the layout of its parameter
        gradient = graph.call_function(
            torch.ops.aten.clone.default, (gradient,), {"memory_format": torch.contiguous_format}
        )
        gradient.meta.update(phase="backward", custom=tag)
        with_value(gradient)
    meta = {"phase": "update", "owner": own, "custom": tag}
    new = inline(graph, update.graph, [node, gradient, *state], meta)
    names = [own, *(f"{own}/{key}" for key in update.state)]
    updates.update(zip(names, new, strict=True))
