"""Options of policies in torch, in a module of their own, so that a plugin can name them without importing torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from placekit_core import LearnableOptions


class TorchOptions(LearnableOptions):
    """Options that all policies on `TorchParameters` share."""

    threads: int = Field(
        1,
        ge=1,
        description="threads that torch uses; most of the work is too small to share, and another number may change the last"
        " bits of results",
    )


class TorchPolicyOptions(TorchOptions):
    """Options that all policies on `TorchPolicy` share."""

    device: Literal["cpu", "cuda"] = Field(
        "cpu", description="where torch computes the network; results on the two differ from the first draw on"
    )
