"""The optimiser's update of every parameter, traced from torch.optim's own code and appended to the joint graph."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch

from placekit_core import ImporterError
from placekit_torch.custom_kernels import FusedAdam
from placekit_torch.joint import TAG, Joint, inline, outside_calls, own_name, with_value
from placekit_torch.tracing import explain
from placekit_torch.updates import Update, fuse_update, repeat_update, share_launches, trace_update

_FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)  # torch has fused kernels for them
_HINT = "learning rates and other settings must be Python numbers, and values that depend on data must stay tensors"
Kind = Literal["auto", "fused", "foreach", "single"]


def chosen(kind: Kind, optimizer: type, group: Mapping[str, Any]) -> Kind:
    """Which kernels update a group of parameters; `auto` chooses as torch does on a GPU with the group's settings."""
    if optimizer is FusedAdam:
        return "single"
    if kind != "auto":
        return kind
    if group.get("fused"):
        return "fused"
    default = "foreach" in group and group["foreach"] is not False and not group.get("differentiable")
    return "foreach" if default else "single"


def _settings(kernels: Kind, optimizer: type, group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `group` that select these kernels; `capturable` keeps the step count in a tensor."""
    settings = dict(group)
    if "capturable" in settings:
        settings["capturable"] = True
    if "fused" in settings:
        settings["fused"] = kernels == "fused" and optimizer in _FUSED
    if "foreach" in settings:  # the loop of Adagrad over single tensors needs the step as a number
        settings["foreach"] = kernels == "foreach" or (optimizer is torch.optim.Adagrad and not settings["fused"])
    return settings


class Optimizer:
    """A user's optimiser. Create it before the trace, which can leave the module unusable."""

    def __init__(
        self, make: Callable[[Any], Any], module: torch.nn.Module, mode: Any, name: str, kernels: Kind = "auto"
    ) -> None:
        self.mode, self.name, self.kernels = mode, name, kernels
        self.names = {id(p): k for k, p in module.named_parameters()}
        try:
            with mode:
                self.optimizer: torch.optim.Optimizer = make([p for p in module.parameters() if p.requires_grad])
        except Exception as e:
            message, _ = explain(e, f"the optimizer of {name} failed")
            raise ImporterError(message, "give a function that takes a list of parameters") from e
        self.kind = type(self.optimizer)
        if any(id(p) not in self.names for group in self.optimizer.param_groups for p in group["params"]):
            raise ImporterError(
                f"the optimizer of {name} updates a tensor that is not a parameter of the module",
                "build it from the parameters that it receives",
            )

    def append(
        self, joint: Joint, updates: dict[str, torch.fx.Node]
    ) -> Iterator[tuple[str, str, torch.fx.Node, float]]:
        """Append the updates of all parameters to `joint.graph`, and the nodes of the new values to `updates`.

        Yields each tensor of the optimiser's state: name, parameter, placeholder, initial value. Parameters that have no
        gradient stay as they are, as in torch.optim. Raises ImporterError for an update that cannot be traced.
        """
        traced: dict[Any, Update] = {}
        first: dict[Any, Update] = {}
        for number, group in enumerate(self.optimizer.param_groups):
            kernels = chosen(self.kernels, self.kind, group)
            settings = _settings(kernels, self.kind, group)
            updated = [p for p in group["params"] if self.names[id(p)] in joint.gradients]
            together = Counter(p.dtype for p in updated)
            for parameter in updated:
                signature = (number, parameter.shape, parameter.dtype, parameter.stride())
                if signature not in traced:
                    try:
                        update = self._update(settings, parameter, first, (number, parameter.dtype), kernels)
                    except ImporterError:
                        raise
                    except Exception as e:
                        message, _ = explain(e, f"the update of {self.kind.__name__} in {self.name} cannot be traced")
                        raise ImporterError(message, _HINT) from e
                    share_launches(update, together[parameter.dtype], kernels)
                    traced[signature] = update
                yield from _append(joint, traced[signature], self.names[id(parameter)], updates)
        self._warn(first)

    def _warn(self, first: Mapping[Any, Update]) -> None:
        fixed = {key for update in first.values() for key in update.fixed}
        if fixed:
            warnings.warn(
                f"{self.name}: {self.kind.__name__} computes with Python numbers that change from step to step"
                f" ({', '.join(sorted(fixed))}). The trace has the numbers of the second step: costs are right, but values are"
                " wrong in other steps. Keep such numbers in tensors, as torch.optim does with capturable=True.",
                stacklevel=2,
            )

    def _update(
        self, settings: dict[str, Any], parameter: torch.Tensor, first: dict[Any, Update], key: Any, kernels: Kind
    ) -> Update:
        repeated = repeat_update(first[key], parameter, self.mode) if key in first else None
        if repeated is not None:
            return repeated
        traced = trace_update(self.optimizer, settings, parameter, self.mode)
        if kernels == "fused":
            fuse_update(traced)
        first.setdefault(key, traced)
        return traced


def has_layout_of(node: torch.fx.Node, other: torch.fx.Node) -> bool:
    """Whether two nodes' tensors have the same shape, type and layout (strides of dimensions of size 1 do not matter)."""
    a, b = node.meta["val"], other.meta["val"]

    def layout(t: torch.Tensor) -> list[int]:
        return [s for s, d in zip(t.stride(), t.shape, strict=True) if d != 1]

    return a.shape == b.shape and a.dtype == b.dtype and layout(a) == layout(b)


def _append(
    joint: Joint, update: Update, parameter: str, updates: dict[str, torch.fx.Node]
) -> Iterator[tuple[str, str, torch.fx.Node, float]]:
    graph, node = joint.graph, joint.new_parameters.get(parameter, joint.parameters[parameter])
    own = own_name(parameter)
    tag = {TAG: outside_calls(own.rpartition(".")[0])}
    first = next(iter(graph.nodes))
    state = []
    for key, value in update.state.items():
        with graph.inserting_before(first):
            placeholder = graph.placeholder(f"state_{len(graph.nodes)}")
        placeholder.meta["val"] = value
        state.append(placeholder)
        yield f"{own}/{key}", own, placeholder, update.initial[key]
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
