"""The networks of dense layers, transformers among them: options and components; imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from placekit_core import ImporterComponent
from placekit_zoo.options import NetworkOptions, OptimizerName


class MlpOptions(NetworkOptions):
    """Options of `mlp`."""

    features: int = Field(64, ge=1, description="input features")
    hidden: list[Annotated[int, Field(ge=1)]] = Field([256, 256], description="widths of the hidden layers")
    classes: int = Field(10, ge=2, description="classes")


class FfnnOptions(NetworkOptions):
    """Options of `ffnn`."""

    batch: int = Field(2**15, ge=1, description="rows of the input")
    mode: Literal["train", "inference"] = Field("inference", description="the paper uses the forward pass")
    features: int = Field(2**5, ge=1, description="columns of the input")
    hidden: int = Field(2**16, ge=1, description="width of the hidden layer")
    classes: int = Field(2**5, ge=2, description="columns of the output")


class LlamaBlockOptions(NetworkOptions):
    """Options of `llama_block`."""

    batch: int = Field(1, ge=1, description="sequences per step")
    mode: Literal["train", "inference"] = Field("inference", description="the paper uses the forward pass")
    embedding: int = Field(4096, ge=1, description="width of the embedding")
    heads: int = Field(32, ge=1, description="attention heads; must divide the embedding into even widths")
    sequence: int = Field(4096, ge=1, description="tokens per sequence")

    @model_validator(mode="after")
    def _heads_fit(self) -> LlamaBlockOptions:
        if self.embedding % (2 * self.heads):
            raise ValueError(f"heads={self.heads} does not divide embedding={self.embedding} into even widths")
        return self


class LlamaLayerOptions(LlamaBlockOptions):
    """Options of `llama_layer`."""

    feed_forward: int = Field(11008, ge=1, description="width of the feed-forward network")


class GptOptions(NetworkOptions):
    """Options of `gpt`; the defaults are GPT-2 small."""

    batch: int = Field(8, ge=1, description="sequences per step")
    optimizer: OptimizerName = Field("adam", description="optimiser of the parameters")
    dtype: Literal["float32", "float16", "bfloat16"] = Field("float32", description="number type of the parameters")
    fused_softmax: bool = Field(
        False, description="one kernel for the attention's scale, mask and softmax, as in Megatron"
    )
    layers: int = Field(12, ge=1, description="transformer blocks")
    embedding: int = Field(768, ge=1, description="width of the embedding")
    heads: int = Field(12, ge=1, description="attention heads; must divide the embedding")
    sequence: int = Field(1024, ge=1, description="tokens per sequence")
    vocabulary: int = Field(50257, ge=2, description="distinct tokens")
    dropout: float = Field(0.1, ge=0, le=1, description="probability of dropping a value, at all places")
    tied: bool = Field(True, description="one matrix for token embedding and output; false: two, as stages hold them")

    @model_validator(mode="after")
    def _heads_fit(self) -> GptOptions:
        if self.embedding % self.heads:
            raise ValueError(f"heads={self.heads} does not divide embedding={self.embedding}")
        return self


DOPPLER = "Yao et al. 2026, Doppler: Dual-Policy Learning for Device Assignment in Asynchronous Dataflow Graphs"

COMPONENTS = [
    ImporterComponent(
        name="mlp",
        summary="a small multi-layer perceptron, for first steps and tests",
        config=MlpOptions,
        target="placekit_zoo.mlp:MlpImporter",
    ),
    ImporterComponent(
        name="ffnn",
        summary="a feed-forward network with one wide hidden layer",
        config=FfnnOptions,
        target="placekit_zoo.ffnn:FfnnImporter",
        paper=DOPPLER,
    ),
    ImporterComponent(
        name="llama_block",
        summary="the attention block of a Llama-7B layer",
        config=LlamaBlockOptions,
        target="placekit_zoo.llama:LlamaBlockImporter",
        paper=DOPPLER,
    ),
    ImporterComponent(
        name="llama_layer",
        summary="one layer of Llama-7B: attention and feed-forward",
        config=LlamaLayerOptions,
        target="placekit_zoo.llama:LlamaLayerImporter",
        paper=DOPPLER,
    ),
    ImporterComponent(
        name="gpt",
        summary="a decoder of GPT-2's architecture and of any size",
        config=GptOptions,
        target="placekit_zoo.gpt:GptImporter",
        paper="Radford et al. 2019, Language Models are Unsupervised Multitask Learners",
    ),
]
