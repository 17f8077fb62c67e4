"""Options of importer `model`; imports no torch."""

from __future__ import annotations

from typing import Literal

from placekit_torch.options import Kernels
from pydantic import Field

from placekit_core import ImporterOptions, Options
from placekit_models.shipped import full_names

EXAMPLES = [*full_names(), "timm:vit_base_patch16_224", "torchvision:resnet50"]
SHORTHAND = ("model", "mode", "batch", "context", "dtype", "weights", "image")
"""The options that command lines take without `importer.`."""


class ModelOptions(Kernels, ImporterOptions):
    """Options of importer `model`."""

    model: str = Field(
        "",
        description="hf:NAME, hf:FOLDER, timm:NAME, torchvision:NAME, diffusers:NAME or FILE.py:FACTORY; docs/models.md",
        examples=EXAMPLES,
    )
    mode: Literal["train", "inference", "prefill", "decode"] | None = Field(
        None,
        description="null: decode for networks that generate text, train for FILE.py:FACTORY, else inference",
    )
    batch: int = Field(1, ge=1, description="sequences or images per step")
    context: int | None = Field(
        None,
        ge=1,
        description="tokens per sequence, for decode those in the cache; null: as many as the network takes, up to 2048",
    )
    dtype: Literal["float32", "float16", "bfloat16"] | None = Field(
        None, description="number type of weights and activations; null: as in the configuration, else float32"
    )
    weights: str | None = Field(
        None,
        description="storage of the weights of linear layers and experts: int8 or int4; null: as in the configuration, else"
        " dtype. Other formats: importer checkpoint",
        examples=["int8", "int4"],
    )
    image: int | None = Field(
        None, ge=1, description="height and width of images; null: the network's own size, no image beside text"
    )
    seed: int = Field(0, ge=0, description="seed of weights and inputs when the program is executed")


class Asked(Options):
    """The user's options, for the modules that build networks."""

    name: str
    mode: Literal["train", "inference", "prefill", "decode"] | None
    batch: int
    context: int | None
    dtype: str | None
    weights: Literal["int8", "int4"] | None
    image: int | None
