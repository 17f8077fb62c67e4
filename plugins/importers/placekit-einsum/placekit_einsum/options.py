"""Options of importer `einsum`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from placekit_core import Options

Dtype = Literal["float32", "float64", "float16", "bfloat16"]
Count = Annotated[int, Field(ge=1)]

SIZES: dict[str, dict[str, int]] = {
    "chainmm": {"n": 10_000},
    "ffnn": {"rows": 2**15, "features": 2**5, "hidden": 2**16, "classes": 2**5},
    "llama_block": {"sequence": 4096, "embedding": 4096, "heads": 32},
    "llama_layer": {"sequence": 4096, "embedding": 4096, "heads": 32, "feed_forward": 11008},
}
"""Default sizes of each program: the paper's values (Doppler, appendix C)."""


class EinsumOptions(Options):
    """Options of importer `einsum`."""

    program: Literal["chainmm", "ffnn", "llama_block", "llama_layer"] = Field(
        "chainmm", description="the tensor program"
    )
    devices: Literal[4, 8] = Field(4, description="number of devices that it is decomposed for")
    sizes: dict[str, Count] = Field({}, description="sizes that differ from the paper's, by name")
    parts: dict[str, dict[str, Count]] = Field(
        {}, description="another decomposition: parts by tensor and dimension, e.g. `DE: {i: 2, k: 4, j: 2}`"
    )
    biases: bool = Field(False, description="ffnn: with biases, which the paper's graph lacks")
    dtype: Dtype = Field("float32", description="type of the numbers")
    seed: int = Field(0, ge=0, description="seed of the inputs when the program is executed")

    @model_validator(mode="after")
    def _known(self) -> EinsumOptions:
        known = SIZES[self.program]
        wrong = next((name for name in self.sizes if name not in known), None)
        if wrong is not None:
            raise ValueError(f"{self.program} has no size {wrong!r}; its sizes: {', '.join(known)}")
        if self.biases and self.program != "ffnn":
            raise ValueError(f"biases are for ffnn; {self.program} has none")
        return self
