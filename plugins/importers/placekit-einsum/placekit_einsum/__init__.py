"""Imports tensor programs of einsum expressions, decomposed into shards. Importing this package imports no torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from placekit_core import ImporterComponent, hookimpl
from placekit_einsum.options import EinsumOptions as EinsumOptions
from placekit_einsum.program import Tensor as Tensor, TensorProgram as TensorProgram

if TYPE_CHECKING:
    from placekit_einsum.importer import import_program as import_program

_HOME = {"import_program": "importer"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'placekit_einsum' has no attribute {name!r}")
    return getattr(importlib.import_module(f"placekit_einsum.{_HOME[name]}"), name)


@hookimpl
def placekit_importers() -> list[ImporterComponent]:
    """Importer `einsum`."""
    return [
        ImporterComponent(
            name="einsum",
            summary="sharded tensor programs: chains of products, networks and transformers as einsum expressions",
            config=EinsumOptions,
            target="placekit_einsum.importer:EinsumImporter",
            paper="Yao et al. 2026, Doppler: Dual-Policy Learning for Device Assignment in Asynchronous Dataflow Graphs",
            objects=("placekit_einsum.program.TensorProgram",),
        )
    ]
