"""The return value of a factory: a module with everything that one step of it needs. Imports no torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from placekit_core import ImporterError


@dataclass
class Step:
    """One training step: `optimizer` applied to the gradients of `loss(module(*inputs), *targets)`.

    Attributes:
        module: the `torch.nn.Module`.
        inputs: its arguments: a tensor, a tuple of arguments, or a dict of keyword arguments; tensors may be nested in
            tuples, lists and dicts. A tensor that occurs twice is one input.
        loss: function of the module's output and the targets that returns a scalar tensor; None if the module returns the
            loss itself. Not used for inference.
        targets: arguments of `loss` after the output: a tensor or a tuple. Not used for inference.
        optimizer: makes a `torch.optim.Optimizer` from a list of parameters; None for a step that ends with the gradients.
            Not used for inference.
    """

    module: Any
    inputs: Any
    loss: Callable[..., Any] | None = None
    targets: Any = ()
    optimizer: Callable[[Any], Any] | None = None

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of the module."""
        if isinstance(self.inputs, Mapping):
            return (), dict(self.inputs)
        return (tuple(self.inputs) if isinstance(self.inputs, tuple | list) else (self.inputs,)), {}

    @property
    def loss_arguments(self) -> tuple[Any, ...]:
        """Arguments of the loss after the module's output."""
        return tuple(self.targets) if isinstance(self.targets, tuple | list) else (self.targets,)


def refuse_keywords(
    module: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any], name: str, error: TypeError
) -> None:
    """Raise ImporterError if the call of `module` that ended in `error` gave it keywords that it does not take."""
    try:
        takes = inspect.signature(module.forward)
    except (TypeError, ValueError):
        return
    try:
        takes.bind(*arguments, **keywords)
    except TypeError as e:
        if not keywords:
            return
        raise ImporterError(
            f"{type(module).__name__}.forward({', '.join(takes.parameters)}) does not take the inputs of {name}: {e}",
            f"a dict of inputs ({', '.join(keywords)}) is keyword arguments; to give it as one argument, return"
            " (module, (dict,))",
        ) from error
