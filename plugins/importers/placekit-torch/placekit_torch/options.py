"""Options of importer `torch`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from placekit_core import Options


class TorchOptions(Options):
    """Options of importer `torch`."""

    module: str = Field("", description="`package.module:factory`; the factory returns a `placekit_torch.Step`")
    arguments: dict[str, Any] = Field({}, description="keyword arguments for the factory")
    mode: Literal["train", "inference"] = Field(
        "train", description="the whole training step, or the forward pass only"
    )
    path: str | None = Field(None, description="folder to search for the module first; null: the current folder")
    seed: int = Field(0, ge=0, description="seed for the factory's weights and inputs")
