"""Options of importer `checkpoint`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from placekit_core import Options

SHORTHAND = (
    "checkpoint",
    "weights",
    "mode",
    "context",
    "batch",
    "prompt",
    "cache",
    "flash",
    "mmproj",
    "images",
    "image",
)
"""The options that command lines take without `importer.`."""


class CheckpointOptions(Options):
    """Options of importer `checkpoint`."""

    checkpoint: str = Field(
        "",
        description="hf:NAME, a folder with config.json (and safetensors files), or a GGUF file",
        examples=["hf:Qwen3-30B-A3B"],
    )
    path: str = Field("", description="a GGUF file; the same as checkpoint=FILE")
    weights: str | None = Field(
        None,
        description="format of the weights: q4_k_m, q8_0, fp8, awq, mxfp4, ...; null: as in the files, else bf16",
        examples=["q4_k_m", "q6_k", "q8_0", "iq4_xs", "f16", "fp8", "awq", "mxfp4", "nvfp4"],
    )
    mode: Literal["decode", "prompt"] = Field(
        "decode", description="decode: one token of each user; prompt: the whole prompt of each user"
    )
    context: int = Field(
        4096, ge=1, le=2**24, description="tokens that each user's cache can hold; decode reads them all"
    )
    prompt: int | None = Field(None, ge=1, le=2**24, description="mode=prompt: tokens of each user; null: the context")
    batch: int = Field(1, ge=1, le=2**16, description="users: sequences at once")
    cache: Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "fp8"] = Field(
        "f16", description="type of numbers in the cache"
    )
    flash: bool = Field(True, description="attention is one fused kernel")
    ubatch: int = Field(512, ge=1, description="most tokens of a user's prompt that are computed at once")
    images: int = Field(0, ge=0, le=1000, description="images (or 30 seconds of sound) in the prompt of each user")
    mmproj: str = Field(
        "", description="GGUF file of the tower that reads images; empty: beside the model, if images are given"
    )
    image: int | None = Field(
        None, ge=1, description="pixels of each side of an image; null: as the tower's file has it"
    )
