"""Importer `towers`: what is replicated, what is shared, and in what order things can happen."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from placekit_testing import ImporterContract
from placekit_testing.contract import Make
from placekit_zoo.mlp import MlpImporter
from placekit_zoo.towers import TowersImporter, replicate

from placekit_core import PHASES, ConfigError, Graph, GraphBuilder, ImporterError, PluginError

torch.set_num_threads(1)

OF = {"name": "mlp", "batch": 12, "hidden": [8], "optimizer": "adam"}
FORWARD, BACKWARD, UPDATE = range(len(PHASES))


@pytest.mark.slow
class TestTowers(ImporterContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(TowersImporter, of=OF, towers=3, steps=2)


def load(towers: int = 3, of: dict[str, Any] | None = None, **options: Any) -> tuple[Graph, Graph]:
    """The graph of towers, and that of one."""
    of = of or OF
    graph = TowersImporter(of=of, towers=towers, **options).load()[0].graph
    values = {k: v for k, v in of.items() if k != "name"}
    return graph, MlpImporter(**{**values, "batch": of["batch"] // towers}).load()[0].graph


def test_a_kernel_that_writes_over_another_one_does_so_in_each_tower() -> None:
    b = GraphBuilder("indexed")
    w = b.source("w", 8, colocate=0)
    [zeros] = b.add("zeros", inputs=[w], outputs=[8], colocate=1, phase="backward")
    b.add("put", inputs=[zeros], colocate=1, phase="backward")
    gradient = b.output(2, 8, storage=zeros)
    b.add("update", inputs=[w, gradient], colocate=0, phase="update")
    b.output(3, 8, storage=w)
    graph = replicate(b.build(), 2)
    owner = graph.tensor_producer[graph.tensor_storage]
    over = np.flatnonzero(graph.kernel[owner] & (owner != graph.tensor_producer))
    names = [(graph.op_name[graph.tensor_producer[t]], graph.op_name[owner[t]]) for t in over]
    assert [(a.rpartition("/")[2], b.rpartition("/")[2]) for a, b in names] == [("put", "zeros")] * 2


def ancestors(graph: Graph, op: int) -> set[int]:
    found, waiting = {op}, [op]
    while waiting:
        new = set(graph.tensor_producer[graph.inputs(waiting.pop())].tolist()) - found
        found |= new
        waiting += new
    return found


def select(graph: Graph, tower: int, phase: int) -> list[int]:
    """Kernels of a tower and phase."""
    rows: list[int] = np.flatnonzero(graph.kernel & (graph.columns["tower"] == tower) & (graph.phase == phase)).tolist()
    return rows


def test_towers_are_copies_with_a_part_of_the_batch() -> None:
    graph, one = load()
    for phase in (FORWARD, BACKWARD):
        own = np.flatnonzero(one.kernel & (one.phase == phase))
        for tower in range(3):
            rows = select(graph, tower, phase)
            assert [graph.op_name[v] for v in rows] == [f"tower{tower}/{one.op_name[v]}" for v in own]
            assert graph.flops[rows].tolist() == one.flops[own].tolist()
            assert (
                graph.columns["signature"].take(np.asarray(rows)).tolist()
                == one.columns["signature"].take(own).tolist()
            )
            assert graph.module.take(np.asarray(rows)).tolist() == one.module.take(own).tolist()
    for v in np.flatnonzero(graph.columns["forward_of"] >= 0):
        forward = graph.columns["forward_of"][v]
        assert graph.columns["tower"][v] == graph.columns["tower"][forward]
        assert graph.phase[forward] == FORWARD


def test_parameters_and_updates_are_there_once() -> None:
    graph, one = load()
    for kind, times in (("parameter", 1), ("state", 1), ("input", 3)):
        assert graph.op_type.is_value(kind).sum() == times * one.op_type.is_value(kind).sum() > 0
    assert len(select(graph, -1, UPDATE)) == (one.kernel & (one.phase == UPDATE)).sum()
    shared = graph.columns["tower"] < 0
    assert (
        graph.persistent_bytes[shared].sum()
        == one.persistent_bytes[one.op_type.is_value("parameter") | one.op_type.is_value("state")].sum()
    )


def test_synchronous_updates_wait_for_all_towers() -> None:
    graph, one = load()
    averages = [v for v in range(graph.n) if graph.op_type[v] == "average"]
    assert len(averages) == one.op_type.is_value("parameter").sum()
    for v in averages:
        producers = graph.tensor_producer[graph.inputs(v)]
        assert graph.columns["tower"][producers].tolist() == [0, 1, 2]
        [t] = graph.outputs(v)
        assert (graph.tensor_bytes[graph.inputs(v)] == graph.tensor_bytes[t]).all()
        assert graph.bytes_accessed[v] == 4 * graph.tensor_bytes[t]
        assert graph.flops[v] == 3 * graph.tensor_bytes[t] / 4
        readers = {int(r) for r in graph.consumers(t)}
        assert readers <= set(select(graph, -1, UPDATE))
        assert all(graph.module[r] == graph.module[v] for r in readers)
        assert (graph.phase[v], graph.colocate[v]) == (BACKWARD, -1)
    read = {int(u) for v in select(graph, -1, UPDATE) for u in graph.tensor_producer[graph.inputs(v)]}
    assert set(graph.columns["tower"][sorted(read)].tolist()) == {-1}
    assert read >= set(averages)


def test_asynchronous_towers_never_wait_for_each_other() -> None:
    graph, one = load(synchronous=False, steps=3)
    assert not graph.op_type.is_value("average").any()
    assert len(select(graph, -1, UPDATE)) == 9 * (one.kernel & (one.phase == UPDATE)).sum()
    for v in select(graph, -1, UPDATE):
        own = graph.op_name[v].split("/")[1]
        assert {graph.op_name[u].split("/")[1] for u in ancestors(graph, v) if graph.kernel[u]} == {own}


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_step_reads_what_the_step_before_updated(synchronous: bool) -> None:
    graph, _ = load(synchronous=synchronous, steps=2)
    before = {v for v in range(graph.n) if graph.op_name[v].startswith("step0/") and graph.phase[v] == UPDATE}
    weights = [v for v in range(graph.n) if graph.op_type[v] == "parameter"]
    assert before
    for tower in range(3):
        second = [v for v in select(graph, tower, FORWARD) if graph.op_name[v].startswith("step1/")]
        read = {int(u) for v in second for u in graph.tensor_producer[graph.inputs(v)]}
        assert not read & set(weights)
        updated = read & before
        assert len(updated) == len(weights)
        assert all(synchronous or f"tower{tower}/" in graph.op_name[u] for u in updated)
    for weight in weights:
        home = graph.outputs(weight)[0]
        versions = np.flatnonzero(graph.tensor_storage == home)
        assert len(versions) == 1 + 2 * (1 if synchronous else 3)
        assert len(set(graph.colocate[graph.tensor_producer[versions]].tolist())) == 1


def test_views_of_parameters_are_renewed() -> None:
    b = GraphBuilder("views")
    w = b.source("w", 80, colocate=0)
    half = b.output(0, 40, storage=w)
    x = b.source("x", 8, op_type="input")
    [y] = b.add("forward", inputs=[half, x], outputs=[8])
    [d] = b.add("gradient", inputs=[y], outputs=[80], phase="backward")
    b.output(len(b.operations), 80, storage=w)
    b.add("update", inputs=[w, d], phase="update", colocate=0)
    graph = replicate(b.build(), 2, steps=2)
    second = graph.op_name.index("step1/tower1/forward")
    read = [t for t in graph.inputs(second) if graph.op_name[graph.tensor_producer[t]] == "step0/update"]
    assert graph.tensor_bytes[read].tolist() == [40]
    assert graph.op_name[graph.tensor_producer[graph.tensor_storage[read[0]]]] == "w"


def with_other_reads(rate_in_forward: bool = False, buffer: str = "") -> Graph:
    """A training step whose update reads a learning rate, and may read or write a buffer."""
    b = GraphBuilder("other reads")
    w = b.source("w", 80, colocate=0)
    x, rate = b.source("x", 8, op_type="input"), b.source("rate", 4, op_type="input")
    mean = b.source("mean", 4, op_type="buffer", colocate=0 if buffer == "write" else -1)
    [y] = b.add("forward", inputs=[w, x, mean, *[rate] * rate_in_forward], outputs=[8])
    [d] = b.add("gradient", inputs=[y], outputs=[80], phase="backward")
    b.output(len(b.operations), 80, storage=w)
    if buffer == "write":
        b.output(len(b.operations), 4, storage=mean)
    b.add("update", inputs=[w, d, rate, *[mean] * (buffer == "read")], phase="update", colocate=0)
    return b.build()


def test_only_gradients_are_averaged() -> None:
    graph = replicate(with_other_reads(), 3, steps=2)
    assert [name for name in graph.op_name if "average" in name] == ["step0/gradient/average", "step1/gradient/average"]
    rates = [v for v in range(graph.n) if graph.op_name[v].endswith("rate")]
    assert [graph.op_name[v] for v in rates] == ["step0/rate", "step1/rate"]
    assert graph.columns["tower"][rates].tolist() == [-1, -1]
    for step in range(2):
        update = graph.op_name.index(f"step{step}/update")
        before = "w" if step == 0 else "step0/update"
        read = [graph.op_name[v] for v in graph.tensor_producer[graph.inputs(update)]]
        assert read == [before, f"step{step}/gradient/average", f"step{step}/rate"]
    alone = replicate(with_other_reads(), 3, synchronous=False)
    assert [name for name in alone.op_name if name.endswith("rate")] == [f"tower{i}/rate" for i in range(3)]


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        (with_other_reads(rate_in_forward=True), "'update' of 'other reads' reads 'rate', which is not a gradient"),
        (with_other_reads(buffer="read"), "'update' of 'other reads' reads 'mean', which is not a gradient"),
    ],
)
def test_what_towers_have_apart_has_no_common_update(graph: Graph, says: str) -> None:
    with pytest.raises(ImporterError, match=says):
        replicate(graph, 2)
    apart = replicate(graph, 2, synchronous=False)
    for i in range(2):
        update = apart.op_name.index(f"tower{i}/update")
        own = [apart.op_name[v] for v in apart.tensor_producer[apart.inputs(update)]]
        assert own[0] == "w"
        assert all(name.startswith(f"tower{i}/") for name in own[1:])


@pytest.mark.parametrize("synchronous", [True, False])
def test_an_update_of_a_buffer_is_refused(synchronous: bool) -> None:
    with pytest.raises(ImporterError, match=r"'update' of 'other reads' writes into 'mean'"):
        replicate(with_other_reads(buffer="write"), 2, synchronous)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"of": {"name": "planted"}}, ImporterError, r"'planted' has no option `batch`[\s\S]*inception_v3.*mlp"),
        ({"of": {"name": "onnx", "path": "x.onnx"}}, ImporterError, "'onnx' has no option `batch`"),
        (
            {"of": {"name": "mlp", "batch": 10}, "towers": 4},
            ImporterError,
            r"batch of 10.*4 towers[\s\S]*batch=8 or .*batch=12",
        ),
        ({"of": {"name": "mlp", "batch": 3}, "towers": 4}, ImporterError, r"batch of 3.*\n\s+importer.of.batch=4 can"),
        (
            {"of": {"name": "mlp", "batch": 8, "mode": "inference"}},
            ImporterError,
            r"updates no parameters[\s\S]*mode=train",
        ),
        ({"of": {"name": "mlp", "bach": 8}}, ConfigError, r"importer.of.bach[\s\S]*batch"),
        ({"of": {"batch": 8}}, ImporterError, "names no importer"),
        ({"of": {"name": "inceptoin_v3"}}, PluginError, "did you mean 'inception_v3'"),
    ],
)
def test_mistakes(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        TowersImporter(**options).load()
