"""Nine networks of the onnx package, imported and placed: multiply-adds and parameters are the published ones."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper, shape_inference
from placekit_onnx.importer import OnnxImporter

from placekit_core import Graph, place

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NAMES = sorted(path.stem.removeprefix("light_") for path in LIGHT.glob("*.onnx"))
PUBLISHED: dict[str, tuple[float, int]] = {
    "bvlc_alexnet": (0.654e9, 60_965_224),
    "densenet121": (2.83e9, 7_978_856),
    "inception_v1": (1.43e9, 6_998_552),
    "resnet50": (4.09e9, 25_557_032),
    "squeezenet": (0.349e9, 1_235_496),
    "vgg19": (19.63e9, 143_667_240),
}
"""Multiply-adds of products and convolutions, and parameters, where they are published: torchvision's table of models for
densenet121, resnet50 and vgg19 (`GFLOPS` counts multiply-adds); Caffe's models for AlexNet and GoogLeNet without auxiliary heads;
SqueezeNet 1.1's paper and code."""


def load(name: str) -> Graph:
    [program] = OnnxImporter(path=str(LIGHT / f"light_{name}.onnx")).load()
    return program.graph


def products(graph: Graph) -> float:
    """FLOPs of products and convolutions."""
    heavy = [c in ("matmul", "convolution") for c in graph.op_class.tolist()]
    return float(graph.flops[heavy].sum())


def multiply_adds(name: str) -> int:
    """Multiply-adds of a file, counted in another way: from shape inference of the whole file, by output and weight."""
    model = shape_inference.infer_shapes(onnx.load(str(LIGHT / f"light_{name}.onnx")), data_prop=True)
    shapes: dict[str, list[int]] = {}
    for value in [*model.graph.input, *model.graph.value_info, *model.graph.output]:
        shapes[value.name] = [d.dim_value for d in value.type.tensor_type.shape.dim]
    total = 0
    for node in model.graph.node:
        given: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Conv":
            total += math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[1]][1:])
        elif node.op_type == "Gemm":
            a, b = shapes[node.input[0]], shapes[node.input[1]]
            rows, inner = a[::-1] if given.get("transA") else a
            total += rows * inner * (b[0] if given.get("transB") else b[1])
    return total


@pytest.mark.parametrize("name", NAMES)
def test_multiply_adds_and_parameters(name: str) -> None:
    graph = load(name)
    assert products(graph) == 2 * multiply_adds(name)
    if name in PUBLISHED:
        flops, parameters = PUBLISHED[name]
        assert products(graph) / 2 == pytest.approx(flops, rel=0.01)
        held = graph.persistent_bytes[[t == "parameter" for t in graph.op_type.tolist()]].sum() / 4
        statistics = 0.021 if name == "densenet121" else 0.0021  # running averages, and densenet121's scales are two
        assert held == pytest.approx(parameters, rel=statistics)


@pytest.mark.parametrize("name", NAMES[:2])
def test_placed(name: str) -> None:
    result = place(LIGHT / f"light_{name}.onnx", cluster="rtx4090_3090", policy="etf", grouper="none", budget=1)
    assert result.value_s is not None
    assert math.isfinite(result.value_s)
    assert result.value_s >= products(load(name)) / 500e12


def test_a_module_exported_by_torch(tmp_path: Path) -> None:
    """Names of nodes become the paths of modules; the multiply-adds and parameters are the module's."""
    torch = pytest.importorskip("torch")
    nn = torch.nn
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)), nn.Flatten(), nn.Linear(8 * 8 * 8, 10)
    ).eval()
    path = tmp_path / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (torch.zeros(1, 3, 16, 16),), path, dynamo=False, dynamic_axes={"x": {0: "n"}}, input_names=["x"]
        )
    [program] = OnnxImporter(path=str(path), batch=4).load()
    graph = program.graph
    assert {graph.op_type[v]: graph.module[v] for v in range(graph.n) if graph.kernel[v]} == {
        "onnx.Conv": "0", "onnx.Relu": "1.0", "onnx.MaxPool": "1.1", "onnx.Gemm": "3",
    }  # fmt: skip
    assert products(graph) == 2 * 4 * (8 * 16 * 16 * 27 + 512 * 10)
    held = {graph.op_name[v]: graph.persistent_bytes[v] // 4 for v in range(graph.n) if graph.op_type[v] == "parameter"}
    assert held == {k: p.numel() for k, p in net.named_parameters()}
