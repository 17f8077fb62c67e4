"""Importer `pipedream`: what a profile becomes, and errors that name the line."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from placekit_formats.pipedream import PipeDreamImporter, machine

from placekit_core import ImporterError, Problem, Program, load_cluster
from placekit_core.run.config import conf_dir

Simulator = pytest.importorskip("placekit_sim.simulator").Simulator  # of another plugin
SAMPLE = Path(__file__).with_name("samples") / "tower.txt"
PUBLISHED = Path(os.environ.get("PLACEKIT_SAMPLES", ""), "pipedream")
needs_samples = pytest.mark.skipif("PLACEKIT_SAMPLES" not in os.environ, reason="PLACEKIT_SAMPLES is not set")


def load(path: Path) -> Program:
    [program] = PipeDreamImporter(path=str(path)).load()
    return program


def reads(program: Program, name: str) -> list[str]:
    """What an operation reads: `PRODUCER:BYTES` of each tensor."""
    g = program.graph
    return [f"{g.op_name[g.tensor_producer[t]]}:{g.tensor_bytes[t]}" for t in g.inputs(g.op_name.index(name))]


def test_the_sample() -> None:
    g = load(SAMPLE).graph
    assert g.name == "tower"
    assert g.op_name == ("node1", "node3", "node2", "node4", "node4.backward", "node2.backward", "node3.backward")
    assert g.op_type.tolist() == ["Input0", "LSTM", "Conv2d", "Add", "Add_backward", "Conv2d_backward", "LSTM_backward"]
    assert g.phase.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert g.colocate.tolist() == [-1, 1, 2, 3, 3, 2, 1]
    assert g.persistent_bytes.tolist() == [0, 4000, 700, 0, 0, 0, 0]
    assert g.columns["stage_id"].tolist() == [-1, 1, 0, 1, 1, 0, 1]
    assert g.columns["description"].tolist()[1] == "LSTM(1024, 1024, bias=False)"
    assert g.attributes == {}


def test_activations_and_gradients_of_the_sample() -> None:
    program = load(SAMPLE)
    assert reads(program, "node1") == []
    assert reads(program, "node4") == ["node3:6151", "node2:3000"]  # a list is summed, and part of a byte is a byte
    assert reads(program, "node4.backward") == ["node3:6151", "node2:3000", "node4:400"]
    assert reads(program, "node3.backward") == ["node3:6151", "node2:3000", "node4.backward:6151"]
    # node2 gets a gradient from each successor; node1 has no backward operation, so none goes there
    gradients = ["node4.backward:3000", "node3.backward:3000"]
    assert reads(program, "node2.backward") == ["node1:1000", "node2:3000", *gradients]
    assert program.graph.t == 4 + 3


def test_seconds_and_machine_of_the_sample() -> None:
    program = load(SAMPLE)
    assert program.costs is not None
    assert program.cluster is not None
    assert program.costs.kinds == ("v100",)
    assert program.costs.measured.all()
    assert program.costs.op_s[:, 0].tolist() == [0.0005, 0.002, 0.00125, 0, 0, 0.0025, 0.004]
    assert program.cluster.memory_bytes.tolist() == [16 * 2**30] * 4
    problem = Problem.of(program.graph, program.cluster, costs=program.costs)
    session = Simulator().open(problem)
    measured = session.evaluate(problem.placement([0] * problem.g).batch())
    assert measured.value_s.tolist() == [pytest.approx(0.01025)]
    # all parameters; while node3.backward runs, its gradient, both of node4.backward, and all activations but node4's
    assert measured.peak_bytes[0, 0] == 4700 + 3000 + (6151 + 3000) + (1000 + 6151 + 3000)


def test_the_seconds_are_those_of_the_preset_with_v100s() -> None:
    program = load(SAMPLE)
    cluster = load_cluster(conf_dir() / "cluster" / "v100x8.yaml")
    problem = Problem.of(program.graph, cluster, costs=program.costs)
    assert problem.op_s[1].tolist() == [0.002] * 8
    assert machine().kinds["v100"].memory_bytes_per_s == cluster.kinds["v100"].memory_bytes_per_s


def test_a_profile_without_backward_times_has_no_backward_operations(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    text = SAMPLE.read_text()
    path.write_text(text.replace("time=4.000", "time=0").replace("time=2.500", "time=0"))
    program = load(path)
    assert program.graph.op_name == ("node1", "node3", "node2", "node4")
    assert (program.graph.t, program.graph.e) == (4, 4)


NODE = "node9 -- ReLU -- forward_compute_time=1, backward_compute_time=2, activation_size=3, parameter_size=4"


def test_an_error_names_the_line(tmp_path: Path) -> None:
    for line, text, said in [
        (1, "node1", "line 1: 'node1' is neither a node nor an edge"),
        (1, " node1 -- node2", "line 1: ' node1 -- node2' is not an edge: it does not begin with a tab"),
        (2, NODE.replace("node9", "node 9"), "line 2: 'node 9 -- ReLU -- forward_compute_time=1"),
        (2, NODE.replace("node9", "node1"), "line 2: node 'node1' is there twice"),
        (2, NODE.replace("ReLU", "Re\u200bLU"), "line 2: the description 'Re\\u200bLU' has characters"),
        (2, NODE.replace(", activation_size=3", ""), "line 2: node 'node9' has no activation_size"),
        (2, NODE + ", more=1", "line 2: the fields of node 'node9' are in another form"),
        (2, NODE.replace("=1", "=x"), "line 2: forward_compute_time is 'x': it must be a number, 0 to 1e+15"),
        (2, NODE.replace("=2", "=-2"), "line 2: backward_compute_time is '-2': it must be a number"),
        (2, NODE.replace("=2", "=nan"), "line 2: backward_compute_time is 'nan'"),
        (2, NODE.replace("=2", "=1_0"), "line 2: backward_compute_time is '1_0'"),
        (2, NODE.replace("=2", "=1e999"), "line 2: backward_compute_time is '1e999'"),
        (2, NODE.replace("=3", "=[3; x]"), "line 2: activation_size is 'x': it must be a number"),
        (2, NODE.replace("=3", "=[9e15; 9e14]"), "line 2: activation_size is '[9e15; 9e14]': it must be at most 2^53"),
        (2, NODE.replace("=3", "=[]"), "line 2: activation_size is '': it must be a number"),
        (2, NODE.replace("=4", "="), "line 2: parameter_size is '': it must be a number"),
        (2, NODE + " -- stage_id=x", "line 2: stage_id is 'x': it must be a whole number"),
        (5, "\tnode1", "line 5: '\\tnode1' is not an edge"),
        (5, "\tnode1 -- node7", "line 5: no node above is called 'node7'"),
        (5, "\tnode7 -- node1", "line 5: no node above is called 'node7'"),
        (5, "\tnode1 -- node1", "line 5: node 'node1' reads its own output"),
        (5, "\tnode4 -- node2", "has a cycle: "),
    ]:  # fmt: skip
        lines = SAMPLE.read_text().splitlines()
        lines[line - 1] = text
        path = tmp_path / "wrong.txt"
        path.write_text("\n".join(lines))
        with pytest.raises(ImporterError) as error:
            load(path)
        assert said in str(error.value)
        assert str(path) in error.value.message


def test_files_that_hold_no_graph(tmp_path: Path) -> None:
    for content, said in [
        (b"", "it has no node"),
        (b"\n\n", "it has no node"),
        (b"node1 -- \xff\n", "line 1 is not text: its byte 9 is not UTF-8"),
        (b"\tnode1 -- node2\n", "line 1: no node above is called 'node1'"),
        (b"x" * 2_000_000, "line 1 has more than 1,048,576 bytes"),
    ]:
        path = tmp_path / "wrong.txt"
        path.write_bytes(content)
        with pytest.raises(ImporterError) as error:
            load(path)
        assert said in str(error.value)
        assert str(path) in error.value.message


@needs_samples
@pytest.mark.parametrize(("name", "nodes", "edges"), [("vgg16", 41, 41), ("resnet50", 177, 193)])
def test_published_profiles(name: str, nodes: int, edges: int) -> None:
    path = PUBLISHED / f"{name}.graph.txt"
    text, program = path.read_text(), load(path)
    g = program.graph
    assert program.costs is not None
    rows = [line for line in text.splitlines() if " -- forward_compute_time=" in line]
    assert len(rows) == nodes
    assert text.count("\tnode") == edges
    assert g.n == 2 * nodes - 1  # all but the input have a backward operation
    fields = [dict(part.split("=") for part in row.rpartition(" -- ")[2].split(", ")) for row in rows]
    for v, field in enumerate(fields):
        assert program.costs.op_s[v, 0] == float(field["forward_compute_time"]) / 1e3
        assert g.tensor_bytes[v] == float(field["activation_size"])
        assert g.persistent_bytes[v] == float(field["parameter_size"])
    total = sum(float(f[f"{way}_compute_time"]) for f in fields for way in ("forward", "backward"))
    assert program.costs.op_s.sum() == pytest.approx(total / 1e3)
    forward = np.sum(g.edge_op < nodes)
    assert forward == edges
