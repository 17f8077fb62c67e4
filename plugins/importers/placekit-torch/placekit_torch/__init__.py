"""Importers `torch` and `pt2`: a PyTorch module's training step, or inference, as one graph.

From Python: `import_module` imports a module. Importing this package does not import torch; the function is loaded at its
first use.
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import TYPE_CHECKING, Any

from placekit_core import ImporterComponent, hookimpl
from placekit_torch.options import TorchOptions
from placekit_torch.pt2_options import Pt2Options
from placekit_torch.step import Step as Step

if TYPE_CHECKING:
    from placekit_torch.importer import import_module as import_module

_HOME = {"import_module": "importer"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'placekit_torch' has no attribute {name!r}")
    return getattr(importlib.import_module(f"placekit_torch.{_HOME[name]}"), name)


def is_pt2(head: bytes) -> bool:
    """Whether a file that begins with `head` is a zip whose first file is part of a program of torch.export.

    Files of torch.save and torch.jit.save are claimed, too: the importer says what they are.
    """
    part = rb"PK\x03\x04.{26}([^/]{1,200}/)?(data/|models/|extra/|archive_|serialized_|data\.pkl|code/)"
    return re.match(part, head, re.DOTALL) is not None


@hookimpl
def placekit_importers() -> list[ImporterComponent]:
    """Importers `torch` and `pt2`."""
    return [
        ImporterComponent(
            name="torch",
            summary="any nn.Module with inputs, loss and optimiser: a training step or inference",
            config=TorchOptions,
            target="placekit_torch.importer:TorchImporter",
            objects=("torch.nn.modules.module.Module", "placekit_torch.step.Step"),
        ),
        ImporterComponent(
            name="pt2",
            summary="inference of a program of torch.export; its weights are not read, and nothing is unpickled",
            config=Pt2Options,
            target="placekit_torch.pt2:Pt2Importer",
            files=(".pt2",),
            detect=is_pt2,
        ),
    ]


@hookimpl
def placekit_facts() -> dict[str, str | int | None]:
    """Settings that decide the numbers that torch computes, if it was imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {"torch_cuda": torch.version.cuda, "torch_threads": torch.get_num_threads()}
