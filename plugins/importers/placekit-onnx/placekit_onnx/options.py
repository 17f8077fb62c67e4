"""Options of importer `onnx`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from placekit_core import Options

Dimension = Annotated[int, Field(ge=1, le=2**40)]


class OnnxOptions(Options):
    """Options of importer `onnx`."""

    path: str = Field("", description="an ONNX model (.onnx); required")
    batch: Dimension | None = Field(None, description="size of the first dimension of every input that leaves it open")
    dims: dict[str, Dimension | list[Dimension]] = Field(
        {}, description="sizes that the file leaves open: {dimension: N}, or {input: [N, ...]} for its whole shape"
    )
