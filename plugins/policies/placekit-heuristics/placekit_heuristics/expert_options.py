"""Placements that people make by hand: the policies `single_cpu`, `single_gpu`, `expert`, `data_parallel`, and their options."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from placekit_core import Options, PolicyComponent


class FallbackOptions(Options):
    """Options of policies that are not defined for every problem."""

    otherwise: Literal["error", "single_device"] = Field(
        "error",
        description="if the policy is not defined for a problem: an error, or everything on one device, with a note",
    )


class SingleTypeOptions(FallbackOptions):
    """Options of `single_cpu` and `single_gpu`."""

    device: str | None = Field(
        None,
        description="name of the device; default: the fastest of its type with memory for the parameters and state",
    )


class ExpertOptions(FallbackOptions):
    """Options of policy `expert`."""

    inception: Literal["contiguous", "branches", "single"] = Field(
        "contiguous",
        description="networks like Inception: contiguous parts of equal cost (Mirhoseini), each parallel branch on its own"
        " device (Placeto), or everything on one GPU (Post)",
    )


class DataParallelOptions(FallbackOptions):
    """Options of policy `data_parallel`."""

    parameters: str = Field(
        "cpu",
        description="where the parameters are held and updated: `cpu`, the name of a device, or `spread` over the GPUs",
    )


MIRHOSEINI = "Mirhoseini et al. 2017, Device Placement Optimization with Reinforcement Learning"

COMPONENTS = [
    PolicyComponent(
        name="single_cpu",
        summary="everything on one CPU",
        config=SingleTypeOptions,
        target="placekit_heuristics.simple:SingleCpu",
        paper=MIRHOSEINI,
    ),
    PolicyComponent(
        name="single_gpu",
        summary="everything on one GPU, except what only CPUs may run",
        config=SingleTypeOptions,
        target="placekit_heuristics.simple:SingleGpu",
        paper=MIRHOSEINI,
    ),
    PolicyComponent(
        name="expert",
        summary="the expert placement of the papers: by recurrent layers, blocks, branches, or on a single GPU",
        config=ExpertOptions,
        target="placekit_heuristics.experts:Expert",
        baseline=True,
        paper=MIRHOSEINI,
    ),
    PolicyComponent(
        name="data_parallel",
        summary="one replica of the training step per GPU, for graphs with towers",
        config=DataParallelOptions,
        target="placekit_heuristics.data_parallel:DataParallel",
        baseline=True,
        paper=MIRHOSEINI,
    ),
]
