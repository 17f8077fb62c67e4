"""The networks of the zoo: as large as published, equal to eager torch, without memory."""

from __future__ import annotations

import resource
from typing import Any

import pytest
import torch
from placekit_zoo.inception_v3 import InceptionV3, InceptionV3Importer
from placekit_zoo.mlp import MlpImporter

torch.set_num_threads(1)  # the tensors are small, and tests run side by side

SMALL = {"batch": 2, "image_size": 75, "width": 0.1, "classes": 7, "dropout": 0.0}


def test_inception_v3_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        module = InceptionV3()
    assert sum(p.numel() for p in module.parameters()) == 23_834_568


@pytest.mark.slow
def test_inception_v3_has_the_published_arithmetic_and_modules() -> None:
    program = InceptionV3Importer(mode="inference", batch=1).load()[0]
    graph = program.graph
    products = graph.op_class.is_value("convolution") | graph.op_class.is_value("matmul")
    assert graph.flops[products].sum() / 2 == pytest.approx(5.71e9, rel=0.002)  # multiply-adds
    assert graph.op_class.is_value("convolution").sum() == 94
    assert "Mixed_5b.branch1x1.conv/convolution" in graph.op_name
    sizes = {graph.shape(int(t))[1:] for t in range(graph.t) if len(graph.shape(int(t))) == 4}
    assert {(288, 35, 35), (768, 17, 17), (2048, 8, 8)} <= sizes


@pytest.mark.slow
def test_inception_v3_training_step_is_large_and_takes_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    program = InceptionV3Importer(optimizer="adam").load()[0]
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20  # GiB
    graph = program.graph
    assert graph.attributes["traced_operations"] == pytest.approx(7342, rel=0.02)
    assert graph.attributes["kernels"] == pytest.approx(6143, rel=0.02)
    assert graph.tensor_bytes.sum() / 2**30 > 10
    assert grown < 1
    assert graph.flops[graph.phase < 2].sum() / graph.flops[graph.phase == 0].sum() == pytest.approx(3, rel=0.02)
    assert not graph.op_class.is_value("other").any()


@pytest.mark.parametrize(
    ("importer", "options"),
    [
        pytest.param(
            InceptionV3Importer, {**SMALL, "optimizer": "rmsprop"}, marks=[pytest.mark.slow, pytest.mark.long]
        ),
        (MlpImporter, {"optimizer": "sgd"}),
        (MlpImporter, {"optimizer": "adam", "hidden": [8]}),
        (MlpImporter, {"optimizer": "rmsprop", "hidden": []}),
    ],
)
def test_steps_equal_eager(importer: Any, options: dict[str, Any], steps_equal_eager: Any) -> None:
    steps_equal_eager(importer, options)
