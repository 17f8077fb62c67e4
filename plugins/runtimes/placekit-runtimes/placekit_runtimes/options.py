"""Options of the policies of this package. Importing this module imports no numpy."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from placekit_core import Options


def _comma_separated(value: Any) -> Any:
    """`"10,14"`, as the runtimes take it, is the list [10, 14]."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _text_keys(value: Any) -> Any:
    """`{0: 20GiB}` has the key `"0"`: the first GPU, or the first module of a Sequential."""
    return {str(key): size for key, size in value.items()} if isinstance(value, dict) else value


_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def _bytes(value: Any) -> Any:
    """`20GiB` and `1.5 GB` as numbers of bytes."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value) if isinstance(value, str) else None
    if isinstance(value, str) and (not found or found[2].upper() not in _UNITS):
        raise ValueError("must be a number of bytes, or one with a unit such as 20GiB or 20GB")
    return int(float(found[1]) * _UNITS[found[2].upper()]) if found else value


Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=0)]


class RuleOptions(Options):
    """Options of all rules."""

    devices: list[str] | None = Field(
        None,
        min_length=1,
        description="names of the devices to use, in the order of the runtime's ranks; default: all GPUs in the"
        " machine's order, or all devices of a machine without GPUs",
    )
    otherwise: Literal["error", "single_device"] = Field(
        "error", description="where the rule gives no placement: an error, or everything on one device, with a note"
    )


class AccelerateOptions(RuleOptions):
    """Options of `accelerate_auto` and `accelerate_sequential`."""

    max_memory: Annotated[dict[str, Bytes], BeforeValidator(_text_keys)] | None = Field(
        None,
        description="bytes of weights for each GPU by its index, and for `cpu`, as a number or with a unit:"
        " `{0: 20GiB, 1: 10GB}`; names of devices are keys, too; a GPU that is missing gets nothing, a CPU 80% of its memory;"
        " default: all memory",
    )


class LlamaCppOptions(RuleOptions):
    """Options of `llamacpp_layers`, named as llama.cpp's arguments."""

    tensor_split: Annotated[list[Share], BeforeValidator(_comma_separated)] | None = Field(
        None, description="share of each GPU, such as `[3,1]`; default: in proportion to memory"
    )
    n_gpu_layers: Count | Literal["all"] = Field(
        "all", description="how many of the last layers GPUs get; the output counts as one"
    )


class VllmOptions(RuleOptions):
    """Options of `vllm_even`."""

    layer_partition: Annotated[list[Count], BeforeValidator(_comma_separated)] | None = Field(
        None, description="layers of each stage, as in VLLM_PP_LAYER_PARTITION, such as `[10,14]`; default: even"
    )


class TorchtitanOptions(RuleOptions):
    """Options of `torchtitan_weights`."""

    input_weight: int = Field(1, ge=0, description="how many layers the embedding counts (first_stage_less_layers)")
    output_weight: int = Field(
        1, ge=0, description="how many layers the last norm and the output count (last_stage_less_layers)"
    )


class GivenOptions(Options):
    """Options of policy `given`."""

    path: str | None = Field(None, description="a file with a device map, or the placement.json of a run")
    map: Annotated[dict[str, Any], BeforeValidator(_text_keys)] | None = Field(
        None, description="the device map itself: `{model.layers.0:0,lm_head:cpu}`"
    )

    @model_validator(mode="after")
    def _one(self) -> GivenOptions:
        if self.path is not None and self.map is not None:
            raise ValueError("give policy.path or policy.map, not both")
        return self
