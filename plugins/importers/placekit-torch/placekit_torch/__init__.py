"""Imports PyTorch modules: the whole training step, or inference, as one graph. Importing this module imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from placekit_core.hookspecs import Component, hookimpl
from placekit_core.interfaces import Options
from placekit_torch.step import Step

if TYPE_CHECKING:
    from placekit_core.problem import Program

__all__ = ["Step", "TorchOptions", "import_module"]


class TorchOptions(Options):
    """Options of importer `torch`."""

    module: str = Field("", description="`package.module:factory`; the factory returns a `placekit_torch.Step`")
    arguments: dict[str, Any] = Field({}, description="keyword arguments for the factory")
    mode: Literal["train", "inference"] = Field(
        "train", description="the whole training step, or the forward pass only"
    )
    path: str | None = Field(
        None, description="folder in which the module is looked for first; the current one if null"
    )
    seed: int = Field(0, ge=0, description="seed under which the factory builds weights and inputs")


def import_module(
    module: Any,
    inputs: Any,
    *,
    loss: Callable[..., Any] | None = None,
    targets: Any = (),
    optimizer: Callable[[Any], Any] | None = None,
    mode: Literal["train", "inference"] = "train",
    name: str | None = None,
) -> Program:
    """The program of a real `torch.nn.Module`, which is not modified; the arguments are those of `Step`.

    `program.executable.initial()` gives copies of the module's own weights and of these inputs. It has no recipe: another
    process cannot rebuild it. Raises ImporterError for a module that cannot be traced, naming the line.
    """
    from placekit_torch.importer import import_given

    return import_given(Step(module, inputs, loss, targets, optimizer), mode=mode, name=name)


@hookimpl
def placekit_importers() -> list[Component]:
    """Importer `torch`."""
    return [
        Component(
            name="torch",
            summary="any nn.Module with inputs, loss and optimiser: a training step or inference",
            config=TorchOptions,
            target="placekit_torch.importer:TorchImporter",
            objects=("torch.nn.modules.module.Module", "placekit_torch.step.Step"),
        )
    ]
