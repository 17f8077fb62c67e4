"""Dropout: a traced step drops the same values as eager torch with the seeds of its random operations."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from placekit_testing.sequential import run_sequential
from placekit_torch.codegen import operation_seed
from placekit_zoo.gpt import GptImporter
from placekit_zoo.inception_v3 import InceptionV3Importer
from placekit_zoo.nasnet import NasNetImporter
from placekit_zoo.nmt import NmtImporter
from placekit_zoo.rnnlm import RnnlmImporter
from torch import Tensor

torch.set_num_threads(1)  # the tensors are small, and tests run side by side

WORDS = {"batch": 3, "vocabulary": 11, "dropout": 0.5}
LONG = (pytest.mark.slow, pytest.mark.long)
IMAGES = {"batch": 2, "width": 0.05, "classes": 7, "optimizer": "sgd"}


@pytest.mark.parametrize(
    ("importer", "options", "count"),
    [
        (RnnlmImporter, {**WORDS, "hidden": 8, "steps": 2}, 6),  # two layers and the softmax, at each step
        (NmtImporter, {**WORDS, "hidden": 8, "length": 2}, 12),  # and what is fed to the decoder's first layer
        (GptImporter, {**WORDS, "embedding": 8, "heads": 2, "layers": 2, "sequence": 4}, 7),
        pytest.param(NasNetImporter, {**IMAGES, "image_size": 32, "repeats": 1, "dropout": 0.5}, 1, marks=LONG),
        pytest.param(InceptionV3Importer, {**IMAGES, "image_size": 75, "dropout": 0.5}, 1, marks=LONG),
    ],
    ids=["rnnlm", "nmt", "gpt", "nasnet", "inception_v3"],
)
def test_dropout_equals_eager(importer: Any, options: dict[str, Any], count: int) -> None:
    network = importer(**options, seed=5)
    program = network.load()[0]
    _, results = run_sequential(program, program.executable.initial(), step=1)
    torch.manual_seed(5)
    step = network.step()
    (positional, keyword), targets = step.arguments, step.loss_arguments
    random, dropout = sorted(program.executable.random_ops), F.dropout
    assert len(random) == count
    seeds = (operation_seed(1, op) for op in random)

    def seeded(x: Tensor, p: float, *_: Any) -> Tensor:
        torch.manual_seed(next(seeds))
        # for other probabilities eager torch on a CPU rounds 1 / (1 - p) otherwise than native_dropout, which is traced
        return dropout(x, p) if p == 0.5 else torch.native_dropout(x, p, True)[0]

    with mock.patch("torch.nn.functional.dropout", seeded):
        output = step.module(*positional, **keyword)
    loss = output if step.loss is None else step.loss(output, *targets)
    assert torch.equal(results["loss"], loss.detach())
    assert next(seeds, None) is None
