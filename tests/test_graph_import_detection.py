"""Which importer reads a file, and what `placekit graph import | export | show` do with it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from placekit_formats.json_program import JsonImporter

from placekit_core.api import place
from placekit_core.cli.graph import _write
from placekit_core.detection import importer_of, readers_of, writer_of
from placekit_core.errors import GraphError
from placekit_core.graph import Graph, GraphBuilder, Labels
from placekit_core.graph_file import load_graph, save_graph
from placekit_core.hookspecs import Component
from placekit_core.interfaces import Options
from placekit_core.registry import Entry, installed
from placekit_core.results import load_summary

SAMPLES = Path(__file__).parent.parent / "plugins" / "importers" / "placekit-formats" / "tests" / "samples"
JSON, TEXT = str(SAMPLES / "pair.json"), str(SAMPLES / "triangle.txt")


class PathOptions(Options):
    path: str = ""


@pytest.fixture
def another(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs one more importer that reads .json files."""

    def install(**fields: object) -> None:
        component = Component("other_json", "another", PathOptions, "nowhere:Other", files=(".json",), **fields)  # type: ignore[arg-type]
        entry = Entry("importer", component, "other", "placekit-other", "0")
        monkeypatch.setitem(installed().entries, ("importer", "other_json"), [entry])

    return install


