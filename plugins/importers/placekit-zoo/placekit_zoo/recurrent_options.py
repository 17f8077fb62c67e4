"""The recurrent networks: options and components; imports no torch."""

from __future__ import annotations

from pydantic import Field

from placekit_core import ImporterComponent
from placekit_zoo.options import NetworkOptions, OptimizerName


class RecurrentOptions(NetworkOptions):
    """Common options of the recurrent networks."""

    batch: int = Field(64, ge=1, description="sequences per step")
    optimizer: OptimizerName = Field("adam", description="the paper uses adam (section 4.1)")
    layers: int = Field(2, ge=1, description="LSTM layers; in an encoder-decoder, of each half")
    hidden: int = Field(1024, ge=1, description="width of the LSTM layers")
    embedding: int | None = Field(None, ge=1, description="width of the embedding; null: as `hidden`")
    vocabulary: int = Field(32_000, ge=2, description="distinct words or word pieces")
    dropout: float = Field(
        0.2, ge=0, lt=1, description="probability of dropping a value between layers; not between steps"
    )


class RnnlmOptions(RecurrentOptions):
    """Options of `rnnlm`."""

    hidden: int = Field(2048, ge=1, description="width of the LSTM layers")
    vocabulary: int = Field(10_000, ge=2, description="distinct words; 10,000 as in Zaremba et al. 2014")
    dropout: float = Field(
        0.65, ge=0, lt=1, description="probability of dropping a value between layers; not between steps"
    )
    steps: int = Field(40, ge=1, description="words per sequence: time steps that the network is unrolled for")


class NmtOptions(RecurrentOptions):
    """Options of `nmt`."""

    length: int = Field(40, ge=1, description="word pieces in each source and each target sentence")


MIRHOSEINI = "Mirhoseini et al. 2017, Device Placement Optimization with Reinforcement Learning"

COMPONENTS = [
    ImporterComponent(
        name="rnnlm",
        summary="a recurrent language model: a grid of LSTM cells, time steps by layers",
        config=RnnlmOptions,
        target="placekit_zoo.rnnlm:RnnlmImporter",
        paper=MIRHOSEINI,
    ),
    ImporterComponent(
        name="nmt",
        summary="neural machine translation: an encoder and a decoder of LSTM cells, with attention",
        config=NmtOptions,
        target="placekit_zoo.nmt:NmtImporter",
        paper=MIRHOSEINI,
    ),
]
