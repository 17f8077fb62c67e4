"""Importer `torch`: a PyTorch module's training step, or inference, as one graph.

From Python: `import_module` imports a module. Importing this package does not import torch; the function is loaded at its
first use.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from placekit_core import ImporterComponent, hookimpl
from placekit_torch.options import TorchOptions
from placekit_torch.step import Step as Step

if TYPE_CHECKING:
    from placekit_torch.importer import import_module as import_module

_HOME = {"import_module": "importer"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'placekit_torch' has no attribute {name!r}")
    return getattr(importlib.import_module(f"placekit_torch.{_HOME[name]}"), name)


@hookimpl
def placekit_importers() -> list[ImporterComponent]:
    """Importer `torch`."""
    return [
        ImporterComponent(
            name="torch",
            summary="any nn.Module with inputs, loss and optimiser: a training step or inference",
            config=TorchOptions,
            target="placekit_torch.importer:TorchImporter",
            objects=("torch.nn.modules.module.Module", "placekit_torch.step.Step"),
        ),
    ]


@hookimpl
def placekit_facts() -> dict[str, str | int | None]:
    """Settings that decide the numbers that torch computes, if it was imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {"torch_cuda": torch.version.cuda, "torch_threads": torch.get_num_threads()}
