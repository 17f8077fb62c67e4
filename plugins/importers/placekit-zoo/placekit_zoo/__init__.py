"""The networks of the device placement literature, one importer each. Importing this module imports no torch."""

from __future__ import annotations

from placekit_core.hookspecs import Component, hookimpl
from placekit_zoo.options import InceptionV3Options, MlpOptions

__all__ = ["InceptionV3Options", "MlpOptions"]


@hookimpl
def placekit_importers() -> list[Component]:
    """One importer per network."""
    return [
        Component(
            name="inception_v3",
            summary="Inception-V3, the image classifier of the device placement papers",
            config=InceptionV3Options,
            target="placekit_zoo.inception_v3:InceptionV3Importer",
            paper="Szegedy et al. 2016, Rethinking the Inception Architecture for Computer Vision",
        ),
        Component(
            name="mlp",
            summary="a small multi-layer perceptron, for first steps and tests",
            config=MlpOptions,
            target="placekit_zoo.mlp:MlpImporter",
        ),
    ]
