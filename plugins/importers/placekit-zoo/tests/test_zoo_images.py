"""The networks that classify images: published sizes, arithmetic by hand, module paths, equal to eager torch."""

from __future__ import annotations

import resource
from typing import Any

import pytest
import torch
from placekit_zoo.nasnet import FactorizedReduction, NasNet, NasNetImporter
from placekit_zoo.resnet import ResNet, ResNetImporter

from placekit_core import Graph

torch.set_num_threads(1)  # the tensors are small, and tests run side by side

SMALL = {"batch": 2, "image_size": 32, "width": 0.05, "classes": 7}
SMALL_NASNET = {**SMALL, "repeats": 1, "dropout": 0.0, "optimizer": "sgd"}

# Layers with weights of ResNet-50 (He et al. 2016, table 1; stride in the 3x3 convolution, projections last per stage):
# height and width of the output, input channels, output channels, kernel, number of such layers.
RESNET_50 = [
    (112, 3, 64, 7, 1),
    *[(56, 64, 64, 1, 1), (56, 256, 64, 1, 2), (56, 64, 64, 3, 3), (56, 64, 256, 1, 3), (56, 64, 256, 1, 1)],
    *[(56, 256, 128, 1, 1), (28, 512, 128, 1, 3), (28, 128, 128, 3, 4), (28, 128, 512, 1, 4), (28, 256, 512, 1, 1)],
    *[(28, 512, 256, 1, 1), (14, 1024, 256, 1, 5), (14, 256, 256, 3, 6), (14, 256, 1024, 1, 6), (14, 512, 1024, 1, 1)],
    *[(14, 1024, 512, 1, 1), (7, 2048, 512, 1, 2), (7, 512, 512, 3, 3), (7, 512, 2048, 1, 3), (7, 1024, 2048, 1, 1)],
    (1, 2048, 1000, 1, 1),
]


def parameters(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def products(graph: Graph, phase: int) -> float:
    """FLOPs of convolutions and matrix products."""
    chosen = graph.op_class.is_value("convolution") | graph.op_class.is_value("matmul")
    return float(graph.flops[chosen & (graph.phase == phase)].sum())


def grids(graph: Graph) -> set[tuple[int, ...]]:
    """Shapes of images without the batch."""
    shapes = (graph.shape(t) for t in range(graph.t))
    return {shape[1:] for shape in shapes if len(shape) == 4}


@pytest.mark.parametrize(
    ("depth", "count"), [(50, 25_557_032), (101, 44_549_160), (152, 60_192_808), (200, 64_666_280)]
)
def test_resnet_has_the_published_number_of_parameters(depth: int, count: int) -> None:
    with torch.device("meta"):
        assert parameters(ResNet(depth)) == count


def test_nasnet_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        assert parameters(NasNet()) == 88_753_150


@pytest.mark.slow
def test_resnet_50_has_the_arithmetic_of_its_layer_table() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = ResNetImporter(batch=32).load()[0].graph
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20  # GiB
    multiply_adds = [n * size**2 * kernel**2 * inputs * outputs for size, inputs, outputs, kernel, n in RESNET_50]
    assert sum(multiply_adds) == pytest.approx(4.1e9, rel=0.005)
    assert products(graph, 0) == 2 * 32 * sum(multiply_adds)
    # the gradients of weights and inputs cost as much each; the images need none
    assert products(graph, 1) == 2 * 32 * (2 * sum(multiply_adds) - multiply_adds[0])
    assert {(64, 112, 112), (256, 56, 56), (512, 28, 28), (1024, 14, 14), (2048, 7, 7)} <= grids(graph)
    assert not graph.op_class.is_value("other").any()
    assert graph.tensor_bytes.sum() / 2**30 > 5
    assert grown < 1


@pytest.mark.parametrize(
    ("importer", "options"),
    [
        (ResNetImporter, {**SMALL, "blocks": [1, 2, 1, 1]}),
        (ResNetImporter, {**SMALL, "blocks": [1, 2, 1, 1], "depth": 200, "optimizer": "rmsprop"}),
        pytest.param(NasNetImporter, SMALL_NASNET, marks=[pytest.mark.slow, pytest.mark.long]),
    ],
    ids=["resnet", "pre-activated", "nasnet"],
)
def test_steps_equal_eager(importer: Any, options: dict[str, Any], steps_equal_eager: Any) -> None:
    steps_equal_eager(importer, options)


def test_pre_activated_blocks_add_their_input_as_it_is() -> None:
    """Without projection and with a residual of zero, a block is the identity, for negative values too."""
    block = ResNet(200, width=0.05, blocks=(2, 1, 1, 1)).get_submodule("layer1.1")
    torch.nn.init.zeros_(block.conv3.weight)
    x = torch.randn(2, block.bn1.num_features, 4, 4)
    assert torch.equal(block(x), x)


def test_factorized_reduction_sees_every_second_pixel_and_its_diagonal_neighbour() -> None:
    reduction = FactorizedReduction(1, 2).eval()
    for path in (reduction.even, reduction.odd):
        torch.nn.init.ones_(path[1].weight)
    x = torch.arange(1.0, 10.0).reshape(1, 1, 3, 3)
    even, odd = reduction(x)[0] * (1 + reduction.bn.eps) ** 0.5
    torch.testing.assert_close(even, torch.tensor([[1.0, 3.0], [7.0, 9.0]]))
    torch.testing.assert_close(odd, torch.tensor([[5.0, 0.0], [0.0, 0.0]]))
