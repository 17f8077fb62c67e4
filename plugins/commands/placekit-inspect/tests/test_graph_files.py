"""`placekit graph export` and `graph show` on files: what a format loses, and that nothing is overwritten."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from placekit_core import Graph, GraphBuilder, Labels, load_graph, save_graph
from placekit_core.run.run_directory import load_summary

JsonImporter = pytest.importorskip("placekit_formats.json_program").JsonImporter
SAMPLES = Path(__file__).parents[3] / "importers" / "placekit-formats" / "tests" / "samples"
JSON, MSR = str(SAMPLES / "pair.json"), str(SAMPLES / "training.json")


def test_export_converts_a_file_and_prints_what_is_lost(placekit: Callable) -> None:
    code, out, _ = placekit("graph", "export", "pair.graph.npz", JSON)
    assert code == 0
    assert "pair.graph.npz has no seconds, no machine\n" in out
    code, out, _ = placekit("graph", "export", "again.json", JSON)
    assert code == 0
    assert "has no" not in out


def test_export_as_json(placekit: Callable) -> None:
    code, out, _ = placekit("graph", "export", "mlp.json", "workload=mlp")
    assert code == 0
    assert "mlp.json has no column " in out
    assert len(json.loads(Path("mlp.json").read_text())["operations"]) == 52
    run = ("policy=etf", "grouper=none")
    assert placekit("run", "importer=json", "importer.path=mlp.json", *run, "run_dir=a").code == 0
    assert placekit("run", "workload=mlp", *run, "run_dir=b").code == 0
    assert load_summary("a").value_s == load_summary("b").value_s
    assert placekit("graph", "export", "mlp.json", "workload=mlp").code == 1


def test_nothing_is_overwritten(placekit: Callable) -> None:
    text = Path(JSON).read_text()
    Path("a.json").write_text(text)
    code, out, err = placekit("graph", "export", "a.json", "workload=mlp")
    assert (code, out) == (1, "")
    assert "a.json exists already" in err
    assert Path("a.json").read_text() == text


def test_export_says_what_the_file_has(placekit: Callable, tmp_path: Path) -> None:
    graph = load_graph(save_graph(_odd_graph(), tmp_path / "odd.graph.npz"))
    code, out, _ = placekit("graph", "export", "odd.json", "importer=file", f"importer.path={tmp_path}/odd.graph.npz")
    assert code == 0
    [again] = JsonImporter(path="odd.json").load()
    assert out.splitlines() == [
        "odd.json has no column signature",
        f"odd.json: 2 operations, fingerprint {again.graph.fingerprint}",
    ]
    assert again.graph.fingerprint != graph.fingerprint


def test_show_prints_no_control_characters(placekit: Callable, tmp_path: Path) -> None:
    graph = _odd_graph().replace(name="a\x1b[2J", op_type=Labels.of(["input", "b\0c"]), attributes={"d": "e\rf"})
    code, out, _ = placekit("graph", "show", str(save_graph(graph, tmp_path / "odd.graph.npz")))
    assert code == 0
    assert all(shown in out for shown in (r"a\x1b[2J", r"b\x00c", r"e\rf"))
    assert out.replace("\n", "").isprintable()


def _odd_graph() -> Graph:
    """A graph of which a JSON file does not hold everything."""
    b = GraphBuilder("odd")
    b.add("x", op_type="input", op_class="copy", flops=7, kernel=False, outputs=[8])
    b.add("y", inputs=[0], op_class="copy")
    b.columns["signature"] = Labels.of(["a", "b"])
    return b.build()


def test_nobody_writes_the_ending(placekit: Callable) -> None:
    code, _, err = placekit("graph", "export", "g.txt", "workload=mlp")
    assert code == 1
    assert "no importer would write g.txt\n  endings that work: .graph.npz (file), .json (json)" in err


def test_the_longest_ending_chooses_the_format(placekit: Callable) -> None:
    code, out, _ = placekit("graph", "export", "again.msr.json", MSR)
    assert code == 0
    code, out, _ = placekit("graph", "export", "again.json", MSR)
    assert code == 0
    assert "again.json has no column node_bytes, no column node_id" in out
    assert json.loads(Path("again.json").read_text())["format"] == "placekit-program"
    code, _, err = placekit("graph", "export", "pair.msr.json", JSON)
    assert code == 1
    assert "2 outputs of 'split' are read" in err
    code, _, err = placekit("graph", "export", "again.txt", MSR)
    assert code == 1
    assert (
        "no importer would write again.txt\n  endings that work: .graph.npz (file), .json (json), .msr.json (msr)"
        in err
    )
