"""Importer `doppler`: what a file becomes, and errors that name the line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from placekit_formats.doppler import DopplerImporter

from placekit_core import Graph, ImporterError

SAMPLE = Path(__file__).with_name("samples") / "triangle.txt"
PUBLISHED = Path(os.environ.get("PLACEKIT_SAMPLES", ""), "doppler")
needs_samples = pytest.mark.skipif("PLACEKIT_SAMPLES" not in os.environ, reason="PLACEKIT_SAMPLES is not set")


def load(path: Path) -> Graph:
    [program] = DopplerImporter(path=str(path)).load()
    assert program.costs is None
    assert program.cluster is None
    return program.graph


def test_the_sample() -> None:
    g = load(SAMPLE)
    assert g.name == "triangle"
    assert g.op_name == ("v0", "v1", "v2")
    assert g.op_type.tolist() == ["einsummable", "formation", "einsummable"]
    assert g.flops.tolist() == [3e10, 1e10, 2e10]
    assert g.tensor_bytes.tolist() == [12e10, 4e10, 8e10]
    assert not g.bytes_accessed.any()
    assert [g.inputs(v).tolist() for v in range(3)] == [[], [0], [0, 1]]  # the edge from 1 to 2 is there twice
    assert g.attributes == {"graph_inputs": 2, "repeated_edges": 1}


def test_files_without_types_and_with_other_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "plain.txt"
    path.write_bytes(b"\xef\xbb\xbf3\r\n0\r\n0\r\n1\r\n1e3, 4.0e3\r\n5,20\r\n\r\n")
    g = load(path)
    assert g.op_type.tolist() == ["operation", "operation"]
    assert g.flops.tolist() == [1000, 5]


def test_a_graph_without_edges_and_inputs(tmp_path: Path) -> None:
    path = tmp_path / "alone.txt"
    path.write_text("1\n\n\n\n7,28\n")
    assert load(path).n == 1


def test_an_error_names_the_line(tmp_path: Path) -> None:
    for line, text, said in [
        (1, "five", "line 1: 'five' is not a whole number"),
        (1, "-5", "line 1: '-5' is not"),
        (1, "99999999999999999999", "line 1: '99999999999999999999' is not a whole number below 10^9"),
        (1, "999999999", "line 1: 999999999 vertices with 2 inputs leave 999999997 operations, but the file has lines for 3"),
        (1, "6", "line 1: 6 vertices with 2 inputs leave 4 operations, but the file has lines for 3"),
        (1, "2", "line 2: id 3 is not in 0..1"),
        (2, "0, x,", "line 2: 'x' is not"),
        (2, "0, 0,", "line 2: input 0 is listed twice"),
        (2, "0, 9,", "line 2: id 9 is not in 0..4"),
        (2, "0 3", "line 2: '0 3' is not"),
        (3, "0, 0, 1,", "line 4: it has 4 targets, but line 3 has 3 sources"),
        (3, "0, 0, 1, 3,", "line 3: id 3 is not in 0..2"),
        (4, "1, 2, , 2,", "line 4: '' is not"),
        (4, "1, 2, 2, 1_0,", "line 4: '1_0' is not"),
        (4, "1, 2, 2, 0,", "has a cycle: v0 -> v1 -> v0"),
        (4, "0, 2, 2, 2,", "has a cycle: v0 -> v0"),
        (5, "1", "line 5: '1' is not `computation,communication[,type]`"),
        (6, "1,2,a,b", "line 6: '1,2,a,b' is not"),
        (6, "", "line 6: '' is not"),
        (6, "-1,4", "line 6: '-1' is not a number >= 0"),
        (6, "nan,4", "line 6: 'nan' is not"),
        (6, "1e999,4", "line 6: '1e999' is not"),
        (6, "1,inf", "line 6: 'inf' is not"),
        (6, "1,0.5", "line 6: communication is 0.5, not a whole number"),
        (6, "1,1e30", "line 6: communication is 1e30, not a whole number"),
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
        (b"", "is empty"),
        (b"5\xff\n", "byte 1 is not UTF-8"),
        (b"5\n0, 3,\n", "line 3: the file ends before the edges' sources"),
        (b"node1 -- Input0\nnode2 -- Conv\nx\ny\n", "line 1: 'node1 -- Input0' is not a whole number"),
        (b"600\n\n\n\n" + b"1,9007199254740992\n" * 600, "5.4e+18 bytes together"),
    ]:
        path = tmp_path / "wrong.txt"
        path.write_bytes(content)
        with pytest.raises(ImporterError) as error:
            load(path)
        assert said in str(error.value)


@needs_samples
def test_published_graphs() -> None:
    chain, ffnn = (load(PUBLISHED / f"gdp_{name}.txt") for name in ("chain_mm_112nodes", "ffnn_192nodes"))
    assert (chain.n, chain.e, chain.attributes["graph_inputs"]) == (76, 80, 36)
    assert (ffnn.n, ffnn.e, ffnn.attributes["graph_inputs"]) == (180, 208, 12)
    assert sorted(set(chain.op_type.tolist())) == ["einsummable", "formation"]
