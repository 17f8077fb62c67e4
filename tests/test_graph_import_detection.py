"""Which importer reads a file, by its name and by how it begins."""

from __future__ import annotations

import dataclasses
import json
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


@pytest.mark.parametrize("name", ["x.JSON", "x.program", "x"])
def test_by_the_content_where_nobody_knows_the_ending(name: str, tmp_path: Path, placekit: Callable) -> None:
    (tmp_path / name).write_bytes(Path(JSON).read_bytes())
    assert of(tmp_path / name) == "json"
    assert placekit("graph", "show", str(tmp_path / name)).code == 0
    assert place(str(tmp_path / name), policy="single_device").value_s == 0.001 + 0.5 + 0.25


def test_by_the_content_where_several_have_the_ending(tmp_path: Path) -> None:
    registry = with_importer("other_json", ".json", detect=lambda head: b"other" in head)
    assert readers_of(JSON, registry) == ["json", "msr", "other_json"]
    assert importer_of(JSON, registry) == "json"
    (tmp_path / "x.json").write_text('{"other": 1}')
    assert importer_of(tmp_path / "x.json", registry) == "other_json"


UNKNOWN = "fits no importer"
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
    for command in (("graph", "export", "x.out.json"), ("graph", "show"), ("run",)):
        code, out, err = placekit(*command, name)
        assert (code, out) == (1, "")
        assert err.startswith(f"placekit: {name} ")
        assert (
            f"{said}\n  importers: checkpoint reads .gguf; doppler reads .txt; file reads .graph.npz; json reads .json; "
            "msr reads .json; " in err
        )
        assert f"importer=NAME importer.path={name}" in err
    with pytest.raises(GraphError, match=said):
        place(name, run_dir=None)


def test_show_and_run_a_file(placekit: Callable) -> None:
    shown = placekit("graph", "show", JSON)
    assert shown.code == 0
    assert "operations          4 (3 kernels, 1 sources)" in shown.out
    for i, file in enumerate(([JSON], ["importer=json", f"importer.path={JSON}"])):
        assert placekit("run", *file, "policy=single_device", f"run_dir={i}").code == 0
        summary = load_summary(f"{i}")
        assert summary.value_s == 0.001 + 0.5 + 0.25
        assert summary.cluster == "two"
