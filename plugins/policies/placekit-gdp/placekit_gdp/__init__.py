"""The policy `gdp` (Zhou et al. 2019)."""

from __future__ import annotations

from placekit_learn.torch_options import TorchPolicyOptions
from pydantic import Field

from placekit_core import PolicyComponent, hookimpl


class GDPOptions(TorchPolicyOptions):
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


@hookimpl
def placekit_policies() -> list[PolicyComponent]:
    return [
        PolicyComponent(
            name="gdp",
            summary="graph network and attention that place all groups in one pass; learns for unseen graphs",
            config=GDPOptions,
            target="placekit_gdp.gdp:GDP",
            paper="Zhou et al. 2019, GDP: Generalized Device Placement for Dataflow Graphs",
            trainer="ppo",
            trainer_options={"baseline": "batch", "normalise": True, "learning_rate": 3e-4},
        )
    ]