@pytest.fixture
def without_detect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs an importer that reads .ops files and has no `detect`."""
    component = Component("ops", "operations", PathOptions, "nowhere:Ops", files=(".ops",))
    monkeypatch.setitem(
        installed().entries, ("importer", "ops"), [Entry("importer", component, "ops", "placekit-ops", "0")]
    )


def test_by_ending_and_content() -> None:
    assert importer_of(JSON) == "json"
    assert importer_of(TEXT) == "doppler"


def test_a_byte_order_mark_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbf" + Path(TEXT).read_bytes())
    assert importer_of(tmp_path / "x.txt") == "doppler"


@pytest.mark.parametrize("name", ["x.JSON", "x.program", "x"])
def test_by_the_content_where_nobody_knows_the_ending(name: str, tmp_path: Path, placekit: Callable) -> None:
    (tmp_path / name).write_bytes(Path(JSON).read_bytes())
    assert importer_of(tmp_path / name) == "json"
    assert placekit("graph", "show", str(tmp_path / name)).code == 0
    assert place(str(tmp_path / name), policy="single_device").value_s == 0.001 + 0.5 + 0.25


def test_by_the_ending_alone_without_detect(without_detect: None, tmp_path: Path) -> None:
    assert importer_of("no/such/file.ops") == "ops"
    (tmp_path / "x.ops").write_bytes(Path(JSON).read_bytes())
    assert importer_of(tmp_path / "x.ops") == "ops"


def test_by_the_content_where_several_have_the_ending(another: Callable, tmp_path: Path) -> None:
    another(detect=lambda head: b"other" in head)
    assert readers_of(JSON) == ["json", "other_json"]
    assert importer_of(JSON) == "json"
    (tmp_path / "x.json").write_text('{"other": 1}')
    assert importer_of(tmp_path / "x.json") == "other_json"


def test_one_without_detect_gets_what_the_others_do_not_know(another: Callable, tmp_path: Path) -> None:
    another()
    assert importer_of(JSON) == "json"
    (tmp_path / "x.json").write_text("{}")
    assert importer_of(tmp_path / "x.json") == "other_json"


PROGRAM = '{"format": "placekit-program"'


@pytest.mark.parametrize(
    ("name", "content", "says", "looks"),
    [
        ("x.json", "{}", "json", "no importer"),
        ("x.json", "", "json", "no importer"),
        ("x.txt", PROGRAM, "doppler", "json"),
        ("x.graph.npz", "5\n0,\n", "file", "doppler"),
        ("x.docx", "hello", "no importer", "no importer"),
    ],
)
def test_a_mismatch_is_an_error(name: str, content: str, says: str, looks: str, placekit: Callable) -> None:
    Path(name).write_text(content)
    for command in ("import", "show"):
        code, out, err = placekit("graph", command, name)
        assert (code, out) == (1, "")
        assert f"{name} is named like a file of {says}, and begins like one of {looks}\n" in err
        assert f"importer=NAME importer.path={name}" in err
    with pytest.raises(GraphError, match="begins like one of"):
        place(name, run_dir=None)


def test_several_that_claim_a_file(another: Callable) -> None:
    another(detect=lambda head: True)
    with pytest.raises(
        GraphError, match="like a file of json or other_json, and begins like one of json or other_json"
    ):
        importer_of(JSON)


@pytest.mark.parametrize("name", ["none.json", "none.docx"])
def test_a_missing_file(name: str, placekit: Callable) -> None:
    code, _, err = placekit("graph", "import", name)
    assert code == 1
    assert f"cannot read {name}: No such file" in err


def test_import_says_what_a_file_brings(placekit: Callable) -> None:
    code, out, _ = placekit("graph", "import", JSON)
    assert code == 0
    assert out.endswith(
        "is valid (json): Graph('pair', 4 operations, 5 tensors, 5 edges), seconds for gpu, cpu, machine 'two'\n"
    )


def test_import_converts_and_says_what_is_lost(placekit: Callable) -> None:
    code, out, _ = placekit("graph", "import", JSON, "pair.graph.npz")
    assert code == 0
    assert "pair.graph.npz holds no seconds, no machine\n" in out
    assert "importer=file importer.path='pair.graph.npz'`" in out
    code, out, _ = placekit("graph", "import", JSON, "again.json")
    assert code == 0
    assert "holds no" not in out
    assert "importer=json importer.path='again.json'`" in out


def test_export_as_json(placekit: Callable) -> None:
    code, out, _ = placekit("graph", "export", "mlp.json", "workload=mlp")
    assert code == 0
    assert "mlp.json holds no column " in out
    assert len(json.loads(Path("mlp.json").read_text())["operations"]) == 52
    run = ("policy=etf", "grouper=none")
    assert placekit("run", "importer=json", "importer.path=mlp.json", *run, "run_dir=a").code == 0
    assert placekit("run", "workload=mlp", *run, "run_dir=b").code == 0
    assert load_summary("a").value_s == load_summary("b").value_s
    assert placekit("graph", "export", "mlp.json", "workload=mlp").code == 1


def test_nothing_is_overwritten(placekit: Callable) -> None:
    text = Path(JSON).read_text()
    Path("a.json").write_text(text)
    for command in (("import", "a.json", "a.json"), ("export", "a.json", "workload=mlp")):
        code, out, err = placekit("graph", *command)
        assert (code, out) == (1, "")
        assert "a.json exists already" in err
    assert Path("a.json").read_text() == text


def test_export_needs_no_groups_and_no_machine(placekit: Callable) -> None:
    """The graph alone is written: that the grouper of the configuration refuses it does not matter."""
    wrong = ("importer=json", f"importer.path={JSON}", "cluster=p100x4", "costs.file=nowhere.json")
    assert placekit("graph", "show", *wrong).code == 1
    assert placekit("graph", "export", "pair.json", *wrong).code == 0


def test_export_says_what_the_file_has(placekit: Callable, tmp_path: Path) -> None:
    graph = load_graph(save_graph(_odd_graph(), tmp_path / "odd.graph.npz"))
    code, out, _ = placekit("graph", "export", "odd.json", "importer=file", f"importer.path={tmp_path}/odd.graph.npz")
    assert code == 0
    [again] = JsonImporter(path="odd.json").load()
    assert out.splitlines() == [
        "odd.json holds no column signature",
        "odd.json has another op_class, another flops",
        f"odd.json: 2 operations, fingerprint {again.graph.fingerprint}",
    ]
    assert again.graph.fingerprint != graph.fingerprint


def test_import_says_which_seconds_are_not_as_they_were(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [program] = JsonImporter(path=JSON).load()
    assert program.costs is not None
    measured = np.zeros(program.costs.op_s.shape, np.bool_)
    measured[1, 0] = True
    mixed = replace(program, costs=replace(program.costs, measured=measured), split="test")
    _write(JsonImporter, mixed, tmp_path / "mixed.json")
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/mixed.json holds no split",
        f"{tmp_path}/mixed.json has another measured",
    ]


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
    assert "no importer would write g.txt\n  what can be written: .graph.npz (file), .json (json)" in err
    assert writer_of("x.json").name == "json"


def test_show_and_run_a_file(placekit: Callable) -> None:
    shown = placekit("graph", "show", JSON)
    assert shown.code == 0
    assert "operations          4 (3 kernels, 1 sources)" in shown.out
    assert placekit("run", "importer=json", f"importer.path={JSON}", "policy=single_device", "run_dir=out").code == 0
    summary = load_summary("out")
    assert summary.value_s == 0.001 + 0.5 + 0.25
    assert summary.cluster == "two"


def test_place_takes_the_files() -> None:
    assert place(TEXT, cluster="doppler_sim", policy="single_device").value_s == pytest.approx(6.0)


@pytest.mark.skipif("PLACEKIT_SAMPLES" not in os.environ, reason="PLACEKIT_SAMPLES is not set")
@pytest.mark.parametrize(("name", "expected"), [("chain_mm_112nodes", "4800.28"), ("ffnn_192nodes", "226.78")])
def test_published_graphs_on_their_simulator(name: str, expected: str, placekit: Callable) -> None:
    path = Path(os.environ["PLACEKIT_SAMPLES"], "doppler", f"gdp_{name}.txt")
    code, out, _ = placekit("graph", "import", str(path))
    assert code == 0
    assert "is valid (doppler)" in out
    run = ("importer=doppler", f"importer.path={path}", "cluster=doppler_sim", "backend.ready_order=fifo")
    assert placekit("run", *run, "policy=single_device", "run_dir=out").code == 0
    value = load_summary("out").value_s
    assert f"{value:.2f}" == expected
    work = sum(float(line.split(",")[0]) for line in path.read_text().splitlines()[4:]) / 1e10
    assert value == pytest.approx(work, rel=1e-12)
