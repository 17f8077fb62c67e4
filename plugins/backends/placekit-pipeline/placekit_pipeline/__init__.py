"""Pipelined execution: backends `max_load`, `blocking_latency` and `pipeline`, policy `chain`. See docs/pipelines.md."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from placekit_core import Component, Options, PolicyComponent, hookimpl

PAPER = "Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators (NeurIPS 2020)"


class LoadOptions(Options):
    """Options of backends `max_load` and `blocking_latency`."""

    threads: int | None = Field(
        default=None, ge=1, description="number of threads that evaluate a batch; null: one per core"
    )


class PipelineOptions(LoadOptions):
    """Options of backend `pipeline`; the package's README has their exact rules."""

    objective: Literal["step", "throughput", "token"] = Field(
        default="step",
        description="`step`: seconds of a whole step; `throughput`: seconds per micro-batch in the steady state; `token`:"
        " seconds of one micro-batch through all stages",
    )
    schedule: Literal["auto", "gpipe", "1f1b", "interleaved", "zero_bubble", "inference"] = Field(
        default="auto",
        description="order of a stage's tasks; `auto`: `1f1b` for a training step, `inference` for a forward pass",
    )
    microbatches: int = Field(
        default=8, ge=1, le=4096, description="micro-batches of a step; the program is one micro-batch"
    )
    checkpointing: Literal["none", "block"] = Field(
        default="none",
        description="`block`: a layer keeps only its inputs, and its backward pass repeats its forward pass",
    )
    replicas: list[list[int | str]] = Field(
        default=[],
        description="rows of devices: in each row, device j runs the work that the placement gives to device j of the first row;"
        " [[0,1],[2,3]] is two pipelines of two stages",
    )
    shares: list[int] | None = Field(
        default=None,
        description="micro-batches of each row of `replicas`; null: in proportion to the speed of the rows",
    )
    overlap: bool = Field(
        default=True,
        description="average gradients of replicas in buckets while the last backward tasks run; false: after them",
    )
    shard_optimizer: bool = Field(
        default=False, description="each replica keeps and updates only its part of the optimiser's state (ZeRO-1)"
    )


class ChainOptions(Options):
    """Options of policy `chain`."""

    otherwise: Literal["error", "single_device"] = Field(
        default="error", description="if no contiguous split is allowed or fits: an error, or everything on one device"
    )
    max_ideals: int = Field(
        default=2000,
        ge=1,
        description="most prefixes to split at, 30 times as many under `max_load`; a graph with more is split along one order"
        " of its blocks",
    )
    share: float = Field(default=1.0, gt=0, le=1, description="share of the evaluation budget that the search may use")


@hookimpl
def placekit_backends() -> list[Component]:
    """Backends for pipelined and blocking execution."""
    return [
        Component(
            "max_load",
            "pipelined execution: the largest load of a device, transfers included",
            LoadOptions,
            "placekit_pipeline.max_load:MaxLoad",
            paper=PAPER,
        ),
        Component(
            "blocking_latency",
            "one sample, each contiguous piece on an accelerator a blocking call",
            LoadOptions,
            "placekit_pipeline.blocking:BlockingLatency",
            paper=PAPER,
        ),
        Component(
            "pipeline",
            "stages over micro-batches: GPipe, 1F1B, interleaved, zero bubble, inference",
            PipelineOptions,
            "placekit_pipeline.pipeline:Pipeline",
            paper="Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters (SC 2021), section 2.2",
        ),
    ]


@hookimpl
def placekit_policies() -> list[PolicyComponent]:
    """Policy `chain`."""
    return [
        PolicyComponent(
            "chain",
            "the best contiguous split of the blocks over devices in any order, with a proof where it can",
            ChainOptions,
            "placekit_pipeline.chain:ChainPolicy",
            paper=PAPER,
        )
    ]
