"""The networks that classify images: options and components; imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from placekit_core import ImporterComponent
from placekit_zoo.options import NetworkOptions, OptimizerName


class InceptionV3Options(NetworkOptions):
    """Options of `inception_v3`."""

    optimizer: OptimizerName = Field("rmsprop", description="the paper uses rmsprop (section 8)")
    image_size: int = Field(299, ge=75, description="height and width in pixels")
    classes: int = Field(1000, ge=2, description="classes")
    dropout: float = Field(0.5, ge=0, le=1, description="probability of dropping a feature before the classifier")
    width: float = Field(1.0, gt=0, description="factor of all channel counts, for small variants")


class ResNetOptions(NetworkOptions):
    """Options of `resnet`."""

    depth: Literal[50, 101, 152, 200] = Field(
        50, description="layers: 50, 101 and 152 of He et al. 2016, 200 pre-activated (He et al. 2016b)"
    )
    image_size: int = Field(224, ge=32, description="height and width in pixels")
    classes: int = Field(1000, ge=2, description="classes")
    width: float = Field(1.0, gt=0, description="factor of all channel counts, for small variants")
    blocks: tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt] | None = Field(
        None, description="blocks per stage instead of those of `depth`, for small variants"
    )


class NasNetOptions(NetworkOptions):
    """Options of `nasnet`."""

    batch: int = Field(16, ge=1, description="examples per step; 16 per replica in the published code")
    optimizer: OptimizerName = Field("rmsprop", description="rmsprop as in the published code")
    image_size: int = Field(331, ge=32, description="height and width in pixels")
    classes: int = Field(1000, ge=2, description="classes")
    dropout: float = Field(0.5, ge=0, le=1, description="probability of dropping a feature before the classifier")
    repeats: int = Field(6, ge=1, description="normal cells per stage, N in the paper")
    width: float = Field(1.0, gt=0, description="factor of all channel counts, for small variants")


COMPONENTS = [
    ImporterComponent(
        name="inception_v3",
        summary="Inception-V3, the image classifier of the device placement papers",
        config=InceptionV3Options,
        target="placekit_zoo.inception_v3:InceptionV3Importer",
        paper="Szegedy et al. 2016, Rethinking the Inception Architecture for Computer Vision",
    ),
    ImporterComponent(
        name="resnet",
        summary="residual networks of depth 50, 101, 152 and 200",
        config=ResNetOptions,
        target="placekit_zoo.resnet:ResNetImporter",
        paper="He et al. 2016, Deep Residual Learning for Image Recognition",
    ),
    ImporterComponent(
        name="nasnet",
        summary="NASNet-A large, image classifier of cells that were found by search",
        config=NasNetOptions,
        target="placekit_zoo.nasnet:NasNetImporter",
        paper="Zoph et al. 2018, Learning Transferable Architectures for Scalable Image Recognition",
    ),
]
