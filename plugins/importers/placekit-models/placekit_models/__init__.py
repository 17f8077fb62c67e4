"""Importer `model`: networks by name, `model=hf:NAME mode=decode`. Importing this package imports no torch."""

from __future__ import annotations

from placekit_core import ImporterComponent, hookimpl
from placekit_models.options import SHORTHAND, ModelOptions


@hookimpl
def placekit_importers() -> list[ImporterComponent]:
    """Importer `model`."""
    return [
        ImporterComponent(
            name="model",
            summary="a network by its name: hf:, timm:, torchvision:, diffusers:, or FILE.py:FACTORY",
            config=ModelOptions,
            target="placekit_models.importer:ModelImporter",
            shorthand=SHORTHAND,
        )
    ]
