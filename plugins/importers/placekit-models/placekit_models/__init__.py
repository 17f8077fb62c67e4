"""Importer `model`: networks by name, `model=hf:NAME mode=decode`. Importing this package imports no torch."""

from __future__ import annotations

from placekit_core import Component, hookimpl
from placekit_models.options import SHORTHAND, ModelOptions


@hookimpl
def placekit_importers() -> list[Component]:
    """Importer `model`."""
    return [
        Component(
            name="model",
            summary="a network by its name: hf:, timm:, torchvision:, diffusers:, or FILE.py:FACTORY",
            config=ModelOptions,
            target="placekit_models.importer:ModelImporter",
            shorthand=SHORTHAND,
        )
    ]
