"""Options of the networks; imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from placekit_core.interfaces import Options


class NetworkOptions(Options):
    """What all networks have."""

    batch: int = Field(32, ge=1, description="examples per step")
    optimizer: Literal["rmsprop", "sgd", "adam"] = Field("sgd", description="what updates the parameters")
    mode: Literal["train", "inference"] = Field(
        "train", description="the whole training step, or the forward pass only"
    )
    seed: int = Field(0, ge=0, description="seed of the weights and inputs when the program is executed")


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


class MlpOptions(NetworkOptions):
    """Options of `mlp`."""

    features: int = Field(64, ge=1, description="input features")
    hidden: list[Annotated[int, Field(ge=1)]] = Field([256, 256], description="widths of the hidden layers")
    classes: int = Field(10, ge=2, description="classes")
