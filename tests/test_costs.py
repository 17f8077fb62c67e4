"""costs.py: the roofline by hand, measured cost files, and cost tables that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placekit_core import (
    Cluster,
    CostTable,
    Graph,
    GraphBuilder,
    Labels,
    PlacekitError,
    Problem,
    roofline,
)
from placekit_core.contracts.costs import EFFICIENCY, with_measured


def graph(**properties: Any) -> Graph:
    """A source and the operation `op` that reads it."""
    b = GraphBuilder("small")
    w = b.source("w", 400)
    b.add("op", inputs=[w], outputs=[40], **properties)
    b.columns["signature"] = Labels.of(["", "mm(f32)"])
    return b.build()


def cluster(**kind: Any) -> Cluster:
    g = {"flops_per_s": {"float32": 1000, "float16": 4000}, "memory_bytes": 10**6, "memory_bytes_per_s": 100, **kind}
    c = {**g, "flops_per_s": {"float32": 100}}
    devices = [{"kind": "g", "count": 2}, {"kind": "c"}]
    return Cluster.parse({"kinds": {"g": g, "c": c}, "devices": devices, "links": [{"mesh": "*", "bytes_per_s": 1}]})


def seconds(machine: Cluster, **properties: Any) -> list[float]:
    costs = roofline(graph(**properties), machine)
    assert costs.kinds == ("g", "c")
    assert costs.op_s[0].tolist() == [0, 0], "sources take no time"
    assert not costs.measured.any()
    return [float(s) for s in costs.op_s[1]]


def test_arithmetic_at_the_rate_of_the_dtype() -> None:
    matmul = {"op_class": "matmul", "flops": 3000.0}
    assert seconds(cluster(), **matmul) == pytest.approx([3000 / 750, 3000 / 75])
    assert seconds(cluster(), dtype="float16", **matmul) == pytest.approx([3000 / 3000, 3000 / 75])
    assert seconds(cluster(), dtype="int8", **matmul) == pytest.approx([3000 / 750, 3000 / 75])  # as float32


def test_tensor_cores_reach_another_fraction() -> None:
    machine = cluster(efficiency={"matmul": {"compute": 0.5, "memory": 0.9, "compute_16bit": 0.25}})
    for dtype, expected in (("float32", 3000 / 500), ("float16", 3000 / 1000), ("int8", 3000 / 500)):
        assert seconds(machine, op_class="matmul", dtype=dtype, flops=3000.0)[0] == pytest.approx(expected)


@pytest.mark.parametrize("name", [*EFFICIENCY, "anything"])
def test_efficiency_of_the_class(name: str) -> None:
    row = dict(EFFICIENCY.items()).get(name, EFFICIENCY["other"])
    rate = 4 if name == "quantized_matmul" else 1  # of float16, whatever the dtype
    assert seconds(cluster(), op_class=name, flops=1000.0)[0] == pytest.approx(1 / row.compute / rate)
    assert seconds(cluster(), op_class=name, bytes_accessed=100.0)[0] == pytest.approx(1 / row.memory)


def test_the_longer_of_arithmetic_and_traffic() -> None:
    machine = cluster(efficiency={"other": {"compute": 1, "memory": 1}})
    assert seconds(machine, flops=1000.0, bytes_accessed=50.0) == [1, 10]  # compute-bound
    assert seconds(machine, flops=1000.0, bytes_accessed=400.0) == [4, 10]  # memory-bound on g only
    assert seconds(machine, flops=1000.0, bytes_accessed=5000.0) == [50, 50]


def test_override_of_the_kind_and_launch_overhead() -> None:
    machine = cluster(efficiency={"matmul": {"compute": 0.5, "memory": 0.25}}, launch_overhead_s=7)
    assert seconds(machine, op_class="matmul", flops=1000.0)[0] == 7 + 2
    assert seconds(machine, op_class="matmul", bytes_accessed=100.0)[0] == 7 + 4
    assert seconds(machine, op_class="copy", bytes_accessed=100.0)[0] == pytest.approx(7 + 1 / 0.8)
    assert seconds(machine) == [7, 7]


def cost_file(path: Path, kinds: Any, **values: Any) -> Path:
    path.write_text(json.dumps({"format": "placekit-costs", "version": 1, "kinds": kinds, **values}))
    return path


def measured(path: Path, kinds: Any) -> CostTable:
    g = graph(flops=1000.0)
    return with_measured(roofline(g, cluster()), g, cost_file(path / "costs.json", kinds))


def test_measured_figures(tmp_path: Path) -> None:
    by_name = measured(tmp_path, {"g": {"operations": {"op": 5, "w": 3, "other": 1}}})
    assert by_name.op_s.tolist() == [[0, 0], [5, 20]]
    assert by_name.measured.tolist() == [[False, False], [True, False]]
    assert measured(tmp_path, {"c": {"signatures": {"mm(f32)": 6}}}).op_s[1].tolist() == [2, 6]
    both = {"operations": {"op": 5}, "signatures": {"mm(f32)": 6}}
    assert measured(tmp_path, {"g": both, "tpu": both}).op_s[1].tolist() == [5, 20]


def test_a_file_without_a_figure_is_an_error(tmp_path: Path) -> None:
    kinds: Any
    for kinds in ({}, {"tpu": {"operations": {"op": 1}}}, {"g": {"operations": {"w": 1}}}, {"g": {}}):
        with pytest.raises(PlacekitError, match=r"costs\.json has no figure for any operation of 'small' on g, c"):
            measured(tmp_path, kinds)


@pytest.mark.parametrize("value", [-1, 1e308, 2e12, float("inf"), float("nan"), "x", None])
def test_figures_that_are_no_seconds(tmp_path: Path, value: Any) -> None:
    with pytest.raises(PlacekitError, match=r"costs\.json is not a readable cost file: kinds\.g\.operations\.op: "):
        measured(tmp_path, {"g": {"operations": {"op": value}}})


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"\xff", b"[]", b"3", b"{}", b"[" * 100_000, b'{"kinds": []}', b'{"kinds": {"g": 1}}',
     b'{"kinds": {}, "version": 2}', b'{"kinds": {}, "format": "x"}', b'{"kinds": {}, "x": 1}'],
    ids=lambda d: d[:30].decode(errors="replace"),
)  # fmt: skip
def test_malformed_files_are_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(data)
    g = graph()
    with pytest.raises(PlacekitError, match=r"costs\.json"):
        with_measured(roofline(g, cluster()), g, path)
    with pytest.raises(PlacekitError, match="cannot read cost file"):
        with_measured(roofline(g, cluster()), g, tmp_path)


@pytest.mark.parametrize(
    ("op_s", "message"),
    [
        (np.zeros((2, 1)), r"op_s of shape \(2, 1\)[\s\S]*\(2, 2\)"),
        (np.asarray([[0, 0], [1, np.nan]]), "'op' of 'small' is nan s on 'c'"),
        (np.asarray([[0, 0], [np.inf, 1]]), "'op' of 'small' is inf s on 'g'"),
        (np.asarray([[0, 0], [1e308, 1]]), r"'op' of 'small' is 1e\+308 s on 'g'"),
        (np.asarray([[0, 0], [1, -1.0]]), "'op' of 'small' is -1.0 s on 'c'"),
        (np.asarray([[0, 0.5], [1, 1]]), r"'w' of 'small' is 0.5 s on 'c'[\s\S]*sources take no time"),
    ],
)
def test_costs_that_a_problem_refuses(op_s: Any, message: str) -> None:
    with pytest.raises(PlacekitError, match=message):
        Problem.of(graph(), cluster(), costs=CostTable(("g", "c"), op_s, np.zeros(op_s.shape, np.bool_)))
    fine = CostTable(("g", "c"), np.asarray([[0, 0], [1, 2.0]]), np.zeros((2, 2), np.bool_))
    assert Problem.of(graph(), cluster(), costs=fine).op_s.tolist() == [[0, 0, 0], [1, 1, 2]]
