"""Policies that are the rules of tools that people run: how each tool divides the layers of a model over devices.

The sources of all rules, with commits, are in the plugin's README.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from placekit_core import Options, PolicyComponent, hookimpl


def _comma_separated(value: Any) -> Any:
    """`"10,14"`, as the tools take it, is the list [10, 14]."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _text_keys(value: Any) -> Any:
    """`{0: 20GiB}`, as accelerate takes it, has the key `0`."""
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
        description="names of the devices to use, in the order of the tool's ranks; default: all GPUs in the machine's"
        " order, or all devices of a machine without GPUs",
    )
    otherwise: Literal["error", "single_device"] = Field(
        "error", description="where the rule gives no placement: an error, or everything on one device, with a note"
    )


class AccelerateOptions(RuleOptions):
    """Options of `accelerate_sequential`."""

    max_memory: Annotated[dict[str, Bytes], BeforeValidator(_text_keys)] | None = Field(
        None,
        description="bytes of weights for each GPU by its index, and for `cpu`, as a number or with a unit:"
        " `{0: 20GiB, 1: 10GB}`; names of devices are keys, too; one that is missing gets nothing; default: all memory",
    )
    no_split: bool = Field(
        True,
        description="keep each layer whole, as transformers does (`_no_split_modules`); false: only leaves are whole",
    )


class AccelerateAutoOptions(AccelerateOptions):
    """Options of `accelerate_auto`."""

    low_zero: bool = Field(
        False, description='put as little as possible on the first GPU (`device_map="balanced_low_0"`)'
    )


class ExoOptions(RuleOptions):
    """Options of `exo_memory`."""

    min_nodes: int = Field(1, ge=1, description="devices to use at least; exo takes the fewest that hold the weights")
    strategy: Literal["placement", "ring"] = Field(
        "placement",
        description="`placement`: exo since 1.0; `ring`: the ring of memory-weighted partitions of exo 0.0",
    )


class BandwidthOptions(RuleOptions):
    """Options of `bandwidth_share`."""

    utilization: float = Field(
        0.9, gt=0, le=1, description="share of each device's memory that parameters and state may take"
    )


class FastestOptions(BandwidthOptions):
    """Options of `fastest_first`."""

    by: Literal["bandwidth", "flops"] = Field(
        "bandwidth", description="what makes a device fast: its memory bandwidth, or its float32 rate"
    )


class LlamaCppOptions(RuleOptions):
    """Options of `llamacpp_layers`, named as llama.cpp's arguments."""

    split_mode: Literal["layer", "none"] = Field(
        "layer", description="`layer`: layers over all GPUs; `none`: all of them on `main_gpu`"
    )
    tensor_split: Annotated[list[Share], BeforeValidator(_comma_separated)] | None = Field(
        None, description="share of each GPU, such as `[3,1]`; default: in proportion to memory"
    )
    main_gpu: int = Field(0, ge=0, description="the GPU of `split_mode=none`, by its index among the devices")
    n_gpu_layers: Count | Literal["all"] = Field(
        "all", description="how many of the last layers GPUs get; the output counts as one"
    )


class VllmOptions(RuleOptions):
    """Options of `vllm_even`."""

    pipeline_parallel_size: int | None = Field(
        None, ge=1, description="stages, on the first devices; default: one for each device"
    )
    layer_partition: Annotated[list[Count], BeforeValidator(_comma_separated)] | None = Field(
        None, description="layers of each stage, as in VLLM_PP_LAYER_PARTITION, such as `[10,14]`; default: even"
    )


class TorchtitanOptions(RuleOptions):
    """Options of `torchtitan_weights`."""

    input_weight: int = Field(1, ge=0, description="how many layers the embedding counts (first_stage_less_layers)")
    output_weight: int = Field(
        1, ge=0, description="how many layers the last norm and the output count (last_stage_less_layers)"
    )
    layers_per_stage: int | None = Field(
        None, ge=1, description="layers of a stage at most; default: by the number of stages"
    )
    schedule: Literal[
        "GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"
    ] = Field(
        "1F1B", description="GPipe and 1F1B: one stage for each device; the others: two or more, the last two as a V"
    )


_SOURCES = {
    "accelerate": "huggingface/accelerate, src/accelerate/utils/modeling.py at 00cfd46",
    "exo": "exo-explore/exo, src/exo/master/placement_utils.py at 027f237",
    "bandwidth": "exo-explore/exo, issue 957 and pull request 2297",
    "fastest": "exo-explore/exo, issue 701 and pull request 1088",
    "llama.cpp": "ggml-org/llama.cpp, src/llama-model.cpp at a5410f0",
    "vllm": "vllm-project/vllm, vllm/distributed/utils.py at 5a6541d",
    "torchtitan": "pytorch/torchtitan, torchtitan/distributed/pipeline_parallel.py at 02ef790",
}


@hookimpl
def placekit_policies() -> list[PolicyComponent]:
    return [
        PolicyComponent(
            name="accelerate_auto",
            summary='accelerate\'s device_map="auto": the weights evenly over all GPUs, in order',
            config=AccelerateAutoOptions,
            target="placekit_runtimes.accelerate:AccelerateAuto",
            baseline=True,
            paper=_SOURCES["accelerate"],
        ),
        PolicyComponent(
            name="accelerate_sequential",
            summary='accelerate\'s device_map="sequential": the first GPU is filled with weights, then the next',
            config=AccelerateOptions,
            target="placekit_runtimes.accelerate:AccelerateSequential",
            paper=_SOURCES["accelerate"],
        ),
        PolicyComponent(
            name="exo_memory",
            summary="exo's rule: layers in proportion to memory, on the fewest devices that hold the weights",
            config=ExoOptions,
            target="placekit_runtimes.rules:ExoMemory",
            paper=_SOURCES["exo"],
        ),
        PolicyComponent(
            name="bandwidth_share",
            summary="layers in proportion to memory bandwidth, as far as the memory of each device allows",
            config=BandwidthOptions,
            target="placekit_runtimes.rules:BandwidthShare",
            paper=_SOURCES["bandwidth"],
        ),
        PolicyComponent(
            name="fastest_first",
            summary="the fastest device is filled to its memory, then the next one",
            config=FastestOptions,
            target="placekit_runtimes.rules:FastestFirst",
            paper=_SOURCES["fastest"],
        ),
        PolicyComponent(
            name="llamacpp_layers",
            summary="llama.cpp's rule: layers in proportion to memory or to tensor_split, the embedding on the CPU",
            config=LlamaCppOptions,
            target="placekit_runtimes.rules:LlamaCppLayers",
            paper=_SOURCES["llama.cpp"],
        ),
        PolicyComponent(
            name="vllm_even",
            summary="vLLM's rule: as many layers on every GPU; what remains goes to the middle stages",
            config=VllmOptions,
            target="placekit_runtimes.rules:VllmEven",
            paper=_SOURCES["vllm"],
        ),
        PolicyComponent(
            name="torchtitan_weights",
            summary="torchtitan's rule: even stages, where the embedding and the output count as layers",
            config=TorchtitanOptions,
            target="placekit_runtimes.rules:TorchtitanWeights",
            paper=_SOURCES["torchtitan"],
        ),
    ]
