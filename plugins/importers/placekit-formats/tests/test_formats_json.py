"""Importer `json`: what each field becomes, what is written back, and errors that name file, operation and field."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from placekit_formats.json_program import Document, JsonImporter, Operation, Output
from placekit_testing.strategies import random_step

from placekit_core import PHASES, ImporterError, Problem, Program

SAMPLE = Path(__file__).with_name("samples") / "pair.json"


def load(path: Path) -> Program:
    [program] = JsonImporter(path=str(path)).load()
    return program


def test_the_sample() -> None:
    program = load(SAMPLE)
    g = program.graph
    assert g.name == "pair"
    assert g.op_name == ("weight", "update", "split", "join")
    assert g.kernel.tolist() == [False, True, True, True]
    assert g.op_type.tolist() == ["parameter", "operation", "aten.split", "operation"]
    assert g.op_class.tolist() == ["source", "other", "copy", "other"]
    assert g.dtype[3] == "float16"
    assert g.flops.tolist() == [0, 0, 10, 0]
    # by default what is read and written; `join` reads the first output of `split` once, though it names it twice
    assert g.bytes_accessed.tolist() == [0, 3000 + 4000 + 4000, 500, 1000 + 3000 + 8]
    assert g.persistent_bytes.tolist() == [4000, 0, 0, 0]
    assert [PHASES[p] for p in g.phase] == ["forward", "update", "forward", "forward"]
    assert (g.module[2], g.call[2], g.allowed[2]) == ("net.split", 1, "gpu")
    assert g.colocate.tolist() == [0, 0, -1, -1]
    assert g.tensor_bytes.tolist() == [4000, 4000, 1000, 3000, 8]
    assert g.tensor_storage.tolist() == [0, 0, 2, 3, 4]
    assert g.shape(2) == (10, 25)
    assert [g.inputs(v).tolist() for v in range(g.n)] == [[], [3, 0], [0], [2, 3]]


def test_seconds_and_machine_of_the_sample() -> None:
    program = load(SAMPLE)
    assert program.cluster is not None
    assert program.costs is not None
    assert program.cluster.device_names == ("gpu:0", "cpu:0")
    problem = Problem.of(program.graph, program.cluster, costs=program.costs)
    assert problem.op_s.tolist() == [[0, 0], [0.001, 0.002], [0.5, 0.5], [0.25, 1]]
    assert not program.costs.measured.any()


def test_defaults(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    path.write_text('{"format": "placekit-program", "version": 1, "operations": [{"name": "a"}]}')
    program = load(path)
    assert (program.graph.name, program.graph.n, program.graph.t) == ("tiny", 1, 0)
    assert program.costs is None
    assert program.cluster is None


def test_written_and_read_again(tmp_path: Path) -> None:
    for seed in range(4):
        graph = random_step(np.random.default_rng(seed), 30).replace(columns={})
        JsonImporter.write(Program(graph), tmp_path / "step.json")
        again = load(tmp_path / "step.json").graph
        assert (again.name, again.attributes) == (graph.name, graph.attributes)
        assert again.fingerprint == graph.fingerprint


def test_seconds_and_machine_are_written(tmp_path: Path) -> None:
    program = load(SAMPLE)
    JsonImporter.write(program, tmp_path / "again.json")
    again = load(tmp_path / "again.json")
    assert again.graph.fingerprint == program.graph.fingerprint
    assert again.cluster == program.cluster
    assert again.costs is not None
    assert program.costs is not None
    np.testing.assert_array_equal(again.costs.op_s, program.costs.op_s)


def test_measured_seconds(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(json.loads(SAMPLE.read_text()) | {"measured": True}))
    program = load(path)
    assert program.costs is not None
    assert program.costs.measured.tolist() == [[False] * 2, [True] * 2, [True] * 2, [True] * 2]
    for measured, written in ((program.costs.measured, True), (program.costs.measured & [True, False], False)):
        costs = replace(program.costs, measured=measured)
        JsonImporter.write(replace(program, costs=costs), path)
        assert json.loads(path.read_text())["measured"] is written


def message(path: Path) -> str:
    with pytest.raises(ImporterError) as error:
        load(path)
    assert str(path) in error.value.message
    return str(error.value)


def wrong(tmp_path: Path, **changes: Any) -> str:
    """The error for the sample with other fields; `operation` changes its third operation, `split`."""
    document = json.loads(SAMPLE.read_text())
    document["operations"][2].update(changes.pop("operation", {}))
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(document | changes))
    return message(path)


def test_an_error_names_operation_and_field(tmp_path: Path) -> None:
    for operation, said in [
        ({"flops": -1}, "operations[2] ('split'): flops: input should be greater than or equal to 0 (got -1)"),
        ({"flops": float("nan")}, "flops: input should be a finite number (got nan)"),
        ({"flops": float("inf")}, "flops: input should be a finite number"),
        ({"flops": "many"}, "flops: it must be a number (got 'many')"),
        ({"flops": "3"}, "flops: it must be a number"),
        ({"flops": True}, "flops: it must be a number"),
        ({"flops": None}, "flops: input should be a valid number"),
        ({"bytes_accessed": -3}, "bytes_accessed: input should be greater"),
        ({"persistent_bytes": 2**60}, "persistent_bytes: input should be less than or equal to 9007199254740992"),
        ({"outputs": [1, 0.5]}, "outputs.1: input should be a valid integer, got a number with a fractional part (got 0.5)"),
        ({"outputs": [{"bytes": 1, "shape": [-1]}]}, "outputs.0.shape.0: input should be greater"),
        ({"call": 2**31}, "call: input should be less than 2147483648"),
        ({"phase": "sideways"}, "phase: input should be 'forward', 'backward' or 'update' (got 'sideways')"),
        ({"op_class": "matmull"}, "op_class: input should be 'matmul', 'unaligned_matmul'"),
        ({"allowed": ["tpu"]}, "allowed.0: input should be 'cpu' or 'gpu'"),
        ({"seconds": {"gpu": -1, "cpu": 1}}, "seconds.gpu: input should be greater"),
        ({"seconds": {"gpu": 2e12, "cpu": 1}}, "seconds.gpu: input should be less than or equal to 1000000000000"),
        ({"seconds": {"gpu": 1}}, "it has seconds for gpu, but 'update' for gpu, cpu; give all kernels seconds"),
        ({"seconds": {}}, "it has seconds for no device"),
        ({"flop": 1}, "operations[2] ('split'): there is no field 'flop'"),
        ({"inputs": ["wait"]}, "operations[2] ('split'): inputs: no operation is named 'wait'"),
        ({"inputs": [["weight", 1]]}, "inputs: 'weight' has no output 1; it has 1, counted from 0"),
        ({"inputs": [["weight", -1]]}, "inputs.0.1: input should be greater"),
        ({"outputs": []}, "operations[1] ('update'): inputs: 'split' has no output 1; it has 0, counted from 0"),
        ({"outputs": [{"bytes": 1, "storage": "nowhere"}, 1]}, "storage: no operation is named 'nowhere'"),
        ({"outputs": [{"bytes": 1, "storage": "weight"}, 1]}, "an output of 'split' shares the memory of 'weight'"),
        ({"name": "weight"}, "operations[2] ('weight'): operations[0] has the same name"),
        ({"name": ""}, "operations[2]: name: string should have at least 1 character"),
        ({"name": "a\nb"}, "name: it has characters that cannot be printed"),
        ({"name": "a\0b"}, "name: it has characters that cannot be printed"),
        ({"op_type": "\x1b[2J"}, "op_type: it has characters that cannot be printed"),
        ({"kernel": "no"}, "kernel: input should be a valid boolean (got 'no')"),
        ({"kernel": 0}, "kernel: input should be a valid boolean (got 0)"),
        ({"dtype": "fp16"}, "dtype: input should be 'bool', 'uint8'"),
        ({"inputs": ["split"]}, "has a cycle: split -> split"),
        ({"inputs": ["join"]}, "has a cycle"),
    ]:  # fmt: skip
        if not operation.get("name", "x").isprintable() or operation.get("name") == "":
            document = json.loads(SAMPLE.read_text())
            document["operations"] = [*document["operations"][:1], {"name": "only"}, operation]
            path = tmp_path / "wrong.json"
            path.write_text(json.dumps(document))
            assert said in message(path)
        else:
            assert said in wrong(tmp_path, operation=operation)


def test_an_error_of_the_file_as_a_whole(tmp_path: Path) -> None:
    for changes, said in [
        ({"format": "another"}, "format: input should be 'placekit-program' (got 'another')"),
        ({"version": 2}, "version: input should be 1 (got 2)"),
        ({"version": True}, "version: input should be 1 (got True)"),
        ({"version": 1.0}, "version: input should be 1 (got 1.0)"),
        ({"measured": 1}, "measured: input should be a valid boolean (got 1)"),
        ({"name": "a\nb"}, "name: it has characters that cannot be printed"),
        ({"attributes": {"a": float("nan")}}, "attributes.a: input should be a finite number (got nan)"),
        (
            {"attributes": {"a": [1, {"b": float("inf")}]}},
            "attributes.a.1.b: input should be a finite number (got inf)",
        ),
        ({"operations": []}, "operations: list should have at least 1 item"),
        ({"operations": [3]}, "operations[0]: input should be an object (got 3)"),
        ({"operations": {}}, "operations: input should be a valid"),
        ({"edges": []}, "there is no field 'edges'"),
        ({"cluster": {"devices": []}}, "its machine is not a valid cluster"),
    ]:
        assert said in wrong(tmp_path, **changes)


def test_what_sources_have_none_of(tmp_path: Path) -> None:
    for source, said in [
        ({"inputs": ["split"]}, "inputs: a source reads nothing"),
        ({"seconds": {"gpu": 1, "cpu": 1}}, "seconds: a source takes no time"),
        ({"op_class": "copy"}, "op_class: a source has the class `source`"),
        ({"flops": 7}, "flops: a source computes nothing"),
        ({"bytes_accessed": 7}, "bytes_accessed: a source reads and writes nothing"),
    ]:
        operations = json.loads(SAMPLE.read_text())["operations"]
        operations[0].update(source)
        assert f"operations[0] ('weight'): `kernel` is false, and it has {said}" in wrong(
            tmp_path, operations=operations
        )


def test_files_that_hold_no_program(tmp_path: Path) -> None:
    for content, said in [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xff\xfe{", "byte 0 is not UTF-8"),
        (b"not json", "invalid JSON: Expecting value: line 1 column 1"),
        (b"[]", "input should be an object"),
        (b"{}", "format: field required"),
        (b"[" * 100000, "invalid JSON: it is nested more than 100 levels deep"),
        (b'{"version": 1, "version": 1}', "invalid JSON: an object has the member 'version' twice: {'version': 1}"),
        (b'{"attributes": {"a": 1, "b": {"c": 0, "c": 0}}}', "invalid JSON: an object has the member 'c' twice"),
        (b'{"format": 1e999}', "format: input should be 'placekit-program'"),
    ]:
        path = tmp_path / "wrong.json"
        path.write_bytes(content)
        assert said in message(path)


def test_every_field_is_documented() -> None:
    page = Path(__file__).parents[4] / "docs" / "formats.md"
    section = page.read_text().partition("\n## JSON\n")[2].partition("\n## ")[0]
    tables = re.findall(r"^\| field .*\n\|.*\n((?:\|.*\n)+)", section, re.M)
    documented = [set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\|([^|]*)\|", t, re.M)))) for t in tables]
    assert documented == [set(model.model_fields) for model in (Document, Operation, Output)]
