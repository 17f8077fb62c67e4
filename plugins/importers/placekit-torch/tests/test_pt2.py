"""Importer `pt2`: the graph is that of the module; files from outside run no code and make one clear error."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
import torch
from placekit_testing import ImporterContract
from placekit_testing.contract import Make
from placekit_torch import import_module, is_pt2
from placekit_torch.pt2 import Pt2Importer
from placekit_torch.pt2_options import Pt2Options
from placekit_torch.pt2_sizes import evaluated, symbols_in
from pydantic import ValidationError

from placekit_core import Graph, ImporterError

torch.set_num_threads(1)  # the tensors are small, and tests run side by side
Rewrite = Callable[[Callable[[dict[str, Any]], None]], Path]


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = torch.nn.Linear(8, 8), torch.nn.ReLU()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.act(self.linear(x))
        self.seen.add_(y.sum(0))  # type: ignore[operator]
        return torch.as_tensor(self.act(y) * torch.tensor([2.0]))


class Net(torch.nn.Module):
    """Tied weights, a module that is called twice, updates of buffers, attention, a shape that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.norm, self.head = torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 8, bias=False)
        self.head.weight = self.layers[0].linear.weight  # type: ignore[assignment, union-attr]

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> dict[str, torch.Tensor]:
        for layer in self.layers:
            x = layer(x)
        heads = x.reshape(1, 2, -1, 4)
        with torch.no_grad():
            rows = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads).reshape(x.shape[0], -1)
        return {"out": self.head(self.norm(rows)) * scale, "part": x.chunk(2, 1)[0]}


def export(path: Path, **options: Any) -> Path:
    torch.export.save(torch.export.export(Net().eval(), (torch.zeros(4, 8),), **options), path)
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("pt2") / "net.pt2")


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"x": {0: 2 * torch.export.Dim("half", max=512)}}
    return export(tmp_path_factory.mktemp("pt2") / "dynamic.pt2", dynamic_shapes=sizes)


@pytest.fixture
def rewrite(file: Path, tmp_path: Path) -> Rewrite:
    """Writes the archive again with its program changed by a function."""

    def rewritten(change: Callable[[dict[str, Any]], None]) -> Path:
        def changed(program: bytes) -> bytes:
            data = json.loads(program)
            change(data)
            return json.dumps(data).encode()

        return with_program(file, tmp_path / "changed.pt2", changed)

    return rewritten


def with_program(file: Path, path: Path, change: Callable[[bytes], bytes], **how: Any) -> Path:
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(path, "w", **how) as new:
        for info in old.infolist():
            data = old.read(info)
            new.writestr(info.filename, change(data) if info.filename.endswith("/model.json") else data)
    return path


def load(path: Path, **options: Any) -> Graph:
    [program] = Pt2Importer(path=str(path), **options).load()
    return program.graph


def refusal(path: Path, **options: Any) -> ImporterError:
    with pytest.raises(ImporterError) as caught:
        load(path, **options)
    assert path.name in caught.value.message
    return caught.value


class TestPt2(ImporterContract):
    @pytest.fixture
    def make(self, file: Path) -> Make:
        return partial(Pt2Importer, path=str(file))


def test_equals_the_graph_of_the_module(file: Path) -> None:
    graph = load(file)
    own = import_module(Net(), torch.zeros(4, 8), mode="inference").graph
    kernels = graph.kernel  # the constant in the code is a source with another name
    assert np.array_equal(kernels, own.kernel)
    for key in ("op_type", "op_class", "module", "dtype"):
        assert (
            getattr(graph, key).take(np.flatnonzero(kernels)).tolist()
            == getattr(own, key).take(np.flatnonzero(kernels)).tolist()
        ), key
    assert sorted(graph.tensor_bytes.tolist()) == sorted(own.tensor_bytes.tolist())
    for key in ("flops", "bytes_accessed", "call", "input_ptr"):
        assert np.array_equal(getattr(graph, key), getattr(own, key)), key
    for key in ("signature", "call_path"):
        assert (
            graph.columns[key].take(np.flatnonzero(kernels)).tolist()
            == own.columns[key].take(np.flatnonzero(kernels)).tolist()
        ), key
    assert graph.persistent_bytes.sum() == own.persistent_bytes.sum()


