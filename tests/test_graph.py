"""graph.py and graph_file.py: what a graph says of itself, what it refuses, and that files give back the same."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from placekit_testing import fakes

from placekit_core import Graph, GraphBuilder, GraphError, Labels, load_graph, save_graph, validate_graph


def diamond() -> Graph:
    """w, x -> matmul -> (relu, split[2 outputs]) -> add; the gradient and the update of w."""
    b = GraphBuilder("diamond")
    w = b.source("w", 400, colocate=0, shape=(10, 10))
    x = b.source("x", 40, op_type="input", shape=(10,))
    (y,) = b.add("matmul", inputs=[w, x], outputs=[40], flops=200, bytes_accessed=480, op_class="matmul", module="fc")
    (r,) = b.add("relu", inputs=[y], outputs=[40], shapes=[(10,)], flops=10)
    s1, s2 = b.add("split", inputs=[y], outputs=[20, 20])
    (z,) = b.add("add", inputs=[r, s1, s2], outputs=[40], allowed="cpu|gpu")
    (g,) = b.add("grad", inputs=[z, x], outputs=[400], phase="backward", module="fc")
    update = len(b.operations)
    b.add("update", inputs=[w, g], phase="update", colocate=0)
    b.output(update, 400, (10, 10), storage=w)
    b.columns["forward_of"] = np.asarray([-1, -1, -1, -1, -1, -1, 2, -1], np.int32)
    b.columns["signature"] = Labels.of(o.name for o in b.operations)
    b.attributes = {"batch": 1, "from": ["test"]}
    return b.build()


def random_graph(rng: np.random.Generator, n: int) -> Graph:
    """n operations in shuffled order, so that indices are no topological order."""
    position = rng.permutation(n)
    b = GraphBuilder("random")
    tensor: dict[int, int] = {}
    for v in range(n):
        b.add(f"op{v}", flops=float(rng.integers(0, 9)))
        tensor[v] = b.output(v, int(rng.integers(0, 99)))
    for v in range(n):
        before = np.flatnonzero(position < position[v])
        chosen = before[rng.random(len(before)) < 0.3]
        b.operations[v].inputs.extend(tensor[int(u)] for u in chosen)
    return b.build()


def test_topology() -> None:
    g = diamond()
    assert (g.n, g.t, g.e) == (8, 9, 11)
    assert g.inputs(2).tolist() == [0, 1]
    assert list(g.outputs(4)) == [4, 5]
    assert g.consumers(2).tolist() == [3, 4]
    assert g.consumers(1).tolist() == [2, 6]
    assert g.shape(0) == (10, 10)
    assert g.shape(2) == ()
    assert g.tensor_storage[8] == 0
    # sources and what updates them own nothing
    assert g.owned_bytes.tolist() == [0, 0, 40, 40, 20, 20, 40, 400, 0]
    # sources have depth 0 and add nothing to what reads them
    assert g.depth.tolist() == [0, 0, 0, 1, 1, 2, 3, 4]
    u, v = g.op_edges
    assert (3, 5) in set(zip(u.tolist(), v.tolist(), strict=True))
    assert len(u) == 10  # split -> add is one pair with two tensors
    assert repr(g) == "Graph('diamond', 8 operations, 9 tensors, 11 edges)"


def test_columns_are_read_only() -> None:
    g = diamond()
    for column in (g.flops, g.input_tensor, g.op_type.codes, g.columns["forward_of"]):
        assert isinstance(column, np.ndarray)
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1
    problem = fakes.diamond()
    for shared in (g.flops, problem.op_s, problem.group_s, problem.cluster.routes.latency_s):
        with pytest.raises(ValueError, match="cannot set WRITEABLE flag"):
            shared.setflags(write=True)


@given(st.integers(0, 2**32), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_topological_order_of_shuffled_graphs(seed: int, n: int) -> None:
    g = random_graph(np.random.default_rng(seed), n)
    position = np.empty(n, int)
    position[g.topological_order] = np.arange(n)
    assert sorted(g.topological_order.tolist()) == list(range(n))
    assert (position[g.tensor_producer[g.input_tensor]] < position[g.edge_op]).all()
    for v in range(n):
        before = g.tensor_producer[g.inputs(v)]
        assert g.depth[v] == (g.depth[before].max() + 1 if len(before) else 0)


def test_cycle_is_named() -> None:
    b = GraphBuilder("loop")
    (t,) = b.add("a", outputs=[1])
    (s,) = b.add("b", inputs=[t], outputs=[1])
    (r,) = b.add("c", inputs=[s], outputs=[1])
    b.add("d", inputs=[r])
    b.operations[1].inputs.append(r)
    with pytest.raises(GraphError, match=r"has a cycle: (b -> c -> b|c -> b -> c)"):
        b.build()


def change(**columns: object) -> Graph:
    return diamond().replace(**columns)


def edited(column: str, row: int, value: float) -> Graph:
    values = np.array(getattr(diamond(), column))
    values[row] = value
    return change(**{column: values})


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (edited("flops", 2, np.nan), "flops of operation 'matmul' is nan"),
        (edited("bytes_accessed", 3, -1), "bytes_accessed of operation 'relu' is -1"),
        (edited("phase", 0, 3), "phase"),
        (edited("tensor_producer", 0, 5), "not sorted"),
        (edited("input_tensor", 0, 99), "input_tensor .* points outside"),
        (edited("input_tensor", 0, 1), "lists one tensor twice"),
        (edited("input_ptr", 3, 9), "input_ptr .* not an ascending row pointer"),
        (edited("kernel", 3, False), "source 'relu' reads a tensor"),
        (edited("tensor_storage", 3, 2), "an output of 'relu' shares the memory of 'matmul'"),
        (change(op_name=("w",) * 8), "'w' .* occurs twice"),
        (change(op_name=("a\nb", *diamond().op_name[1:])), "line break"),
        (change(flops=np.zeros(3)), "'flops' .* has 3 rows, not 8"),
        (change(module=Labels(np.full(8, 9, np.int32), ("",))), "'module' .* outside its vocabulary"),
        (change(columns={"extra": np.zeros(2)}), "'extra' .* has 2 rows"),
    ],
)
def test_what_is_refused(graph: Graph, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        validate_graph(graph)


def test_builder_refuses() -> None:
    b = GraphBuilder("bad")
    b.add("op", inputs=[7])
    with pytest.raises(GraphError, match="'op' reads a tensor that nothing writes"):
        b.build()
    b = GraphBuilder("bad")
    b.add("op", phase="sideways")
    with pytest.raises(GraphError, match="phase of operation 'op' is 'sideways'"):
        b.build()


def test_fingerprint_covers_columns_and_names_only() -> None:
    g = diamond()
    assert g.fingerprint == diamond().fingerprint
    assert g.replace(attributes={"other": 1}, name="other").fingerprint == g.fingerprint
    for other in (
        edited("flops", 2, 201),
        edited("colocate", 3, 4),
        change(op_name=("w2", *g.op_name[1:])),
        change(columns={}),
        change(module=Labels(g.module.codes, ("", "fc2"))),
    ):
        assert other.fingerprint != g.fingerprint


def same(a: Graph, b: Graph) -> bool:
    own = {f.name for f in dataclasses.fields(Graph)} - {"columns"}
    for key in own:
        x, y = getattr(a, key), getattr(b, key)
        if isinstance(x, Labels):
            if x.tolist() != y.tolist():
                return False
        elif isinstance(x, np.ndarray):
            if x.dtype != y.dtype or not np.array_equal(x, y):
                return False
        elif x != y:
            return False
    return a.fingerprint == b.fingerprint and set(a.columns) == set(b.columns)


def test_file_round_trip(tmp_path: Path) -> None:
    g = diamond()
    path = save_graph(g, tmp_path / "d.graph.npz")
    back = load_graph(path)
    assert same(g, back)
    assert back.attributes == {"batch": 1, "from": ["test"]}
    signature = back.columns["signature"]
    assert isinstance(signature, Labels)
    assert signature[2] == "matmul"
    assert [p.name for p in tmp_path.iterdir()] == ["d.graph.npz"]
    assert same(g, pickle.loads(pickle.dumps(g)))
    empty = GraphBuilder("empty").build()
    assert same(empty, load_graph(save_graph(empty, tmp_path / "e.graph.npz")))


def test_file_errors(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="no graph file"):
        load_graph(tmp_path / "none.graph.npz")
    path = save_graph(diamond(), tmp_path / "d.graph.npz")
    data = path.read_bytes()
    (tmp_path / "text").write_text("hello")
    with pytest.raises(GraphError, match="not a readable graph file"):
        load_graph(tmp_path / "text")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(GraphError, match="not a readable graph file"):
        load_graph(tmp_path / "other.npz")
    np.savez(tmp_path / "pickled.npz", op_name=np.asarray([{}], object))
    with pytest.raises(GraphError, match="not a readable graph file"):
        load_graph(tmp_path / "pickled.npz")
    for size in (0, 10, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(GraphError, match="not a readable graph file"):
            load_graph(path)


def test_file_of_another_version_and_changed_content(tmp_path: Path) -> None:
    path = save_graph(diamond(), tmp_path / "d.graph.npz")
    with np.load(path) as archive:
        arrays = dict(archive)
    header = arrays["header.json"].tobytes()
    newer = np.frombuffer(header.replace(b'"version": 1', b'"version": 2'), np.uint8)
    np.savez(tmp_path / "newer.npz", **{**arrays, "header.json": newer})
    with pytest.raises(GraphError, match=r"version: input should be 1 \(got 2\)"):
        load_graph(tmp_path / "newer.npz")
    np.savez(tmp_path / "changed.npz", **{**arrays, "flops": arrays["flops"] + 1})
    with pytest.raises(GraphError, match="fingerprint"):
        load_graph(tmp_path / "changed.npz")
    np.savez(tmp_path / "less.npz", **{k: v for k, v in arrays.items() if k != "call"})
    with pytest.raises(GraphError, match="no member call"):
        load_graph(tmp_path / "less.npz")


@pytest.mark.parametrize(
    ("members", "header", "message"),
    [
        ({"kernel": np.ones(8)}, {}, "another type"),
        ({"op_name": None}, {}, "no member op_name"),
        ({"op_name": np.asarray([255, 254], np.uint8)}, {}, "not a readable graph file"),
        ({"flops": np.asarray([{}] * 8)}, {}, "not a readable graph file"),
        ({}, {"vocabularies": []}, r"not a readable graph file: vocabularies: .* dictionary \(got \[\]\)"),
        ({}, {"vocabularies": {"module": "abc"}}, "vocabularies.module: input should be a valid list"),
        ({}, {"name": 3}, r"name: input should be a valid string \(got 3\)"),
    ],
)
def test_altered_files(tmp_path: Path, members: dict[str, Any], header: dict[str, Any], message: str) -> None:
    with np.load(save_graph(diamond(), tmp_path / "d.graph.npz")) as archive:
        arrays = dict(archive)
    text = {**json.loads(arrays["header.json"].tobytes()), **header}
    arrays["header.json"] = np.frombuffer(json.dumps(text).encode(), np.uint8)
    np.savez(tmp_path / "x.npz", **{k: v for k, v in {**arrays, **members}.items() if v is not None})
    with pytest.raises(GraphError, match=message):
        load_graph(tmp_path / "x.npz")


def test_odd_names(tmp_path: Path) -> None:
    names = ("", "a b", "a/b", "ü\r", "\t", "'", '"', "日本")
    g = change(op_name=names)
    validate_graph(g)
    assert load_graph(save_graph(g, tmp_path / "odd ü.npz")).op_name == names
    b = GraphBuilder("one")
    b.add("")
    assert load_graph(save_graph(b.build(), tmp_path / "one.npz")).op_name == ("",)
