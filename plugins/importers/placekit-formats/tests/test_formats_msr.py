"""Importer `msr`: what each field becomes, what is written back, and errors that name file and field."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from placekit_formats.msr import MsrImporter, placed_devices, placed_text, write_placed
from placekit_testing.fakes import chain_graph
from placekit_testing.strategies import machine

from placekit_core import ImporterError, Labels, Problem, Program, roofline, validate_graph

SAMPLE = Path(__file__).with_name("samples") / "training.json"
PUBLISHED = Path(os.environ.get("PLACEKIT_SAMPLES", ""), "msr")
needs_samples = pytest.mark.skipif("PLACEKIT_SAMPLES" not in os.environ, reason="PLACEKIT_SAMPLES is not set")
FILES = (
    "throughput/layer_bert24_training.json",
    "throughput/operator_bert3_inference.json",
)
Change = Callable[[dict[str, Any]], Any]


def load(path: Path) -> Program:
    [program] = MsrImporter(path=str(path)).load()
    return program


def changed(change: Change) -> bytes:
    """The sample after a change of its data."""
    data = json.loads(SAMPLE.read_text())
    change(data)
    return json.dumps(data).encode()


def same(one: Program, other: Program) -> bool:
    """Whether two programs agree in everything but names of files."""
    assert one.costs is not None
    assert other.costs is not None
    assert one.cluster is not None
    assert other.cluster is not None
    return (
        one.graph.fingerprint == other.graph.fingerprint
        and one.costs.kinds == other.costs.kinds
        and np.array_equal(one.costs.op_s, other.costs.op_s)
        and one.cluster.fingerprint == other.cluster.fingerprint
    )


def test_the_sample() -> None:
    g = load(SAMPLE).graph
    assert g.name == "training"
    assert g.op_name == ("embed", "block.0.MatMul1 (node 2)", "block.1.MatMul1", "block.0.MatMul1 (node 12)")
    assert g.op_type.tolist() == ["embed", "MatMul", "MatMul", "MatMul"]
    assert g.kernel.all()
    assert g.phase.tolist() == [0, 0, 0, 1]
    assert g.colocate.tolist() == [-1, 5, -1, 5]
    assert g.allowed.tolist() == ["cpu", "", "", ""]
    assert g.persistent_bytes.tolist() == [1000, 4096, 2049, 4096]
    assert g.tensor_producer.tolist() == [0, 1, 2]  # the last node has no edges, so no output
    assert g.tensor_bytes.tolist() == [1_000_000, 500_000, 1]  # the larger of two sizes; part of a byte is a byte
    assert [g.inputs(v).tolist() for v in range(g.n)] == [[], [0], [1], [1, 2]]
    assert g.attributes == {"repeated_edges": 1, "outputs_of_several_sizes": 1}


def test_columns_of_the_sample() -> None:
    columns = load(SAMPLE).graph.columns
    assert columns["transfer_s"].tolist() == [0.0005, 0.00025, 0.0, 0.0]
    assert columns["node_id"].tolist() == [7, 2, 3, 12]
    assert columns["node_bytes"].tolist() == [1000, 4096, 2048.5, 4096]
    assert columns["node_name"].tolist() == ["embed", "block.0.MatMul1", "block.1.MatMul1", "block.0.MatMul1"]


def test_seconds_and_machine_of_the_sample() -> None:
    program = load(SAMPLE)
    assert program.costs is not None
    assert program.cluster is not None
    assert program.costs.kinds == ("accelerator", "cpu")
    assert program.costs.op_s.tolist() == [[0, 0.0045], [0.003, 0.03], [0.0025, 0.02], [0.00696, 0.06]]
    assert not program.costs.measured.any()
    assert program.cluster.device_names == ("accelerator:0", "accelerator:1", "cpu:0")
    assert program.cluster.memory_bytes.tolist() == [8000, 8000, 1e18]
    problem = Problem.of(program.graph, program.cluster, costs=program.costs)
    assert problem.op_allowed[0].tolist() == [False, False, True]
    # the links' rate is the sum of bytes over that of seconds, of the outputs that have both: 1.5 MB in 0.75 ms
    assert program.cluster.routes.s_per_byte[0].tolist() == pytest.approx([0, 5e-10, 5e-10])


def test_edges_without_sizes(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(changed(lambda d: [e.pop("size") for e in d["edges"]]))
    program = load(path)
    assert program.graph.tensor_bytes.tolist() == [500_000, 250_000, 0]
    assert program.cluster is not None
    assert program.cluster.links[0].bytes_per_s == 1e9  # so that the transfers take what the file says
    path.write_bytes(changed(lambda d: d["edges"][0].pop("size")))
    assert load(path).graph.tensor_bytes.tolist() == [1_000_000, 500_000, 1]  # by the rate of the others


def test_written_and_read_again(tmp_path: Path) -> None:
    program = load(SAMPLE)
    MsrImporter.write(program, tmp_path / "again.msr.json")
    again = load(tmp_path / "again.msr.json")
    assert again.graph.name == "again"
    assert same(again, program)
    data = json.loads((tmp_path / "again.msr.json").read_text())
    assert data["nodes"][3] == {
        "name": "block.0.MatMul1", "id": 12, "supportedOnFpga": True, "cpuLatency": 60.0, "fpgaLatency": 6.96,
        "isBackwardNode": True, "colorClass": 5, "size": 4096.0,
    }  # fmt: skip
    assert data["edges"][1] == {"sourceId": 2, "destId": 3, "cost": 0.25, "size": 500000}


def test_programs_of_other_importers(tmp_path: Path) -> None:
    graph, cluster = chain_graph(4), machine(("gpu", "cpu"), devices=2)
    program = Program(graph, roofline(graph, cluster), cluster)
    MsrImporter.write(program, tmp_path / "chain.msr.json")
    again = load(tmp_path / "chain.msr.json")
    assert again.graph.op_name == graph.op_name
    assert again.costs is not None
    assert again.cluster is not None
    assert again.cluster.size == 4
    accelerator = next(i for i, k in enumerate(cluster.device_kind) if cluster.kinds[k].type == "gpu")
    cpu = next(i for i, k in enumerate(cluster.device_kind) if cluster.kinds[k].type == "cpu")
    assert again.costs.op_s.tolist() == program.costs.on(cluster)[:, [accelerator, cpu]].tolist()  # type: ignore[union-attr]
    routes, read = cluster.routes, graph.input_tensor
    hop = routes.latency_s[accelerator, cpu] + graph.tensor_bytes[read] * routes.s_per_byte[accelerator, cpu]
    assert again.graph.columns["transfer_s"][graph.tensor_producer[read]] == pytest.approx(hop, rel=1e-15)


def test_programs_that_the_format_cannot_hold(tmp_path: Path) -> None:
    graph, cluster = chain_graph(4), machine(("gpu",), devices=2)
    costs = roofline(graph, cluster)
    path = tmp_path / "x.msr.json"
    two = machine(("gpu", "slow"))
    both = machine(("gpu", "cpu"))
    busy = Program(graph.replace(allowed=Labels.of(["gpu"] * graph.n)), roofline(graph, both), both)
    for program, said in (
        (Program(graph), "has no seconds and machine"),
        (Program(graph, costs), "has no machine"),
        (Program(graph, roofline(graph, two), two), "accelerators of several kinds: gpu, slow"),
        (busy, "may not run on the CPUs"),
    ):
        with pytest.raises(ImporterError) as error:
            MsrImporter.write(program, path)
        assert said in str(error.value)
        assert str(path) in error.value.message
        assert not path.exists()
    with pytest.raises(ImporterError, match="cannot write"):
        MsrImporter.write(Program(graph, costs, cluster), tmp_path / "no" / "x.msr.json")


def test_a_placement_is_written_and_read_back(tmp_path: Path) -> None:
    program = load(SAMPLE)
    devices = ["cpu:0", "accelerator:1", "accelerator:0", "accelerator:1"]
    write_placed(program, devices, tmp_path / "placed.msr.json")
    assert placed_devices(tmp_path / "placed.msr.json") == devices
    assert same(load(tmp_path / "placed.msr.json"), program)  # the importer does not read the devices
    assert json.loads(placed_text(program, devices)) == json.loads((tmp_path / "placed.msr.json").read_text())
    assert placed_devices(SAMPLE) == [None] * 4


def test_wrong_placements(tmp_path: Path) -> None:
    program, path = load(SAMPLE), tmp_path / "placed.json"
    with pytest.raises(ImporterError, match="'training' has no device 'gpu:0'") as error:
        write_placed(program, ["cpu:0"] * 3 + ["gpu:0"], path)
    assert "accelerator:0, accelerator:1, cpu:0" in error.value.hint
    with pytest.raises(ImporterError, match="devices for 3 operations, but 'training' has 4"):
        write_placed(program, ["cpu:0"] * 3, path)
    assert not path.exists()
    path.write_bytes(changed(lambda d: d["nodes"][1].update(device=3)))
    with pytest.raises(ImporterError, match=r"nodes\[1\].device is 3: it must be the name of a device"):
        placed_devices(path)
    assert load(path).graph.n == 4


def test_an_error_names_the_field(tmp_path: Path) -> None:
    for change, said in [
        (lambda d: d["nodes"][2].update(fpgaLatency="3"), "nodes[2].fpgaLatency is '3': it must be a number of milliseconds"),
        (lambda d: d["nodes"][2].update(fpgaLatency=-1), "nodes[2].fpgaLatency is -1: it must be"),
        (lambda d: d["nodes"][2].update(cpuLatency=True), "nodes[2].cpuLatency is True: it must be"),
        (lambda d: d["nodes"][2].update(cpuLatency=1e16), "nodes[2].cpuLatency is 1e+16: it must be"),
        (lambda d: d["nodes"][0].update(id=1.0), "nodes[0].id is 1.0: it must be a whole number"),
        (lambda d: d["nodes"][0].update(id=2**63), "nodes[0].id is 9223372036854775808: it must be"),
        (lambda d: d["nodes"][0].update(id=2), "nodes[1].id is 2, which is the id of nodes[0], too"),
        (lambda d: d["nodes"][0].update(name="a\nb"), r"nodes[0].name is 'a\nb': it must be text"),
        (lambda d: d["nodes"][0].update(name="\ud800"), r"nodes[0].name is '\ud800': it must be text"),
        (lambda d: d["nodes"][0].update(supportedOnFpga=2), "nodes[0].supportedOnFpga is 2: it must be true, false, 0 or 1"),
        (lambda d: d["nodes"][0].update(colorClass="x"), "nodes[0].colorClass is 'x': it must be"),
        (lambda d: d["nodes"][0].update(size=2**54), "nodes[0].size is 18014398509481984: it must be"),
        (lambda d: d["nodes"][3].pop("size"), "nodes[3].size is missing: it must be a number of bytes"),
        (lambda d: d["nodes"].append([]), "nodes[4] is [], not an object"),
        (lambda d: d["edges"][1].update(sourceId=4), "edges[1].sourceId is 4, but no node has this id (near it: 3, 7, 12)"),
        (lambda d: d["edges"][1].update(destId=99), "edges[1].destId is 99, but no node has this id"),
        (lambda d: d["edges"][1].pop("cost"), "edges[1].cost is missing"),
        (lambda d: d["edges"][2].update(cost=0.5), "edges[2].cost is 0.5, and edges[1].cost is 0.25, from the same node 2"),
        (lambda d: d["edges"].append({"sourceId": 3, "destId": 3, "cost": 0}), "has a cycle: block.1.MatMul1 -> block.1.MatMul1"),
        (lambda d: d["edges"].append({"sourceId": 3, "destId": 2, "cost": 0}), "has a cycle: "),
        (lambda d: d.pop("edges"), "edges is missing: it must be a list\n  it has: nodes, maxSizePerFPGA, maxFPGAs, maxCPUs"),
        (lambda d: d.update(nodes=[], edges=[]), "nodes is empty"),
        (lambda d: d.update(nodes={}), "nodes must be a list"),
        (lambda d: d.pop("maxCPUs"), "maxCPUs is missing: it must be a whole number, 0 to 1024"),
        (lambda d: d.update(maxFPGAs=1025), "maxFPGAs is 1025: it must be a whole number, 0 to 1024"),
        (lambda d: d.update(maxFPGAs=1024), "1025 devices are more than 1024"),
        (lambda d: d.update(maxFPGAs=0, maxCPUs=0), "maxFPGAs and maxCPUs are both 0"),
        (lambda d: d.update(maxSizePerFPGA=0), "maxSizePerFPGA is less than a byte"),
        (lambda d: d.update(maxSizePerFPGA="1"), "maxSizePerFPGA is '1': it must be a number of bytes"),
    ]:  # fmt: skip
        path = tmp_path / "wrong.json"
        path.write_bytes(changed(change))
        with pytest.raises(ImporterError) as error:
            load(path)
        assert said in str(error.value)
        assert str(path) in error.value.message


@needs_samples
@pytest.mark.parametrize("name", FILES)
def test_published_graphs(name: str) -> None:
    """The program has every figure of the file, at its place."""
    data, program = json.loads((PUBLISHED / name).read_text()), load(PUBLISHED / name)
    g = validate_graph(program.graph.replace())
    assert program.costs is not None
    assert program.cluster is not None
    place = {node["id"]: v for v, node in enumerate(data["nodes"])}
    assert g.op_name == tuple(node["name"] for node in data["nodes"])
    assert g.columns["node_id"].tolist() == list(place)
    for v, node in enumerate(data["nodes"]):
        assert program.costs.op_s[v].tolist() == [node["fpgaLatency"] / 1e3, node["cpuLatency"] / 1e3]
        assert (g.persistent_bytes[v], g.phase[v]) == (node["size"], int(node["isBackwardNode"]))
        assert g.colocate[v] == node.get("colorClass", -1)
    pairs = sorted((place[e["sourceId"]], place[e["destId"]]) for e in data["edges"])
    assert [*zip(*(a.tolist() for a in g.op_edges), strict=True)] == pairs
    for edge in data["edges"]:
        v = place[edge["sourceId"]]
        [t] = g.outputs(v)
        assert g.columns["transfer_s"][v] == edge["cost"] / 1e3
        assert g.tensor_bytes[t] >= edge["size"]
    memory = program.cluster.kinds["accelerator"].memory_bytes
    devices = [program.cluster.device_kind.count(k) for k in ("accelerator", "cpu")]
    assert [memory, *devices] == [data[k] for k in ("maxSizePerFPGA", "maxFPGAs", "maxCPUs")]


@needs_samples
@pytest.mark.parametrize("name", FILES)
def test_published_graphs_are_written_back(name: str, tmp_path: Path) -> None:
    """The written file has the figures of the published one; its sizes of edges are those of the outputs."""
    program = load(PUBLISHED / name)
    MsrImporter.write(program, tmp_path / "x.json")
    assert same(load(tmp_path / "x.json"), program)
    one, other = (json.loads(p.read_text()) for p in (PUBLISHED / name, tmp_path / "x.json"))
    assert {k: other[k] for k in ("maxSizePerFPGA", "maxFPGAs", "maxCPUs")} == {
        k: one[k] for k in ("maxSizePerFPGA", "maxFPGAs", "maxCPUs")
    }
    for node, again in zip(one["nodes"], other["nodes"], strict=True):
        node.pop("layerId", None)
        latencies = [(node.pop(k), again.pop(k)) for k in ("cpuLatency", "fpgaLatency")]
        assert all(b == pytest.approx(a, rel=3e-16, abs=0) for a, b in latencies)
        assert again == node  # 1 equals True
    costs = [{(e["sourceId"], e["destId"]): e["cost"] for e in data["edges"]} for data in (one, other)]
    assert costs[1] == pytest.approx(costs[0], rel=3e-16, abs=0)
