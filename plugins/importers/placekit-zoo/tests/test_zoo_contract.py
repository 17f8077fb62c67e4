"""The networks keep the contract of importers: `mlp` in full, the others, which share its base class, in short."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from placekit_testing import ImporterContract
from placekit_testing.contract import Make
from placekit_testing.speed import mostly_slow
from placekit_zoo.ffnn import FfnnImporter
from placekit_zoo.gpt import GptImporter
from placekit_zoo.inception_v3 import InceptionV3Importer
from placekit_zoo.llama import LlamaBlockImporter, LlamaLayerImporter
from placekit_zoo.mlp import MlpImporter
from placekit_zoo.nasnet import NasNetImporter
from placekit_zoo.nmt import NmtImporter
from placekit_zoo.placeto import PlacetoCifar10, PlacetoNmt
from placekit_zoo.resnet import ResNetImporter
from placekit_zoo.rnnlm import RnnlmImporter

torch.set_num_threads(1)  # the tensors are small, and tests run side by side

LSTM = {"hidden": 4, "vocabulary": 5}
IMAGES = {"batch": 2, "width": 0.05, "classes": 3, "optimizer": "sgd"}
LLAMA = {"embedding": 16, "heads": 2, "sequence": 6}
NETWORKS = {
    "ffnn": partial(FfnnImporter, batch=8, features=4, hidden=16, classes=3),
    "llama_block": partial(LlamaBlockImporter, **LLAMA),
    "llama_layer": partial(LlamaLayerImporter, **LLAMA, feed_forward=24),
    "gpt": partial(GptImporter, batch=2, layers=1, embedding=16, heads=2, sequence=6, vocabulary=11, optimizer="sgd"),
    "rnnlm": partial(RnnlmImporter, **LSTM, batch=2, steps=2),
    "nmt": partial(NmtImporter, **LSTM, batch=2, layers=1, length=2),
    "inception_v3": partial(InceptionV3Importer, **IMAGES, image_size=75, mode="inference"),
    "resnet": partial(ResNetImporter, **IMAGES, image_size=32, blocks=[1, 1, 1, 1]),
    "nasnet": partial(NasNetImporter, **IMAGES, image_size=32, repeats=1, mode="inference"),
    "placeto_cifar10": partial(
        PlacetoCifar10, nodes=(1, 2), cells=(1, 1), widths=[4, 8], batch=2, image_size=8, graphs=1, train=0
    ),
    "placeto_nmt": partial(
        PlacetoNmt, **LSTM, graphs=1, train=1, lengths=(1, 1), batches=(2, 3), batch_step=1, layers=1
    ),
}


class TestMlp(ImporterContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(MlpImporter, batch=4, hidden=[8], optimizer="adam")


class TestNetworks(ImporterContract):
    short = True

    @pytest.fixture(params=mostly_slow(NETWORKS, ["ffnn", "rnnlm"], ["inception_v3", "nasnet"]))
    def make(self, request: pytest.FixtureRequest) -> Make:
        return NETWORKS[request.param]
