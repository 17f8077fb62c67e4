"""What the graph of an ONNX model has: operations, bytes, modules; and the errors of models that have none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from placekit_onnx import is_onnx, operators
from placekit_onnx.importer import OnnxImporter
from placekit_onnx.scopes import module_of
from placekit_onnx.values import Type

from placekit_core import Graph, ImporterError

WriteModel = Callable[[ModelProto | list[NodeProto]], str]
F32, F16, I64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
make = helper.make_node


@pytest.fixture
def file(rich: bytes, tmp_path: Path) -> str:
    path = tmp_path / "rich.onnx"
    path.write_bytes(rich)
    return str(path)


def load(path: str, **options: Any) -> Graph:
    [program] = OnnxImporter(path=path, **options).load()
    return program.graph


def refusal(path: str, **options: Any) -> str:
    with pytest.raises(ImporterError) as caught:
        load(path, **options)
    assert path in caught.value.message
    return f"{caught.value.message} | {caught.value.hint}"


class TestGraph:
    @pytest.fixture
    def graph(self, file: str) -> Graph:
        return load(file, batch=2, dims={"length": 5})

    def test_operations(self, graph: Graph) -> None:
        assert [graph.op_name[v] for v in np.flatnonzero(graph.kernel)] == [
            "/conv/Conv", "Add_1", "Relu_2", "/layers.0/fc/Gemm", "/layers.0/act/Relu", "Mul_12", "/layers.1/fc/MatMul",
            "/Softmax", "/Gather", "/Cast",
        ]  # fmt: skip

    def test_what_costs_nothing_is_no_operation(self, graph: Graph) -> None:
        """The reshape is a view; its shape, the condition and the factor are constants."""
        attributes = dict(graph.attributes)
        assert (attributes["kernels"], attributes["views"], attributes["folded"]) == (10, 1, 6)
        sources = [graph.op_name[v] for v in np.flatnonzero(~graph.kernel)]
        assert sources == [
            "conv.weight", "conv.bias", "layers.0.fc.weight", "layers.0.fc.bias", "layers.1.fc.weight", "table",
            "image", "tokens",
        ]  # fmt: skip

    def test_bytes(self, graph: Graph) -> None:
        held = dict(zip(graph.op_name, graph.persistent_bytes.tolist(), strict=True))
        assert held["layers.1.fc.weight"] == 32 * 5000 * 4  # in another file, which does not exist
        assert held["table"] == 8 * 64 * 2
        assert held["tokens"] == 2 * 5 * 8
        moved = dict(zip(graph.op_name, graph.bytes_accessed.tolist(), strict=True))
        assert moved["/layers.0/act/Relu"] == 2 * (2 * 32 * 4)
        assert moved["/Gather"] == 8 * 64 * 2 + 2 * 5 * 8 + 2 * 5 * 64 * 2  # 10 tokens of a table of 8 rows

    def test_flops(self, graph: Graph) -> None:
        flops = dict(zip(graph.op_name, graph.flops.tolist(), strict=True))
        assert flops["/conv/Conv"] == 2 * (2 * 4 * 8 * 8) * (3 * 3 * 3)
        assert flops["/layers.0/fc/Gemm"] == 2 * 2 * 256 * 32
        assert flops["/layers.1/fc/MatMul"] == 2 * 2 * 32 * 5000
        assert flops["/Softmax"] == 2 * 5000
        assert flops["/Gather"] == 0

    def test_modules(self, graph: Graph) -> None:
        module = dict(zip(graph.op_name, graph.module.tolist(), strict=True))
        assert module["/layers.0/fc/Gemm"] == module["layers.0.fc.weight"] == "layers.0.fc"
        assert module["/conv/Conv"] == "conv"
        assert module["image"] == module["table"] == module["/Softmax"] == ""

    def test_signatures(self, graph: Graph) -> None:
        signature = dict(zip(graph.op_name, graph.columns["signature"].tolist(), strict=True))
        assert signature["/layers.0/fc/Gemm"] == "onnx.Gemm(f32[2,256], f32[256,32], f32[32])"
        assert signature["/layers.0/act/Relu"] == "onnx.Relu(f32[2,32])"


class TestSizes:
    def test_missing_ones_are_one_error(self, file: str) -> None:
        assert (
            "input 'image' has no size for dimension 0 (batch), and 2 more are open | give importer.batch=N"
            in refusal(file)
        )
        assert "input 'tokens' has no size for dimension 1 (length) |" in refusal(file, batch=2)
        assert "'importer.dims={length: N}' by name, or 'importer.dims={INPUT: [N, ...]}'" in refusal(file, batch=2)

    def test_a_dimension_without_a_name_needs_a_whole_shape(self, write: WriteModel) -> None:
        path = write([make("Relu", ["x"], ["y"])])
        model = ModelProto.FromString(Path(path).read_bytes())
        model.graph.input[0].type.tensor_type.shape.dim[1].Clear()
        write(model)
        assert "has no size for dimension 1 | give 'importer.dims={INPUT: [N, ...]}' for a whole shape" in refusal(path)

    def test_by_name_or_whole(self, file: str) -> None:
        graphs = [
            load(file, dims={"batch": 3, "length": 7}),
            load(file, batch=3, dims={"tokens": [3, 7]}),
            load(file, dims={"image": [3, 3, 8, 8], "tokens": [3, 7]}),
        ]
        assert len({g.fingerprint for g in graphs}) == 1

    def test_wrong_ones(self, file: str) -> None:
        assert "no input and no open dimension is called 'tokns'" in refusal(
            file, batch=2, dims={"tokns": 3, "length": 5}
        )
        wrong = refusal(file, batch=2, dims={"image": [2, 4, 8, 8], "length": 5})
        assert "input image has the shape [?, 3, 8, 8], but importer.dims gives it [2, 4, 8, 8]" in wrong


class TestInnerGraphs:
    def test_flex_attention_is_one_kernel_that_reads_what_its_graph_captures(self, write: WriteModel) -> None:
        """Query of 8 heads and keys of 2; the graph that changes scores adds a bias of another kernel."""
        shapes = {"q": [1, 8, 16, 4], "k": [1, 2, 16, 4], "v": [1, 2, 16, 4], "bias": [1, 1, 16, 16]}
        scores = [helper.make_tensor_value_info(name, F32, [1, 8, 16, 16]) for name in "st"]
        change = helper.make_graph([make("Add", ["s", "b"], ["t"])], "change", scores[:1], scores[1:])
        flex = make("FlexAttention", ["q", "k", "v"], ["y"], "F", domain="ai.onnx.preview", score_mod=change)
        inputs = [helper.make_tensor_value_info(name, F32, shape) for name, shape in shapes.items()]
        output = helper.make_tensor_value_info("y", F32, shapes["q"])
        graph = helper.make_graph([make("Neg", ["bias"], ["b"], "N"), flex], "g", inputs, [output])
        versions = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.preview", 1)]
        found = load(write(helper.make_model(graph, opset_imports=versions)))
        kernel = found.op_name.index("F")
        assert found.op_class[kernel] == "attention"
        assert found.flops[kernel] == 2 * 2 * 8 * 16 * 16 * 4
        assert found.bytes_accessed[kernel] == 4 * (2 * 8 * 16 * 4 + 2 * 2 * 16 * 4 + 16 * 16)
        assert found.op_name.index("N") in found.tensor_producer[found.inputs(kernel)]

    def test_a_sum_over_axes_that_are_an_empty_input(self, write: WriteModel) -> None:
        x, axes = helper.make_tensor_value_info("x", F32, [4, 8]), helper.make_tensor_value_info("axes", I64, [0])
        for unchanged, elements in ((0, 1), (1, 32)):
            node = make("ReduceSum", ["x", "axes"], ["y"], "S", keepdims=0, noop_with_empty_axes=unchanged)
            graph = helper.make_graph([node], "g", [x, axes], [helper.make_tensor_value_info("y", F32, None)])
            found = load(write(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])))
            assert found.tensor_bytes[-1] == 4 * elements


class TestRefused:
    @pytest.mark.parametrize(
        ("nodes", "said"),
        [
            ([make("Loop", ["", "", "x"], ["y"], "L")], "node 'L' (Loop) holds a graph of its own"),
            ([make("ReduceSum", ["x"], ["s"], keepdims=0), make("Cast", ["s"], ["c"], to=TensorProto.BOOL),
              make("If", ["c"], ["y"], "I")], "node 'I' (If) chooses between two graphs by the data of a tensor"),
            ([make("NonZero", ["x"], ["y"], "N")], "node 'N' (NonZero) writes 'y', whose shape is not known beyond [2, ?]"),
            ([make("Relu", ["z"], ["y"], "R")], "node 'R' (Relu) reads 'z', which nothing before it writes"),
            ([make("Relu", ["x"], ["y"]), make("Relu", ["x"], ["y"])], "'y' is written twice"),
            ([make("Relu", ["x", "x"], ["y"], "R")], "node 'R' (Relu) has 2 inputs, but needs 1"),
            ([make("Swim", ["x"], ["y"])], "node 0 (Swim) has an operator that version 21 of ONNX does not have"),
            ([make("Gemm", ["x", "x"], ["y"], "G")], "node 'G' (Gemm) does not fit its inputs"),
            ([make("Relu", ["x"], ["y"], domain="far")], "domain 'far', which the file does not import"),
            ([make("SequenceConstruct", ["x"], ["y"])], "writes 'y', which is a sequence, not a tensor"),
        ],
    )  # fmt: skip
    def test_nodes(self, nodes: list[NodeProto], said: str, write: WriteModel) -> None:
        assert said in refusal(write(nodes))

    def test_custom_operators_cost_their_bytes_and_are_named_once(self, write: WriteModel) -> None:
        x, y = (helper.make_tensor_value_info(name, F32, [2, 4]) for name in ("x", "y"))
        middle = helper.make_tensor_value_info("m", F32, [2, 9])
        nodes = [make("Swim", ["x"], ["m"], domain="far"), make("Fly", ["m"], ["y"], domain="far")]
        graph = helper.make_graph(nodes, "g", [x], [y], value_info=[middle])
        versions = [helper.make_opsetid("", 21), helper.make_opsetid("far", 1)]
        path = write(helper.make_model(graph, opset_imports=versions, ir_version=10))
        with pytest.warns(UserWarning, match=r"far\.Swim \(1\), far\.Fly \(1\)") as warned:
            made = load(path)
        assert len(warned) == 1
        assert made.bytes_accessed[made.kernel].tolist() == [4 * (8 + 18), 4 * (18 + 8)]
        assert made.flops.sum() == 0


class TestFile:
    def test_detected(self, file: str) -> None:
        assert is_onnx(Path(file).read_bytes()[:4096])
        assert not is_onnx(b"PK\3\4")
        assert not is_onnx(b"\x08\x03hello")

    def test_damaged(self, file: str, tmp_path: Path) -> None:
        data = Path(file).read_bytes()
        path = tmp_path / "damaged.onnx"
        for content, said in (
            (b"", "it is empty"),
            (data[: len(data) // 2], "is longer than the model"),
            (b"\x0f" * 99, "begins no field"),
        ):
            path.write_bytes(content)
            assert said in refusal(str(path))

    def test_weights_that_do_not_fit_their_shape(self, write: WriteModel) -> None:
        big = numpy_helper.from_array(np.zeros((100, 100), np.float32), "w")
        big.dims[1] = 99
        x = helper.make_tensor_value_info("x", F32, [2, 100])
        y = helper.make_tensor_value_info("y", F32, [2, 99])
        graph = helper.make_graph([make("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [big])
        said = refusal(write(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)))
        assert "initializer 'w' has 40000 bytes, but its shape [100, 99] needs 39,600" in said

    def test_huge_shapes_make_no_arrays(self, write: WriteModel) -> None:
        wide = TensorProto(name="w", data_type=F32, dims=[4, 2**38], data_location=TensorProto.EXTERNAL)
        x = helper.make_tensor_value_info("x", F32, [2, 4])
        graph = helper.make_graph(
            [make("MatMul", ["x", "w"], ["y"])], "g", [x], [helper.make_tensor_value_info("y", F32, None)], [wide]
        )
        path = write(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
        assert load(path).persistent_bytes.max() == 4 * 4 * 2**38
        wide.dims[1] = 2**62
        graph = helper.make_graph(
            [make("MatMul", ["x", "w"], ["y"])], "g", [x], [helper.make_tensor_value_info("y", F32, None)], [wide]
        )
        path = write(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
        assert "initializer 'w' has the shape [4, 4611686018427387904]" in refusal(path)


FORMULAS: list[tuple[str, list[Any], list[Any], dict[str, Any], float]] = [
    ("MatMul", [(7, 2, 3), (7, 3, 5)], [(7, 2, 5)], {}, 2 * 7 * 2 * 3 * 5),
    ("Gemm", [(3, 2), (3, 5)], [(2, 5)], {"transA": 1}, 2 * 2 * 3 * 5),
    ("Conv", [(1, 8, 6, 6), (4, 2, 3, 3)], [(1, 4, 4, 4)], {"group": 4}, 2 * 64 * 18),
    ("ConvTranspose", [(1, 8, 6, 6), (8, 4, 2, 2)], [(1, 4, 12, 12)], {}, 2 * 8 * 36 * 16),
    ("QLinearConv", [(1, 8, 6, 6), (), (), (4, 8, 3, 3)], [(1, 4, 4, 4)], {}, 2 * 64 * 72),
    ("LSTM", [(10, 3, 6), (2, 20, 6), (2, 20, 5)], [(10, 2, 3, 5)], {}, 2 * 10 * 3 * 2 * 20 * (6 + 5)),
    ("Attention", [(2, 4, 6, 8), (2, 4, 9, 8), (2, 4, 9, 7)], [(2, 4, 6, 7)], {}, 2 * 2 * 4 * 6 * 9 * (8 + 7)),
    ("Attention", [(2, 6, 32), (2, 9, 16), (2, 9, 16)], [(2, 6, 32)], {"q_num_heads": 4, "kv_num_heads": 2},
     2 * 2 * 4 * 6 * 9 * (8 + 8)),
    ("Einsum", [(2, 3, 4), (2, 4, 5)], [(2, 3, 5)], {"equation": b"bij,bjk->bik"}, 2 * 2 * 3 * 4 * 5),
    ("Einsum", [(2, 3), (3, 4), (4, 5)], [(2, 5)], {"equation": b"ab,bc,cd->ad"}, 2 * (2 * 3 * 4 + 2 * 4 * 5)),
    ("Einsum", [(2, 3), (3, 4), (4, 5)], [(2, 5)], {"equation": b"ab,bc,cd"}, 2 * (2 * 3 * 4 + 2 * 4 * 5)),
    ("Einsum", [(7, 3, 4), (7, 4, 5)], [(7, 3, 5)], {"equation": b"...ij, ...jk -> ...ik"}, 2 * 7 * 3 * 4 * 5),
    ("ReduceMean", [(3, 4, 5)], [(3,)], {}, 60),
    ("Add", [(3, 4), (4,)], [(3, 4)], {}, 12),
    ("Transpose", [(3, 4)], [(4, 3)], {}, 0),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "outputs", "attributes", "expected"), FORMULAS)
def test_formulas(op: str, inputs: list[Any], outputs: list[Any], attributes: dict[str, Any], expected: float) -> None:
    shapes = [[Type(F32, s) for s in part] for part in (inputs, outputs)]
    assert operators.flops(op, shapes[0], shapes[1], attributes) == expected


def test_types() -> None:
    assert Type(TensorProto.INT4, (3, 3)).bytes_ == 5
    assert operators.compute_dtype("MatMul", [Type(I64, (2,)), Type(F16, (2,))], []) == "float16"
    assert operators.compute_dtype("QLinearConv", [Type(TensorProto.INT8, (2,)), Type(F32, ())], []) == "int8"
    assert operators.op_class("MatMul", [Type(F16, (4, 7))]) == "unaligned_matmul"


@pytest.mark.parametrize(
    ("name", "scopes", "module"),
    [
        ("/layer1/layer1.0/conv1/Conv", "", "layer1.0.conv1"),
        ("/model/layers.0/self_attn/MatMul_3", "", "model.layers.0.self_attn"),
        ("block/conv/Conv2D", "", "block.conv"),
        ("node_MatMul_1", "['', 'layers.0', 'layers.0.attn', 'matmul']", "layers.0.attn"),
        ("n18", "not a list", ""),
        ("", "", ""),
    ],
)
def test_scopes(name: str, scopes: str, module: str) -> None:
    node = make("MatMul", ["x"], ["y"], name)
    if scopes:
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    assert module_of(node) == module
