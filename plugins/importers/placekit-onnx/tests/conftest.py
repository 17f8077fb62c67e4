"""A small model that has one of each thing that the importer knows, as a function that writes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

OPSET = 21
WriteModel = Callable[[ModelProto | list[NodeProto]], str]


def external(name: str, shape: list[int], **entries: str) -> TensorProto:
    """A float32 weight whose data is in another file."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "missing.bin", **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def weights() -> list[TensorProto]:
    """Weights in all forms: raw, packed, shared, in another file, of shapes."""
    rng = np.random.default_rng(0)
    return [
        numpy_helper.from_array(rng.normal(size=(4, 3, 3, 3)).astype(np.float32), "conv.weight"),
        helper.make_tensor("conv.bias", TensorProto.FLOAT, [4], [0.0] * 4),
        numpy_helper.from_array(rng.normal(size=(256, 32)).astype(np.float32), "layers.0.fc.weight"),
        helper.make_tensor("layers.0.fc.bias", TensorProto.FLOAT, [32], range(32)),
        external("layers.1.fc.weight", [32, 5000], length=str(32 * 5000 * 4)),
        numpy_helper.from_array(rng.normal(size=(8, 64)).astype(np.float16), "table"),
        numpy_helper.from_array(np.asarray([0]), "zero"),
        numpy_helper.from_array(np.asarray(0), "first"),
        numpy_helper.from_array(np.asarray([-1]), "rest"),
        numpy_helper.from_array(np.asarray(0.5, np.float32), "half"),
    ]


def nodes() -> list[NodeProto]:
    """A convolution, layers with names of scopes, a function, a choice, a look-up, a shape computed from a shape."""
    make = helper.make_node
    small = helper.make_value_info("scaled", helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    then = helper.make_graph([make("Mul", ["act", "half"], ["scaled"])], "then", [], [small])
    other = helper.make_graph([make("Neg", ["act"], ["scaled"])], "other", [], [small])
    return [
        make(
            "Conv", ["image", "conv.weight", "conv.bias"], ["c"], "/conv/Conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]
        ),
        make("Twice", ["c"], ["cc"], "/Twice", domain="ours"),
        make("Shape", ["cc"], ["shape"]),
        make("Gather", ["shape", "first"], ["batch"]),
        make("Unsqueeze", ["batch", "zero"], ["batches"]),
        make("Concat", ["batches", "rest"], ["flat"], axis=0),
        make("Reshape", ["cc", "flat"], ["rows"], "/Reshape"),
        make("Gemm", ["rows", "layers.0.fc.weight", "layers.0.fc.bias"], ["h"], "/layers.0/fc/Gemm"),
        make("Relu", ["h"], ["act"], "/layers.0/act/Relu"),
        make("Constant", [], ["chosen"], value=numpy_helper.from_array(np.asarray(True))),
        make("If", ["chosen"], ["x"], "/If", then_branch=then, else_branch=other),
        make("MatMul", ["x", "layers.1.fc.weight"], ["y"], "/layers.1/fc/MatMul"),
        make("Softmax", ["y"], ["probabilities"], "/Softmax"),
        make("Gather", ["table", "tokens"], ["embedded"], "/Gather"),
        make("Cast", ["embedded"], ["wide"], "/Cast", to=TensorProto.FLOAT),
    ]


def rich_model() -> ModelProto:
    """The model."""
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 8, 8])
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", "length"])
    outputs = [
        helper.make_value_info(n, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
        for n in ("probabilities", "wide")
    ]
    graph = helper.make_graph(nodes(), "rich", [image, tokens], outputs, weights())
    versions = [helper.make_opsetid("", OPSET), helper.make_opsetid("ours", 1)]
    twice = helper.make_function(
        "ours", "Twice", ["x"], ["y"],
        [helper.make_node("Add", ["x", "x"], ["s"]), helper.make_node("Relu", ["s"], ["y"])], versions[:1],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=versions, functions=[twice], ir_version=10)


@pytest.fixture
def rich() -> bytes:
    """The model as a file has it. Options for it: batch=2 dims={length: 5}."""
    data: bytes = rich_model().SerializeToString()
    return data


@pytest.fixture
def write(tmp_path: Path) -> WriteModel:
    """Writes a model, or nodes that read `x` [2, 4] and write `y`, and returns the file's name."""

    def written(model: ModelProto | list[NodeProto]) -> str:
        if isinstance(model, list):
            x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])
            y = helper.make_value_info("y", helper.make_tensor_type_proto(TensorProto.FLOAT, None))
            graph = helper.make_graph(model, "small", [x], [y])
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return str(path)

    return written
