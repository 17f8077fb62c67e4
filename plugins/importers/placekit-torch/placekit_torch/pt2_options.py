"""Options of importer `pt2`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from placekit_core import Options

Dimension = Annotated[int, Field(ge=0, le=2**40)]


def _only_inference(mode: Any) -> Any:
    if mode != "inference":
        raise ValueError("the file holds inference only; to train, give model=FILE.py:FUNCTION")
    return mode


Inference = Annotated[Literal["inference"], BeforeValidator(_only_inference)]


class Pt2Options(Options):
    """Options of importer `pt2`."""

    path: str = Field("", description="a program of torch.export (.pt2), as torch.export.save writes it; required")
    mode: Inference = Field("inference", description="inference: all that such a file holds")
    batch: Dimension | None = Field(None, description="size of the first dimension of every input that leaves it open")
    dims: dict[str, Dimension | list[Dimension]] = Field(
        {},
        description="other sizes than the example's: {dimension: N}, or {input: [N, ...]} for its whole shape",
    )
    attention: Literal["fused", "math"] = Field(
        "fused", description="scaled-dot-product attention as one operation, or as products and softmax"
    )
    fusion: Literal["none", "pointwise"] = Field(
        "none", description="pointwise: chains of pointwise operations are one operation, as torch.compile makes them"
    )
