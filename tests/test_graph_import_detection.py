"""Which importer reads a file, by its name and by how it begins."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from placekit_core import GraphError, ImporterComponent, Options, Registry, installed, place
from placekit_core.run.detection import importer_of, readers_of
from placekit_core.run.entries import Entry
from placekit_core.run.run_directory import load_summary

SAMPLES = Path(__file__).parent.parent / "plugins" / "importers" / "placekit-formats" / "tests" / "samples"
JSON, TEXT = str(SAMPLES / "pair.json"), str(SAMPLES / "triangle.txt")
MSR, PIPEDREAM = str(SAMPLES / "training.json"), str(SAMPLES / "tower.txt")


class PathOptions(Options):
    path: str = ""


def with_importer(name: str, *files: str, detect: Callable[[bytes], bool] | None = None) -> Registry:
    """What is installed, and one more importer."""
    component = ImporterComponent(name, "another", PathOptions, "nowhere:Other", files=files, detect=detect)
    entry = Entry("importer", component, "other", "placekit-other", "0")
    return dataclasses.replace(installed(), entries={**installed().entries, ("importer", name): [entry]})


def of(path: str | Path) -> str:
    """The installed importer that reads the file."""
    return importer_of(path, installed())


def test_by_ending_and_content() -> None:
    assert of(JSON) == "json"
    assert of(TEXT) == "doppler"
    assert of(MSR) == "msr"
    assert of(PIPEDREAM) == "pipedream"


@pytest.mark.parametrize("first", ["maxFPGAs", "maxCPUs", "maxSizePerFPGA", "nodes", "edges"])
def test_members_of_dnn_partitioning_come_in_any_order(first: str, tmp_path: Path) -> None:
    data = json.loads(Path(MSR).read_text())
    data["nodes"] *= 100  # so that nothing else is in the first bytes
    data["edges"] *= 100
    (tmp_path / "x.json").write_text(json.dumps({first: data.pop(first), **data}))
    assert of(tmp_path / "x.json") == "msr"


def test_a_line_that_is_longer_than_the_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(Path(PIPEDREAM).read_text().replace("Input0", "Input0(" + "x" * 5000 + ")"))
    assert of(tmp_path / "x.txt") == "pipedream"
    (tmp_path / "x.txt").write_text("a -- b\nc -- d\n")
    with pytest.raises(GraphError):
        of(tmp_path / "x.txt")


def test_a_byte_order_mark_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbf" + Path(TEXT).read_bytes())
    assert of(tmp_path / "x.txt") == "doppler"


@pytest.mark.parametrize("name", ["x.JSON", "x.program", "x"])
def test_by_the_content_where_nobody_knows_the_ending(name: str, tmp_path: Path, placekit: Callable) -> None:
    (tmp_path / name).write_bytes(Path(JSON).read_bytes())
    assert of(tmp_path / name) == "json"
    assert placekit("graph", "show", str(tmp_path / name)).code == 0
    assert place(str(tmp_path / name), policy="single_device").value_s == 0.001 + 0.5 + 0.25


def test_by_the_ending_alone_without_detect(tmp_path: Path) -> None:
    registry = with_importer("ops", ".ops")
    assert importer_of("no/such/file.ops", registry) == "ops"
    (tmp_path / "x.ops").write_bytes(Path(JSON).read_bytes())
    assert importer_of(tmp_path / "x.ops", registry) == "ops"


def test_by_the_content_where_several_have_the_ending(tmp_path: Path) -> None:
    registry = with_importer("other_json", ".json", detect=lambda head: b"other" in head)
    assert readers_of(JSON, registry) == ["json", "msr", "other_json"]
    assert importer_of(JSON, registry) == "json"
    (tmp_path / "x.json").write_text('{"other": 1}')
    assert importer_of(tmp_path / "x.json", registry) == "other_json"


def test_one_without_detect_gets_what_the_others_do_not_know(tmp_path: Path) -> None:
    registry = with_importer("other_json", ".json")
    assert importer_of(JSON, registry) == "json"
    (tmp_path / "x.json").write_text("{}")
    assert importer_of(tmp_path / "x.json", registry) == "other_json"


UNKNOWN = "is not a graph that an importer knows"
PROGRAM = '{"format": "placekit-program"'


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.json", "{}", f"{UNKNOWN}: its content is not that of importer json or msr"),
        ("x.json", "", "is empty"),
        ("x.docx", "", "is empty"),
        ("x.txt", PROGRAM, f"{UNKNOWN}: its content is not that of importer doppler or pipedream, but of json"),
        ("x.graph.npz", "5\n0,\n", "its content is not that of importer file, but of doppler"),
        ("x.docx", "hello", UNKNOWN),
    ],
)
def test_a_mismatch_is_an_error(name: str, content: str, said: str, placekit: Callable) -> None:
    Path(name).write_text(content)
    for command in (("graph", "import"), ("graph", "show"), ("run",)):
        code, out, err = placekit(*command, name)
        assert (code, out) == (1, "")
        assert err.startswith(f"placekit: {name} ")
        assert (
            f"{said}\n  importers: doppler reads .txt; file reads .graph.npz; json reads .json; msr reads .json; "
            in err
        )
        assert f"importer=NAME importer.path={name}" in err
    with pytest.raises(GraphError, match=said):
        place(name, run_dir=None)


@pytest.mark.parametrize("other", ["workload=mlp", "importer=rnnlm"])
def test_a_file_and_another_program(other: str, placekit: Callable) -> None:
    for command in (("run", "-m"), ("graph", "show")):
        assert f"{JSON} and {other} both say what is placed\n  give one of them" in placekit(*command, JSON, other).err


def test_several_that_claim_a_file() -> None:
    registry = with_importer("other_json", ".json", detect=lambda head: True)
    with pytest.raises(GraphError, match=r"pair\.json can be a file of importer json or other_json\n"):
        importer_of(JSON, registry)


@pytest.mark.parametrize("name", ["none.json", "none.docx"])
def test_a_missing_file(name: str, placekit: Callable) -> None:
    code, _, err = placekit("graph", "import", name)
    assert code == 1
    assert f"cannot read {name}: No such file" in err


def test_a_pipe_of_unknown_content(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GraphError, match=r"cannot read .*pipe: it is a pipe"):
        importer_of(tmp_path / "pipe", installed())


def test_show_and_run_a_file(placekit: Callable) -> None:
    shown = placekit("graph", "show", JSON)
    assert shown.code == 0
    assert "operations          4 (3 kernels, 1 sources)" in shown.out
    for i, file in enumerate(([JSON], ["importer=json", f"importer.path={JSON}"])):
        assert placekit("run", *file, "policy=single_device", f"run_dir={i}").code == 0
        summary = load_summary(f"{i}")
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