def test_tied_weights_are_one_source(file: Path) -> None:
    names = load(file).op_name
    assert [n for n in names if n.endswith("weight")] == [
        "layers.0.linear.weight",
        "layers.1.linear.weight",
        "norm.weight",
    ]


@pytest.mark.slow
def test_sizes_are_those_of_the_example_or_given(dynamic: Path) -> None:
    def rows(**options: Any) -> int:
        graph = load(dynamic, **options)
        return graph.shape(graph.outputs(graph.op_name.index("input.x"))[0])[0]

    with zipfile.ZipFile(dynamic) as archive:
        program = json.loads(archive.read("dynamic/models/model.json"))
    [symbol] = symbols_in(program["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0]["as_expr"]["expr_str"])
    assert rows() == 4
    assert rows(batch=6) == rows(dims={symbol: 3}) == rows(dims={"x": [6, 8]}) == 6
    assert "no open dimension is called 'rows'" in refusal(dynamic, dims={"rows": 3}).message
    assert "has the shape [4, 8], and importer.dims gives it [6, 9]" in refusal(dynamic, dims={"x": [6, 9]}).message


def test_fixed_sizes_cannot_be_changed(file: Path) -> None:
    assert "no input leaves its first dimension open" in refusal(file, batch=8).message


def test_sizes_are_no_python() -> None:
    assert evaluated("Add(Mul(Integer(2), Symbol('s0', integer=True)), Integer(-1))", {"s0": 4}) == 7
    for text in ("__import__('os').system('true')", "s0.real", "(lambda: 3)()", "2**s0", "Mul(2, s1)", "(" * 500, ""):
        with pytest.raises(ValueError, match="a size is"):
            evaluated(text, {"s0": 4})


def test_weights_are_neither_read_nor_needed(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "light.pt2"
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            if not info.filename.rpartition("/")[2].startswith(("weight_", "tensor_", "model.pt")):
                new.writestr(info.filename, old.read(info))
    assert np.array_equal(load(path).flops, load(file).flops)


def test_nothing_is_unpickled(file: Path) -> None:
    with (
        mock.patch("pickle.Unpickler", side_effect=AssertionError),
        mock.patch("torch.load", side_effect=AssertionError),
    ):
        load(file)


def test_calls_operators_only(rewrite: Rewrite) -> None:
    for target in (
        "torch.serialization.os.system", "torch.hub.load", "_operator.attrgetter", "builtins.eval", "torch.ops.aten.mm",
        "torch.ops.load_library", "torch.ops.__class__.mro.default", "#executorch:x",
    ):  # fmt: skip

        def change(program: dict[str, Any], target: str = target) -> None:
            program["graph_module"]["graph"]["nodes"][0] |= {
                "target": target, "inputs": [{"name": "command", "arg": {"as_string": "exit 1"}, "kind": 1}],
            }  # fmt: skip

        with mock.patch("os.system", side_effect=AssertionError):
            message = refusal(rewrite(change)).message
        assert "node 0" in message
        assert "operator" in message


def test_operators_that_read_files_are_refused(rewrite: Rewrite) -> None:
    def change(program: dict[str, Any]) -> None:
        program["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.aten.from_file.default"

    assert "aten::from_file may read or write files" in refusal(rewrite(change)).message


def test_operators_of_libraries_that_take_texts_are_refused(rewrite: Rewrite) -> None:
    """torchvision's `image::read_file` is such an operator; fake tensors would run it."""
    read: list[str] = []
    library: Any = cast(Any, torch.library).Library("placekit_test_files", "DEF")

    def read_file(name: str) -> torch.Tensor:
        read.append(name)
        return torch.zeros(2)

    library.define("read_file(str filename) -> Tensor")
    library.impl("read_file", read_file, "CompositeImplicitAutograd")

    def change(program: dict[str, Any]) -> None:
        program["graph_module"]["graph"]["nodes"][0] |= {
            "target": "torch.ops.placekit_test_files.read_file.default",
            "inputs": [{"name": "filename", "arg": {"as_string": "/etc/passwd"}, "kind": 1}],
        }

    try:
        assert "read_file may read or write files" in refusal(rewrite(change)).message
    finally:
        library._destroy()
    assert read == []


def test_operators_of_torchscript_are_refused(rewrite: Rewrite) -> None:
    def change(program: dict[str, Any]) -> None:
        program["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.aten.save.default"

    assert "is one of TorchScript" in refusal(rewrite(change)).message


def test_an_operator_that_is_not_loaded(rewrite: Rewrite) -> None:
    def change(program: dict[str, Any]) -> None:
        program["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.mylib.fast_linear.default"

    message = refusal(rewrite(change)).message
    assert "there is no operator mylib::fast_linear.default: import the package that defines it" in message


def test_objects_are_refused_because_they_are_pickled(rewrite: Rewrite) -> None:
    def change(program: dict[str, Any]) -> None:
        spec = {"custom_obj": {"arg": {"name": "tokenizer"}, "custom_obj_name": "tokenizer"}}
        program["graph_module"]["signature"]["input_specs"].append(spec)

    message = refusal(rewrite(change)).message
    assert "'tokenizer', which would have to be unpickled; unpickling runs code that is in the file" in message


def test_control_flow_is_refused(rewrite: Rewrite) -> None:
    def change(program: dict[str, Any]) -> None:
        program["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.higher_order.cond"

    assert "higher-order operator 'cond' is not taken apart" in refusal(rewrite(change)).message


def test_another_version_of_the_schema(rewrite: Rewrite) -> None:
    def change(program: dict[str, Any]) -> None:
        program["schema_version"]["major"], program["torch_version"] = 999, "9.1"

    assert "schema has version 999.20 (written by torch 9.1)" in refusal(rewrite(change)).message


def test_very_many_parts_are_refused(rewrite: Rewrite) -> None:
    def change(program: dict[str, Any]) -> None:
        graph = program["graph_module"]["graph"]
        graph["tensor_values"]["x"]["sizes"][0] = {"as_int": 2**40}
        graph["nodes"] = [
            {"target": "torch.ops.aten.unbind.int", "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "x"}}, "kind": 1}],
             "outputs": [{"as_tensors": [{"name": "first"}]}], "metadata": {}},
        ]  # fmt: skip

    assert "1,099,511,627,776 parts" in refusal(rewrite(change)).message


def test_bombs_and_cut_off_archives(file: Path, tmp_path: Path) -> None:
    bomb = with_program(
        file, tmp_path / "bomb.pt2", lambda program: b" " * (200 * 2**20), compression=zipfile.ZIP_DEFLATED
    )
    assert "model.json' has 209,715,200 bytes" in refusal(bomb).message
    cut = tmp_path / "cut.pt2"
    cut.write_bytes(file.read_bytes()[:9000])
    assert "no zip archive, or a damaged one" in refusal(cut).message
    huge = tmp_path / "huge.pt2"  # a table of contents that is said to be very long
    data = bytearray(file.read_bytes())
    at = data.rfind(b"PK\5\6")
    data[at + 12 : at + 16] = (2**31).to_bytes(4, "little")
    huge.write_bytes(data)
    assert "table of contents has 2,147,483,648 bytes" in refusal(huge).message
    empty = tmp_path / "empty.pt2"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("net/archive_format", "pt2")
    empty.write_bytes(out.getvalue())
    assert "it holds no program" in refusal(empty).message
    assert "No such file" in refusal(tmp_path / "missing.pt2").message


def test_files_of_other_functions_of_torch(tmp_path: Path) -> None:
    saved, scripted = tmp_path / "saved.pt2", tmp_path / "scripted.pt"
    torch.save({"weight": torch.zeros(2)}, saved)
    with zipfile.ZipFile(scripted, "w") as archive:  # torch.jit.save is deprecated
        archive.writestr("s/data.pkl", b"")
        archive.writestr("s/code/__torch__.py", b"")
    for file, kind in ((saved, "torch.save, weights or a module"), (scripted, "torch.jit.save")):
        assert is_pt2(file.read_bytes()[:4096]), "the importer is asked, and says what it is"
        assert f"it is a file of {kind}; save torch.export.export(module, inputs) with torch" in refusal(file).message


def test_training_is_refused(file: Path) -> None:
    with pytest.raises(ValidationError, match=r"the file holds inference only; to train, give model=FILE\.py:FUNCTION"):
        Pt2Options(path=str(file), mode="train")
    assert Pt2Importer(path=str(file), mode="inference").load()
