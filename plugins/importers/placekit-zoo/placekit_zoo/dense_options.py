"""The networks of dense layers, transformers among them: options and components; imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from placekit_core.hookspecs import Component
from placekit_zoo.options import NetworkOptions


class MlpOptions(NetworkOptions):
    """Options of `mlp`."""

    features: int = Field(64, ge=1, description="input features")
    hidden: list[Annotated[int, Field(ge=1)]] = Field([256, 256], description="widths of the hidden layers")
    classes: int = Field(10, ge=2, description="classes")


COMPONENTS = [
    Component(
        name="mlp",
        summary="a small multi-layer perceptron, for first steps and tests",
        config=MlpOptions,
        target="placekit_zoo.mlp:MlpImporter",
    ),
]
