"""The common options of all networks; imports no torch."""

from __future__ import annotations

from typing import Literal, Protocol

from pydantic import Field

from placekit_core import Options

OptimizerName = Literal[
    "rmsprop", "sgd", "adam", "fused_adam"
]  # the last has one kernel per parameter, see placekit-torch


class NetworkOptions(Options):
    """Options of all networks."""

    batch: int = Field(32, ge=1, description="examples per step")
    optimizer: OptimizerName = Field("sgd", description="optimiser of the parameters")
    mode: Literal["train", "inference"] = Field(
        "train", description="the whole training step, or the forward pass only"
    )
    seed: int = Field(0, ge=0, description="seed of the weights and inputs when the program is executed")


class ImageOptions(Protocol):
    """The options that decide how many values of a channel a step normalises."""

    mode: Literal["train", "inference"]
    batch: int
    image_size: int


def refuse_one_value(options: ImageOptions, one_pixel: bool, remedy: str) -> None:
    """Raise ValueError for a training step on one image if the network normalises a 1x1 grid, which torch refuses.

    The values of a channel are normalised over the batch and the grid; a single value has no variance.
    """
    if one_pixel and options.batch == 1 and options.mode == "train":
        raise ValueError(
            f"batch=1 with image_size={options.image_size} leaves one value per channel to a batch normalisation, "
            f"which cannot be trained: use batch >= 2, {remedy} or mode=inference"
        )
