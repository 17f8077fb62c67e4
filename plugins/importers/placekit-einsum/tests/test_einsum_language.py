"""The language: any decomposition computes the same, costs are those of each shard, and mistakes are named."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import placekit_einsum
import pytest
import torch
from placekit_einsum import Tensor, TensorProgram
from placekit_einsum.decompose import decompose

from placekit_core import Graph, ImporterError, Program
from placekit_core.run import api

torch.set_num_threads(1)  # the tensors are small, and tests run side by side

Parts = dict[str, dict[str, int]]


def run(program: TensorProgram, dtype: Any = "float64") -> dict[str, torch.Tensor]:
    made = placekit_einsum.import_program(program, dtype=dtype, seed=3)
    kernels = [v for v in made.graph.topological_order.tolist() if made.graph.kernel[v]]
    executable: Any = made.executable
    values: dict[str, torch.Tensor] = executable.gather(executable.compile(kernels)(executable.initial()))
    return values


def rows(graph: Graph, name: str) -> int:
    return graph.op_name.index(name)


def everything(parts: Parts) -> TensorProgram:
    """One expression of each kind."""
    t = TensorProgram("everything", parts)
    a, b = t.input("a", "xij", (1, 8, 12)), t.input("b", "jk", (12, 6), values="normal", scale=0.5)
    c, ones = t.input("c", "k", (6,)), t.input("ones", "ij", (8, 12), values="ones")
    flat = t.squeezer("flat", "xij->ij", a)
    both = t.apply("both", "add", "ij,ij->ij", flat, ones)
    m = t.einsum("m", "ij,jk->ik", both, b)
    turned = t.apply("turned", "tanh", "ik->ki", m, scale=0.3, shift=0.1)
    low = t.reduce("low", "min", "ki->i", turned)
    high = t.reduce("high", "max", "ki->k", turned)
    outer = t.apply("outer", "mul", "i,k->ik", low, high)
    z = t.complexer("z", "ik", t.apply("shifted", "sub", "ik,k->ik", outer, c))
    squared = t.apply("squared", "mul", "ik,ik->ik", z, z)
    total = t.reduce("total", "product", "ik->i", squared)
    pairs = t.complexer(
        "pairs", "kix", t.squeezer("wide", "ki->kix", t.apply("swapped", "identity", "ik->ki", squared))
    )
    t.fill("unused", "qr", (8, 8), 1.5, above=-2.0)
    t.apply("divided", "div", "i,ij->ij", t.complexer("back", "i", total), t.fill("two", "ij", (16, 4), 2.0))
    t.reduce("sums", "sum", "kix->x", pairs)
    return t


PARTS = {
    "flat": "ij", "both": "ij", "m": "ijk", "turned": "ki", "low": "ki", "high": "ki", "outer": "ik", "shifted": "ik",
    "z": "ik", "squared": "ik", "total": "ik", "swapped": "ik", "wide": "ki", "pairs": "ki", "unused": "qr", "back": "i",
    "divided": "ij", "two": "ij", "sums": "ki", "a": "ij", "b": "jk",
}  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_any_decomposition_computes_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    length = {t.name: t.size for t in everything({}).tensors}
    parts: Parts = {}
    for name, labels in PARTS.items():
        for label in labels:
            whole = length[name][label]
            if name == "z" and label == "k":
                whole //= 2  # pairs of numbers stay together
            parts.setdefault(name, {})[label] = int(rng.choice([d for d in range(1, whole + 1) if whole % d == 0]))
    whole, split = run(everything({})), run(everything(parts))
    assert whole.keys() == split.keys() == {"unused", "divided", "sums"}
    for name, value in whole.items():
        torch.testing.assert_close(split[name], value, rtol=1e-10, atol=1e-10)


def test_values_of_all_kinds() -> None:
    t = TensorProgram("values")
    x = t.input("x", "ij", (4, 6))
    t.reduce("product", "product", "ij->j", x, parts={"i": 2})
    t.fill("mask", "qk", (4, 4), 1.0, above=-1.0, parts={"q": 2, "k": 4})
    t.apply("affine", "rsqrt", "ij->ij", t.apply("square", "square", "ij->ij", x), scale=2.0, shift=1.0)
    t.apply("smaller", "minimum", "ij,ij->ij", x, t.apply("abs", "abs", "ij->ij", x, scale=-0.5))
    made = placekit_einsum.import_program(t, dtype="float64")
    executable: Any = made.executable
    first = executable.initial()
    values = run(t)
    x0 = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    assert {v.shape for v in first.values()} == {(2, 6)}
    torch.testing.assert_close(values["product"], x0.prod(0))
    torch.testing.assert_close(values["affine"], (2 * x0**2 + 1) ** -0.5)
    torch.testing.assert_close(values["smaller"], torch.minimum(x0, x0.abs() / 2))
    assert torch.equal(values["mask"], torch.ones(4, 4).double() - 2 * torch.ones(4, 4).triu(1).double())


def test_costs_are_those_of_each_shard() -> None:
    t = TensorProgram("costs")
    a, b = t.input("A", "ij", (8, 16)), t.input("B", "ij", (16, 4))
    ab = t.einsum("AB", "ik,kj->ij", a, b, parts={"i": 2, "k": 4, "j": 1})
    norm = t.reduce("norm", "max", "ij->i", ab, parts={"j": 2})
    t.apply("out", "sub", "ij,i->ij", ab, norm, parts={"i": 4})
    graph = decompose(t).graph

    def facts(name: str) -> tuple[str, float, float, tuple[int, ...], str]:
        v = rows(graph, name)
        shape = graph.shape(graph.outputs(v)[0])
        return graph.op_type[v], graph.flops[v], graph.bytes_accessed[v], shape, str(graph.columns["signature"][v])

    assert graph.persistent_bytes[rows(graph, "A[i1,j3]")] == 4 * 4 * 4
    assert facts("AB[i1,j0,k3]") == (
        "matmul", 2 * 4 * 4 * 4, 4 * (16 + 16 + 16), (4, 4), "einsum.matmul(f32[4,4], f32[4,4], ik,kj->ij)",
    )  # fmt: skip
    assert facts("AB[i1,j0]")[:4] == ("formation", 3 * 16, 4 * (4 * 16 + 16), (4, 4))
    assert facts("norm[i0,j1]")[:4] == ("max_reduction", 8, 4 * (8 + 4), (4,))
    assert facts("norm[i0]")[:4] == ("formation", 4, 4 * (4 + 4 + 4), (4,))
    assert facts("out[i2,j0]")[:4] == ("bcast_elemwise", 8, 4 * (8 + 2 + 8), (2, 4))
    out = rows(graph, "out[i2,j0]")
    assert sorted(graph.tensor_bytes[graph.inputs(out)]) == [4 * 2, 4 * 16]  # part of a block; a whole one, of which
    assert len(graph.outputs(rows(graph, "AB[i1,j0]"))) == 1  # `norm` and `out` read other parts
    assert {graph.op_name[graph.tensor_producer[t]] for t in graph.inputs(out)} == {"AB[i1,j0]", "norm[i1]"}
    assert len(graph.outputs(rows(graph, "norm[i1]"))) == 1 + 2  # itself, and what only `out` reads


def test_no_device_receives_a_number_twice() -> None:
    def read_of_y(parts: int) -> tuple[float, Graph]:
        t = TensorProgram("overlap")
        y = t.apply("y", "exp", "ij->ij", t.input("x", "ij", (8, 8)), parts={"i": 1})
        t.apply("halves", "neg", "ij->ij", y, parts={"i": 2})
        t.apply("other", "abs", "ij->ij", y, parts={"i": parts})
        graph = decompose(t).graph
        read = {u for name in ("halves", "other") for v in range(graph.n) if graph.op_name[v].startswith(name)
                for u in graph.inputs(v).tolist()}  # fmt: skip
        return sum(graph.tensor_bytes[list(read)]) / (8 * 8 * 4), graph

    for parts in (1, 2, 4, 8):
        read, graph = read_of_y(parts)
        assert read == 1  # everything that is read of it, on one device, is as large as the block
        half = rows(graph, "halves[i1,j0]")
        assert graph.tensor_bytes[graph.inputs(half)].tolist() == [4 * 32 if parts == 2 else 4 * 64]
        assert graph.bytes_accessed[half] == 2 * 4 * 32
        assert graph.columns["signature"][half].startswith("einsum.input_elemwise(f32[4,8], neg")


def test_costs_of_complex_numbers_scales_and_views() -> None:
    graph = decompose(everything({"m": {"i": 2, "j": 3}})).graph

    def facts(name: str) -> tuple[float, float]:
        v = rows(graph, name)
        return graph.flops[v], graph.bytes_accessed[v]

    assert facts("squared[i0,k0]") == (6 * 4 * 3, 8 * (12 + 12))  # reads z twice
    assert facts("total[i0,k0]") == (6 * 4 * 3, 8 * (12 + 4))
    assert facts("divided[i0,j0]") == (16 * 4 / 2, 4 * (8 + 32 + 32))
    assert facts("turned[k0,i0]") == (3 * 4 * 6, 4 * 2 * 24)  # scale, shift and tanh
    assert facts("swapped[k0,i0]") == (0, 8 * 2 * 12)
    assert facts("flat[i0,j0]") == (0, 0)
    v = rows(graph, "m[i1,k0]")
    assert (graph.op_type[v], graph.op_class[v], graph.flops[v]) == ("formation", "elementwise", 2 * 24)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_complex_numbers_have_the_rate_of_their_precision(dtype: str) -> None:
    graph = decompose(everything({}), dtype).graph
    wide = "float64" if dtype == "float64" else "float32"
    for name in ("z[i0,k0]", "squared[i0,k0]", "total[i0,k0]", "total[i0]", "swapped[k0,i0]", "back[i0]"):
        assert graph.dtype[rows(graph, name)] == wide
    for name in ("a[x0,i0,j0]", "m[i0,k0]", "divided[i0,j0]", "two[i0,j0]"):
        assert graph.dtype[rows(graph, name)] == dtype


def test_selections_take_what_they_need_from_each_block() -> None:
    t = TensorProgram("select")
    x = t.apply("x", "relu", "ij->ij", t.input("in", "ij", (12, 4)), parts={"i": 3})
    t.apply("y", "neg", "ij->ij", x, parts={"i": 2, "j": 2})
    graph = decompose(t).graph
    v = rows(graph, "x in 2x2[i0,j1]")
    assert graph.op_type[v] == "select"
    assert (graph.columns["meta_op"][v], graph.columns["meta_role"][v]) == ("x in 2x2", "reduce")
    assert [graph.op_name[graph.tensor_producer[u]] for u in graph.inputs(v)] == ["x[i0,j0]", "x[i1,j0]"]
    assert [graph.shape(int(u)) for u in graph.inputs(v)] == [(4, 2), (2, 2)]
    assert graph.bytes_accessed[v] == 2 * 6 * 2 * 4


def test_a_tensor_program_can_be_placed() -> None:
    result = api.place(everything({"m": {"i": 4}}), cluster="p100x4", policy="etf", dtype="float64")
    assert result.value_s > 0
    made: list[Program] = api.load_programs(everything({}), seed=1)
    assert made[0].executable is not None
    assert made[0].executable.recipe == {}
    for wrong, message in (({"mode": "x"}, "takes no 'mode'"), ({"dtype": "int8"}, "'int8' cannot be imported")):
        with pytest.raises(ImporterError, match=message):
            api.load_programs(everything({}), **wrong)


def test_an_input_cannot_be_run() -> None:
    made = placekit_einsum.import_program(everything({}))
    assert made.executable is not None
    with pytest.raises(ImporterError, match="is an input: there is nothing to run"):
        made.executable.compile([0])


def add(t: TensorProgram, x: Tensor, name: str, spec: str, **settings: Any) -> Tensor:
    return t.apply(name, "add", spec, x, x, **settings)


other = TensorProgram("other").input("y", "ij", (4, 6))
WRONG: list[tuple[Callable[[TensorProgram, Tensor], Any], str]] = [
    (lambda t, x: t.einsum("e", "ij,jk->ik", x, x), "dimension 'j' of 'e' .* is both 6 and 4"),
    (lambda t, x: t.einsum("e", "ij,ij->ij", x, x), "sums over nothing"),
    (lambda t, x: t.einsum("e", "ij,ij->iz", x, x), "dimension 'z' of 'e' .* is in no operand"),
    (lambda t, x: t.einsum("e", "ij->i", x, x), "has 2 operands, which 'ij->i' does not describe"),
    (lambda t, x: t.einsum("e", "ijk,ij->i", x, x), "'ijk' .* names a tensor of shape"),
    (lambda t, x: t.einsum("e", "ii,ij->i", x, x), "must be letters from a to z, each once"),
    (lambda t, x: t.einsum("e", "αβ,βγ->αγ", x, x), "must be letters from a to z"),
    (lambda t, x: t.apply("e", "relu", "ij->i", x), "drops dimension 'j'"),
    (lambda t, x: t.apply("e", "gelu", "ij->ij", x), "no function of 1 operands named 'gelu'"),
    (lambda t, x: t.apply("e", "relu", "ij,ij->ij", x, x), "no function of 2 operands named 'relu'"),
    (lambda t, x: add(t, x, "e", "ij,ij->ij", scale=2.0), "takes no scale"),
    (
        lambda t, x: add(t, x, "e", "ij,ij->ij", parts={"i": 3}),
        "dimension 'i' of 'e', 4, does not split into 3 equal parts",
    ),
    (lambda t, x: add(t, x, "e", "ij,ij->ij", parts={"k": 3}), "no dimension of 'e' named 'k'"),
    (lambda t, x: add(t, x, "e", "ij,ij->ij", parts={"i": 0}), "cannot have 0 parts"),
    (lambda t, x: add(t, x, "x", "ij,ij->ij"), "cannot be named 'x'"),
    (lambda t, x: add(t, other, "e", "ij,ij->ij"), "operand 'y' of 'e' belongs to another program"),
    (lambda t, x: t.reduce("e", "mean", "ij->i", x), "no reduction named 'mean'"),
    (lambda t, x: t.reduce("e", "sum", "ij->ij", x), "drops no dimension"),
    (lambda t, x: t.squeezer("e", "ij->i", x), "drops dimension 'j' of size 6, not 1"),
    (lambda t, x: t.squeezer("e", "ij->ji", x), "changes the order"),
    (lambda t, x: t.fill("e", "i", (3,), above=1.0), "no diagonal"),
    (lambda t, x: t.complexer("e", "ij", x, parts={"j": 2}), "dimension 'j' of 'e', 3, does not split"),
    (
        lambda t, x: t.complexer("e", "i", t.reduce("r", "sum", "ij->i", t.input("o", "ij", (3, 2)))),
        "is 3, an odd number",
    ),
    (lambda t, x: t.apply("e", "exp", "ij->ij", t.complexer("z", "ij", x)), "takes no complex numbers"),
    (lambda t, x: t.input("e", "ij", (3,)), "names a tensor of shape"),
    (lambda t, x: t.apply("e", "add", "ij,ij,ij->ij", x, x, x), "'e' has 3 operands: .* takes one or two"),
    (lambda t, x: t.apply("e", "neg", "->"), "'e' has 0 operands: .* takes one or two"),
    (lambda t, x: t.input("e", "ij", (4, 6), values="uniform"), "no kind of values named 'uniform'"),
    (
        lambda t, x: t.input("e", "ij", (4, 3), values="rotary"),
        r"has shape \(4, 3\)\n  make it \[position, even width\]",
    ),
    (lambda t, x: t.input("e", "i", (4,), values="rotary"), "even width"),
    (lambda t, x: t.input("e", "ijk", (4, 4, 4), values="rotary"), "even width"),
    (lambda t, x: t.input("e", "ij", (4, 4), values="rotary", scale=2.0), "values 'rotary' of 'e' take no scale"),
    (lambda t, x: t.input("e", "ij", (4, 4), values="ones", scale=2.0), "values 'ones' of 'e' take no scale"),
    (lambda t, x: t.input("e", "i", ("4",)), "dimension 'i' of 'e' is '4'"),
    (lambda t, x: t.input("e", "i", (4.0,)), "dimension 'i' of 'e' is 4.0"),
    (lambda t, x: t.fill("e", "i", (True,)), "dimension 'i' of 'e' is True"),
    (lambda t, x: t.input(3, "i", (4,)), "cannot be named 3"),
    (lambda t, x: add(t, x, "e", "ij,ij->ij", parts={"i": 2.0}), "cannot have 2.0 parts"),
    (lambda t, x: add(t, x, "e", "ij,ij->ij", parts={"i": "2"}), "cannot have '2' parts"),
    (lambda t, x: add(t, x, "e", "ij,ij->ij", parts={"i": None}), "cannot have None parts"),
    (lambda t, x: add(t, x, "e", "ij,ij->ij", parts={1: 2}), "no dimension of 'e' named '1'"),
    (lambda t, x: add(t, x, "e", "ij,ij->ij", parts=[1]), r"parts of 'e' are \[1\]"),
    (lambda t, x: t.einsum("e", "ij,jk->ik", "a", "b"), "operand 'a' of 'e' is not a tensor"),
    (lambda t, x: t.complexer("e", "ij", "a"), "operand 'a' of 'e' is not a tensor"),
    (lambda t, x: t.squeezer("e", "ij->ijk", other), "operand 'y' of 'e' belongs to another program"),
    (
        lambda t, x: t.complexer("e", "", t.reduce("r", "sum", "ij->", t.complexer("z", "ij", x))),
        "'r', .* no dimension",
    ),
    (lambda t, x: t.input("e", "ij", (2**30, 2**30)), "'e' write .* numbers, more than"),
    (
        lambda t, x: t.einsum(
            "e", "ij,kj->ik", t.input("f", "ij", (2**20, 64)), t.input("g", "ij", (2**20, 64)), parts={"j": 64}
        ),
        "'e' write .* numbers, more than",
    ),
    (lambda t, x: t.fill("e", "ij", (2000, 2000), parts={"i": 2000, "j": 2000}), "split into 4000000 operations"),
    (lambda t, x: t.input("e", "i", (0,)), "'e' is 0\n  it must be a whole number, 1 or more"),
    (lambda t, x: add(t, x, "sum", "ij,ij->ij") and t.input("e", "i", (3,)), "nothing reads input 'e'"),
]


@pytest.mark.parametrize(("build", "message"), WRONG)
def test_mistakes_are_named(build: Callable[[TensorProgram, Tensor], Any], message: str) -> None:
    def make() -> None:
        t = TensorProgram("wrong")
        build(t, t.input("x", "ij", (4, 6)))
        decompose(t)

    with pytest.raises(ImporterError, match=message):
        make()


def test_a_program_without_expressions_is_refused() -> None:
    with pytest.raises(ImporterError, match="has no expression"):
        decompose(TensorProgram("empty"))


def test_only_tensor_programs_are_imported() -> None:
    not_one: Any = "x"
    with pytest.raises(ImporterError, match="'x' is not a TensorProgram"):
        placekit_einsum.import_program(not_one)


def test_infinite_masks_stay_out_of_the_sum() -> None:
    t = TensorProgram("mask")
    x = t.input("x", "qk", (8, 8), parts={"q": 2, "k": 4})
    t.softmax("s", "qk", t.apply("m", "add", "qk,qk->qk", x, t.fill("f", "qk", (8, 8), above=-math.inf)))
    found = run(t)["s"]
    assert torch.equal(found, found.tril())
    torch.testing.assert_close(found.sum(1), torch.ones(8, dtype=torch.float64))
