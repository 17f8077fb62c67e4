"""The networks that classify images: options and components; imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from placekit_core.hookspecs import Component
from placekit_zoo.options import NetworkOptions


class InceptionV3Options(NetworkOptions):
    """Options of `inception_v3`."""

    optimizer: Literal["rmsprop", "sgd", "adam"] = Field("rmsprop", description="the paper's is rmsprop (section 8)")
    image_size: int = Field(299, ge=75, description="height and width in pixels")
    classes: int = Field(1000, ge=2, description="classes")
    aux: bool = Field(False, description="with the auxiliary classifier (section 4); its loss has weight 0.4")
    dropout: float = Field(0.5, ge=0, le=1, description="probability of dropping a feature before the classifier")
    width: float = Field(1.0, gt=0, description="factor of all channel counts, for small variants")

    @model_validator(mode="after")
    def _aux_fits(self) -> InceptionV3Options:
        if self.aux and self.image_size < 299:
            raise ValueError("the auxiliary classifier needs image_size >= 299")
        return self


COMPONENTS = [
    Component(
        name="inception_v3",
        summary="Inception-V3, the image classifier of the device placement papers",
        config=InceptionV3Options,
        target="placekit_zoo.inception_v3:InceptionV3Importer",
        paper="Szegedy et al. 2016, Rethinking the Inception Architecture for Computer Vision",
    ),
]
