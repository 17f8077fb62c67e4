"""The papers' tensor programs: as many operations as published, and the values of the plain computation."""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from placekit_einsum import EinsumOptions
from placekit_einsum.importer import EinsumImporter
from pydantic import ValidationError
from torch import Tensor

from placekit_core import ImporterError, Program, strongly_connected
from placekit_core.run import api

torch.set_num_threads(1)  # the tensors are small, and tests run side by side

LLAMA = {"sequence": 16, "embedding": 32, "heads": 4}
SMALL: dict[str, dict[str, int]] = {
    "chainmm": {"n": 32},
    "ffnn": {"rows": 64, "features": 8, "hidden": 16, "classes": 6},
    "llama_block": LLAMA,
    "llama_layer": {**LLAMA, "feed_forward": 48},
}
COUNTS = {  # operations without inputs, inputs
    ("chainmm", 4): (76, 36), ("chainmm", 8): (128, 64),
    ("ffnn", 4): (180, 12), ("ffnn", 8): (360, 16),
    ("llama_block", 4): (182, 32), ("llama_block", 8): (302, 37),
    ("llama_layer", 4): (229, 32), ("llama_layer", 8): (367, 59),
}  # fmt: skip
CASES = [(program, devices) for program in SMALL for devices in (4, 8)]


@cache
def small(program: str, devices: int, biases: bool = False) -> Program:
    options = {"dtype": "float64", "seed": 7, "biases": biases}
    return EinsumImporter(program=program, devices=devices, sizes=SMALL[program], **options).load()[0]


def whole_inputs(program: Program) -> dict[str, Tensor]:
    """The inputs, put together from the initial values of their blocks by their names: `A[i0,k1]`."""
    graph, values = program.graph, program.executable.initial()
    blocks: dict[str, dict[tuple[int, ...], Tensor]] = {}
    for t, value in values.items():
        name, _, index = graph.op_name[graph.tensor_producer[t]].removesuffix("]").partition("[")
        blocks.setdefault(name, {})[tuple(int(part[1:]) for part in index.split(","))] = value
    found = {}
    for name, parts in blocks.items():
        counts = np.max(list(parts), axis=0) + 1
        shape = next(iter(parts.values())).shape
        whole = torch.empty([int(n * s) for n, s in zip(counts, shape, strict=True)], dtype=torch.float64)
        for index, value in parts.items():
            whole[tuple(slice(i * s, (i + 1) * s) for i, s in zip(index, shape, strict=True))] = value
        found[name] = whole
    return found


def run_in_order(program: Program, order: list[int]) -> dict[int, Tensor]:
    """All values, one operation at a time."""
    executable, values = program.executable, program.executable.initial()
    for op in order:
        reads = {executable.views.get(t, t) for t in program.graph.inputs(op).tolist()}
        values |= executable.compile([op])({t: values[t] for t in reads})
    return values


def random_order(program: Program, rng: np.random.Generator) -> list[int]:
    """Kernels in a random topological order."""
    graph = program.graph
    source, target = graph.op_edges
    missing = np.bincount(target[graph.kernel[source]], minlength=graph.n)
    ready = [v for v in range(graph.n) if graph.kernel[v] and missing[v] == 0]
    order = []
    while ready:
        v = ready.pop(rng.integers(len(ready)))
        order.append(v)
        for w in target[source == v].tolist():
            missing[w] -= 1
            if missing[w] == 0:
                ready.append(w)
    return order


