"""Options of importer `torch`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from placekit_core import ImporterOptions, Options


class Kernels(Options):
    """How a step is modelled: its kernels and its replicas; see the table in the README."""

    attention: Literal["fused", "math"] = Field(
        "fused", description="scaled-dot-product attention as one operation, or as products and softmax"
    )
    optimizer_kernels: Literal["auto", "fused", "foreach", "single"] = Field(
        "auto",
        description="updates as one kernel for all, one per operation for all, or one per operation and parameter;"
        " auto: as the optimiser was made (torch's default on GPUs is foreach)",
    )
    autocast: Literal["none", "bfloat16", "float16"] = Field(
        "none",
        description='module and loss run inside torch.autocast("cuda", ...); code that uses autocast needs no option',
    )
    fusion: Literal["none", "pointwise"] = Field(
        "none", description="pointwise: chains of pointwise operations are one operation, as torch.compile makes them"
    )
    tracer: Literal["joint", "make_fx"] = Field(
        "joint",
        description="how the step is traced: joint allows no Python value that depends on data; make_fx takes such values"
        " from a run on the example inputs with real weights",
    )
    towers: Annotated[int, Field(ge=1, le=64)] | Annotated[list[Annotated[int, Field(ge=1)]], Field(max_length=64)] = (
        Field(1, description="replicas of the step: their number, or their shares of the batch, such as [3,1]")
    )
    batch_dims: dict[str, int | None] = Field(
        {},
        description="by input (`input.0`, `target.0`), the dimension to split among replicas; null: whole; default: 0",
    )


class TorchOptions(Kernels, ImporterOptions):
    """Options of importer `torch`."""

    module: str = Field("", description="`package.module:factory`; the factory returns a `placekit_torch.Step`")
    arguments: dict[str, Any] = Field({}, description="keyword arguments for the factory")
    batches: list[Annotated[int, Field(ge=1)]] = Field(
        [], description="a program for each of these values of the factory's argument `batch`"
    )
    mode: Literal["train", "inference"] = Field(
        "train", description="the whole training step, or the forward pass only"
    )
    path: str | None = Field(None, description="folder to search for the module first; null: the current folder")
    seed: int = Field(0, ge=0, description="seed for the factory's weights and inputs")
