"""The policy `gdp`, and the trainer `ppo_gdp` with smaller steps for it (Zhou et al. 2019)."""

from __future__ import annotations

from typing import Literal

from placekit_learn.options import PPOOptions
from placekit_learn.torch_options import TorchOptions
from pydantic import Field

from placekit_core import Component, PolicyComponent, hookimpl

PAPER = "Zhou et al. 2019, GDP: Generalized Device Placement for Dataflow Graphs"


class GDPOptions(TorchOptions):
    """Options of policy `gdp`."""

    hidden: int = Field(64, ge=1, description="length of a group's embedding, and units of each layer")
    rounds: int = Field(3, ge=0, description="layers of the graph network: how far a group sees along the edges")
    layers: int = Field(2, ge=1, description="layers of the placement network")
    heads: int = Field(4, ge=1, description="heads of attention; they divide `hidden`")
    segment: int = Field(
        128, ge=1, description="groups in a segment; a group attends to its own segment and the one before"
    )
    attention: bool = Field(True, description="groups attend to others; false: the ablation `gdp_no_attention`")
    superposition: bool = Field(
        True,
        description="inputs of the placement network's dense layers are scaled by the pooled embedding of the graph;"
        " false: the ablation `gdp_no_superposition`",
    )
    octaves: int = Field(
        6,
        ge=0,
        le=16,
        description="a group's place in topological order is a feature: this many sines and cosines, of 1, 2, 4, ... periods",
    )
    type_size: int = Field(16, ge=1, description="length of the embedding of an operation's type")
    type_buckets: int = Field(1024, ge=1, description="number of embeddings; each type's name is hashed to one")
    max_devices: int | None = Field(
        None, ge=1, description="devices to have room for; null: as many as the problems have"
    )


class GDPTrainerOptions(PPOOptions):
    """Options of trainer `ppo_gdp`: those of `ppo`, with a smaller step, and rewards compared within a batch."""

    baseline: Literal["average", "mean", "batch"] = Field(
        "batch",
        description="rewards are compared with the batch's mean; average: with a moving average over batches; mean: with the"
        " mean of all the program's earlier placements",
    )
    normalise: bool = Field(True, description="divide advantages by the standard deviation of the batch's rewards")
    learning_rate: float = Field(3e-4, gt=0, description="step size of the optimiser")


@hookimpl
def placekit_policies() -> list[PolicyComponent]:
    return [
        PolicyComponent(
            name="gdp",
            summary="graph network and attention that place all groups in one pass; learns for unseen graphs",
            config=GDPOptions,
            target="placekit_gdp.gdp:GDP",
            paper=PAPER,
            trainer="ppo_gdp",
        )
    ]


@hookimpl
def placekit_trainers() -> list[Component]:
    return [
        Component(
            name="ppo_gdp",
            summary="trainer ppo with smaller steps, for the network of gdp",
            config=GDPTrainerOptions,
            target="placekit_gdp.trainer:GDPTrainer",
            paper=PAPER,
        )
    ]
