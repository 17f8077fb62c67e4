"""Families of graphs, and graphs with a known optimum: options and components; imports no torch."""

from __future__ import annotations

from itertools import product
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from placekit_core import ImporterComponent, Options

PLACETO = "Addanki et al. 2019, Placeto: Learning Generalizable Device Placement Algorithms for Distributed ML"
LARGEST, MOST_INPUTS = 2**22, 2**24  # most operations of a planted graph (a graph file holds as many), and most inputs
ENAS = "Pham et al. 2018, Efficient Neural Architecture Search via Parameter Sharing"


def _ascending(ends: tuple[int, int]) -> tuple[int, int]:
    if ends[0] > ends[1]:
        raise ValueError("the first must not be above the second")
    return ends


_Positive = Annotated[int, Field(ge=1)]
Range = Annotated[tuple[_Positive, _Positive], AfterValidator(_ascending)]


class FamilyOptions(Options):
    """Options of all families."""

    graphs: int = Field(32, ge=1, description="members")
    train: int = Field(16, ge=0, description="members for training; the others are for testing")
    only: int | None = Field(None, ge=0, description="number of the only member to load; null: all members")
    family_seed: int = Field(0, ge=0, description="seed of the sampling and of the split")
    optimizer: Literal["rmsprop", "sgd", "adam"] = Field("sgd", description="optimiser of the parameters")
    mode: Literal["train", "inference"] = Field(
        "train", description="the whole training step, or the forward pass only"
    )
    seed: int = Field(0, ge=0, description="seed of the weights and inputs when a program is executed")

    @model_validator(mode="after")
    def _members_exist(self) -> FamilyOptions:
        if self.train > self.graphs:
            raise ValueError(f"train={self.train} is more than graphs={self.graphs}")
        if self.only is not None and self.only >= self.graphs:
            raise ValueError(f"only={self.only}: members are 0..{self.graphs - 1}")
        return self


class PlacetoCifar10Options(FamilyOptions):
    """Options of `placeto_cifar10`."""

    nodes: Range = Field((5, 9), description="range of the number of nodes of a cell, besides its two inputs")
    cells: Range = Field((2, 4), description="range of the number of convolution cells between reductions")
    widths: list[Annotated[int, Field(ge=2, multiple_of=2)]] = Field(
        [20, 28, 36, 44], min_length=1, description="channels of a cell's nodes, before the first reduction"
    )
    batch: int = Field(128, ge=1, description="images per step")
    image_size: int = Field(32, ge=4, description="height and width")
    classes: int = Field(10, ge=2, description="classes")


class PlacetoPtbOptions(FamilyOptions):
    """Options of `placeto_ptb`."""

    nodes: Range = Field((8, 12), description="range of the number of nodes of the cell")
    steps: Range = Field((20, 40), description="range of the number of steps that the cell is unrolled for")
    batch: int = Field(64, ge=1, description="sequences per step")
    hidden: int = Field(748, ge=1, description="width of cell and embedding")
    vocabulary: int = Field(10_000, ge=2, description="distinct words")


class PlacetoNmtOptions(FamilyOptions):
    """Options of `placeto_nmt`."""

    lengths: Range = Field((16, 48), description="range of the word pieces in a sentence")
    batches: Range = Field((32, 256), description="range of the sentences per step, in multiples of `batch_step`")
    batch_step: int = Field(16, ge=1, description="batches differ by multiples of this")
    optimizer: Literal["rmsprop", "sgd", "adam"] = Field("adam", description="as in `nmt`")
    layers: int = Field(2, ge=1, description="LSTM layers of encoder and decoder, each")
    hidden: int = Field(1024, ge=1, description="width of the LSTM layers")
    vocabulary: int = Field(32_000, ge=2, description="word pieces")
    dropout: float = Field(0.2, ge=0, lt=1, description="as in `nmt`")

    def pairs(self) -> list[tuple[int, int]]:
        """All (length, batch) that members may have."""
        lengths, batches = range(self.lengths[0], self.lengths[1] + 1), range(self.batches[0], self.batches[1] + 1)
        return list(product(lengths, batches[:: self.batch_step]))

    @model_validator(mode="after")
    def _enough_pairs(self) -> PlacetoNmtOptions:
        if self.graphs > len(self.pairs()):
            raise ValueError(f"there are {len(self.pairs())} pairs of lengths and batches for {self.graphs} graphs")
        return self


class PlantedOptions(Options):
    """Options of `planted`; the graph has `layers * devices * strands * width` operations."""

    layers: int = Field(8, ge=2, description="layers; each takes 1/1024 s in the optimal schedule")
    devices: int = Field(4, ge=2, le=64, description="devices of the program's machine")
    strands: int = Field(2, ge=1, le=16, description="strands per device; the optimum keeps each strand together")
    width: int = Field(3, ge=3, le=16, description="operations per layer of a strand; with two devices at least 5")
    reads: int = Field(1, ge=0, description="light tensors that an operation reads from other devices")
    communication: float = Field(
        2.0, ge=1.5, le=1024, description="time to send a heavy tensor, in layers; a light one takes less than a layer"
    )
    speeds: list[Literal[1, 2, 4, 8]] = Field(
        [1], min_length=1, description="speeds of the devices, repeated in turn: `[1, 2]` alternates"
    )
    seed: int = Field(0, ge=0, description="seed of the graph")

    @model_validator(mode="after")
    def _scatters(self) -> PlantedOptions:
        if self.devices == 2 and self.width < 5:
            raise ValueError("with two devices width must be at least 5: a narrower strand may stay together by chance")
        operations = self.layers * self.devices * self.strands * self.width
        if operations > LARGEST:
            raise ValueError(
                f"these are {operations:,} operations (layers × devices × strands × width), more than {LARGEST:,}"
            )
        others = (self.devices - 1) * self.strands * self.width
        inputs = operations * (self.width + min(self.reads, others))
        if inputs > MOST_INPUTS:
            raise ValueError(f"the operations read {inputs:,} tensors (width + reads each), more than {MOST_INPUTS:,}")
        return self


COMPONENTS: list[ImporterComponent] = [
    ImporterComponent(
        name="placeto_cifar10",
        summary="Placeto's family cifar10: image classifiers of cells sampled as in ENAS",
        config=PlacetoCifar10Options,
        target="placekit_zoo.placeto:PlacetoCifar10",
        paper=f"{PLACETO}; {ENAS}",
    ),
    ImporterComponent(
        name="placeto_ptb",
        summary="Placeto's family ptb: language models of recurrent cells sampled as in ENAS",
        config=PlacetoPtbOptions,
        target="placekit_zoo.placeto:PlacetoPtb",
        paper=f"{PLACETO}; {ENAS}",
    ),
    ImporterComponent(
        name="placeto_nmt",
        summary="Placeto's family nmt: translation models of several lengths and batches",
        config=PlacetoNmtOptions,
        target="placekit_zoo.placeto:PlacetoNmt",
        paper=PLACETO,
    ),
    ImporterComponent(
        name="planted",
        summary="layered graphs whose optimal makespan is known, and which list schedulers miss",
        config=PlantedOptions,
        target="placekit_zoo.planted:PlantedImporter",
    ),
]
