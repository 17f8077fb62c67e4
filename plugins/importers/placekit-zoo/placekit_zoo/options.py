"""What the options of all networks share; imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from placekit_core.interfaces import Options


class NetworkOptions(Options):
    """What all networks have."""

    batch: int = Field(32, ge=1, description="examples per step")
    optimizer: Literal["rmsprop", "sgd", "adam"] = Field("sgd", description="what updates the parameters")
    mode: Literal["train", "inference"] = Field(
        "train", description="the whole training step, or the forward pass only"
    )
    seed: int = Field(0, ge=0, description="seed of the weights and inputs when the program is executed")
