"""The common options of all networks; imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from placekit_core import ImporterOptions

OptimizerName = Literal["rmsprop", "sgd", "adam", "fused_adam"]
"""`fused_adam` runs one kernel per parameter, see placekit-torch."""


class NetworkOptions(ImporterOptions):
    """Options of all networks."""

    batch: int = Field(32, ge=1, description="examples per step")
    optimizer: OptimizerName = Field("sgd", description="optimiser of the parameters")
    mode: Literal["train", "inference"] = Field(
        "train", description="the whole training step, or the forward pass only"
    )
    seed: int = Field(0, ge=0, description="seed of the weights and inputs when the program is executed")