def plain(program: str, x: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the program computes, without einsum expressions and blocks."""
    if program == "chainmm":
        return {"sum": x["A"] @ x["B"] + x["C"] @ (x["D"] @ x["E"])}
    if program == "ffnn":
        hidden = torch.relu(x["X"] @ x["W1"] + x.get("b1", torch.zeros(1)))
        return {"softmax": torch.softmax(hidden @ x["W2"] + x.get("b2", torch.zeros(1)), 1)}
    y = x["x"] + llama_attention(x)
    if program == "llama_block":
        return {"residual1": y}
    z = rms(y, x["norm2_weight"])
    return {"residual2": y + (torch.nn.functional.silu(z @ x["W1"]) * (z @ x["W3"])) @ x["W2"]}


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)


def llama_attention(x: dict[str, Tensor]) -> Tensor:
    sequence, e = x["x"].shape
    heads, d = LLAMA["heads"], e // LLAMA["heads"]
    y = rms(x["x"], x["norm1_weight"])
    q, k, v = ((y @ x[w].reshape(e, e)).reshape(sequence, heads, d).transpose(0, 1) for w in ("Wq", "Wk", "Wv"))

    def turn(z: Tensor) -> Tensor:
        even, odd = z[..., 0::2], z[..., 1::2]
        at = torch.arange(sequence, dtype=torch.float64)[:, None]
        angle = at * 10000.0 ** (-2 * torch.arange(d // 2, dtype=torch.float64) / d)
        turned = torch.stack([even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()], -1)
        return turned.flatten(-2)

    out = torch.nn.functional.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
    return out.transpose(0, 1).reshape(sequence, e) @ x["Wo"].reshape(e, e)


@pytest.mark.parametrize(("program", "devices", "biases"), [*((*c, False) for c in CASES), ("ffnn", 4, True)])
def test_values_are_those_of_the_plain_computation(program: str, devices: int, biases: bool) -> None:
    made = small(program, devices, biases)
    graph, executable = made.graph, made.executable
    wanted = plain(program, whole_inputs(made))
    values = executable.initial()
    kept = set(executable.results.values())
    in_order = [v for v in graph.topological_order.tolist() if graph.kernel[v]]
    at_once = executable.compile(in_order, keep=kept)(values)
    assert at_once.keys() == kept
    for found in (at_once, run_in_order(made, random_order(made, np.random.default_rng(devices)))):
        results = executable.gather(found)
        assert results.keys() == wanted.keys()
        for name, value in results.items():
            torch.testing.assert_close(value, wanted[name], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("program", "devices"), CASES)
def test_as_many_operations_as_published(program: str, devices: int) -> None:
    graph = EinsumImporter(program=program, devices=devices).load()[0].graph
    assert (graph.kernel.sum(), (~graph.kernel).sum()) == COUNTS[program, devices]
    little = small(program, devices).graph  # decomposed in the same way
    assert little.op_name == graph.op_name
    assert np.array_equal(little.input_tensor, graph.input_tensor)


@pytest.mark.parametrize("devices", [4, 8])
def test_products_have_the_arithmetic_of_the_whole(devices: int) -> None:
    s, e, f = 4096, 4096, 11008
    attention = 4 * 2 * s * e * e + 2 * 2 * s * s * e
    wanted = {
        "chainmm": 3 * 2e12,
        "ffnn": 2 * 2 * 2**15 * 2**5 * 2**16,
        "llama_block": attention,
        "llama_layer": attention + 3 * 2 * s * e * f,
    }
    for program, flops in wanted.items():
        graph = EinsumImporter(program=program, devices=devices).load()[0].graph
        assert graph.flops[graph.op_class.is_value("matmul")].sum() == flops
        assert graph.flops.sum() < 1.02 * flops


@pytest.mark.parametrize(("program", "devices"), CASES)
def test_meta_operations_are_ordered_and_balanced(program: str, devices: int) -> None:
    graph = small(program, devices).graph
    meta, role = graph.columns["meta_op"].tolist(), graph.columns["meta_role"].tolist()
    names = list(dict.fromkeys(m for m in meta if m))
    for v in range(graph.n):
        assert (role[v] == "input") == (meta[v] == "") == (not graph.kernel[v])
    edges = set()
    for u, v in zip(*(a.tolist() for a in graph.op_edges), strict=True):
        if meta[u] and meta[u] != meta[v]:
            edges.add((names.index(meta[u]), names.index(meta[v])))
        elif meta[u]:
            assert (role[u], role[v]) == ("shard", "reduce")  # inside one, shards are aggregated, and nothing else
    assert all(a < b for a, b in edges)  # the order in which they appear is topological
    ends = np.asarray(sorted(edges), np.int64)
    assert len(set(strongly_connected(len(names), ends[:, 0], ends[:, 1]).tolist())) == len(names)
    shards = Counter(m for m, r in zip(meta, role, strict=True) if r == "shard")
    uneven = {m for m, count in shards.items() if count % devices}
    small_ones = {"turns", "mask"} if "llama" in program else set()
    if (program, devices) == ("llama_layer", 8):  # heads in 4 parts: the rotary embeddings have 4 shards
        small_ones |= {f"{x}_{step}" for x in "qk" for step in ("complex", "turned", "rotary")}
    assert uneven <= small_ones
    aggregated = Counter(m for m, r in zip(meta, role, strict=True) if r == "reduce")
    assert set(aggregated) - set(shards) == {m for m in names if m not in shards}  # selections have no shards


def test_kinds_of_operations_are_the_papers() -> None:
    found = set(small("llama_layer", 4).graph.op_type.vocabulary)
    assert found == {
        "input", "matmul", "input_elemwise", "straight_elemwise", "bcast_elemwise", "max_reduction", "sum_reduction",
        "formation", "complexer", "fill", "select",
    }  # fmt: skip


def coloured(formation: list[bool], edges: list[tuple[int, int]]) -> Counter[int]:
    """Colours of the operations after refinement by those around them (Weisfeiler and Leman 1968)."""
    before: list[list[int]] = [[] for _ in formation]
    after: list[list[int]] = [[] for _ in formation]
    for u, v in edges:
        before[v].append(u)
        after[u].append(v)
    colour = [hash(f) for f in formation]
    for _ in range(20):
        colour = [
            hash((colour[v], tuple(sorted(colour[u] for u in before[v])), tuple(sorted(colour[w] for w in after[v]))))
            for v in range(len(formation))
        ]
    return Counter(colour)


@pytest.mark.skipif("PLACEKIT_SAMPLES" not in os.environ, reason="needs the published graphs: PLACEKIT_SAMPLES")
@pytest.mark.parametrize(("program", "file"), [("chainmm", "chain_mm_112nodes"), ("ffnn", "ffnn_192nodes")])
def test_graphs_are_those_that_were_published(program: str, file: str) -> None:
    path = Path(os.environ["PLACEKIT_SAMPLES"]) / "doppler" / f"gdp_{file}.txt"
    head, inputs, sources, targets, *rows = path.read_text().splitlines()
    numbers = [[int(x) for x in line.split(",") if x.strip()] for line in (inputs, sources, targets)]
    published = coloured(["formation" in r for r in rows if r], list(zip(*numbers[1:], strict=True)))
    graph = EinsumImporter(program=program).load()[0].graph
    assert (graph.n, (~graph.kernel).sum()) == (int(head), len(numbers[0]))
    number = np.cumsum(graph.kernel) - 1
    source, target = (end[graph.kernel[graph.op_edges[0]]] for end in graph.op_edges)
    formation = graph.op_type.is_value("formation")[graph.kernel].tolist()
    assert coloured(formation, list(zip(number[source].tolist(), number[target].tolist(), strict=True))) == published


def test_it_is_placed() -> None:
    result = api.place("einsum", sizes={"n": 64}, cluster="p100x4", policy="etf")
    assert 0 < result.value_s < 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"program": "chainmm", "sizes": {"m": 4}}, "no size 'm'; its sizes: n"),
        ({"program": "chainmm", "biases": True}, "biases are for ffnn"),
        ({"program": "attention"}, "'chainmm', 'ffnn', 'llama_block' or 'llama_layer'"),
        ({"devices": 6}, "4 or 8"),
        ({"sizes": {"n": 0}}, "greater than or equal to 1"),
        ({"parts": {"DE": {"i": 0}}}, "greater than or equal to 1"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EinsumOptions(**wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sizes": {"n": 15}}, "dimension 'i' of 'DE', 15, does not split into 2 equal parts"),
        ({"parts": {"DF": {"i": 2}}}, "no tensor named 'DF'"),
        ({"parts": {"DE": {"x": 2}}}, "no dimension of 'DE' named 'x'"),
        ({"program": "llama_block", "sizes": {"heads": 3}}, "3 heads do not divide"),
        ({"sizes": {"n": 10**12}}, "'A' write .* numbers, more than"),
        ({"parts": {"DE": {"i": 2000, "k": 2000, "j": 1}}}, "'DE' is split into 4000000 operations"),
    ],
)
def test_programs_that_do_not_fit_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ImporterError, match=message):
        EinsumImporter(**wrong).load()
