"""The policies `seq2seq` and `hierarchical`: recurrent networks that learn placements."""

from __future__ import annotations

from typing import Literal

from placekit_learn.torch_options import TorchPolicyOptions
from pydantic import Field, model_validator

from placekit_core import PolicyComponent, hookimpl


class NetworkOptions(TorchPolicyOptions):
    """Options that both policies share."""

    hidden: int = Field(64, ge=1, description="units of the encoder and of the decoder")
    attention: int = Field(16, ge=1, description="units of the attention's scores")
    type_size: int = Field(32, ge=1, description="length of the embedding of an operation's type")
    type_buckets: int = Field(1024, ge=1, description="number of embeddings; each type's name is hashed to one")
    outputs: int = Field(6, ge=1, description="number of a group's largest output tensors whose sizes are features")
    aligned: bool = Field(True, description="each step of the decoder also reads the encoder's output of that step")
    engine: Literal["fast", "plain"] = Field(
        "fast", description="the network of fast.py, or of network.py (`plain`); they differ in rounding and speed"
    )
    max_devices: int | None = Field(
        None, ge=1, description="devices to have room for; null: as many as the problems have"
    )

    @model_validator(mode="after")
    def _plain_on_a_gpu(self) -> NetworkOptions:
        if self.device == "cuda" and self.engine == "fast":
            raise ValueError("engine=fast is made for the caches of a CPU: device=cuda needs engine=plain")
        return self


class Seq2SeqOptions(NetworkOptions):
    """Options of policy `seq2seq`."""

    max_groups: int | None = Field(
        None, ge=1, description="groups to have room for, also in other graphs; null: as many as the problems have"
    )
    order: Literal["topological", "random"] = Field("topological", description="order of the groups in the sequence")
    orders: int | None = Field(
        None, ge=1, description="number of random orders, from which each batch takes one; null: always a new one"
    )
    order_seed: int = Field(0, ge=0, description="seed of the random orders, and of the order without exploration")


class HierarchicalOptions(NetworkOptions):
    """Options of policy `hierarchical`."""

    groups: int = Field(256, ge=1, description="largest number of groups; never more than there are operations")
    grouper_hidden: int = Field(64, ge=1, description="units of the grouper's hidden layer")
    octaves: int = Field(
        6,
        ge=0,
        le=16,
        description="the grouper sees an operation's place as this many sines and cosines, of 1, 2, 4, ... periods",
    )
    sharpness: float = Field(
        3.0,
        ge=0,
        description="spread of the grouper's first logits over the places, as a multiple of sqrt(2 ln groups);"
        " 0, or without octaves: torch's own initialization",
    )


@hookimpl
def placekit_policies() -> list[PolicyComponent]:
    return [
        PolicyComponent(
            name="seq2seq",
            summary="attentional sequence-to-sequence network: a device per group, in topological order",
            config=Seq2SeqOptions,
            target="placekit_seq2seq.seq2seq:Seq2Seq",
            paper="Mirhoseini et al. 2017, Device Placement Optimization with Reinforcement Learning",
            trainer="reinforce",
        ),
        PolicyComponent(
            name="hierarchical",
            summary="a feed-forward network that groups operations, and seq2seq over its groups",
            config=HierarchicalOptions,
            target="placekit_seq2seq.hierarchical:Hierarchical",
            paper="Mirhoseini et al. 2018, A Hierarchical Model for Device Placement",
            trainer="reinforce",
        ),
    ]
