"""`placekit report`: the page of any run, from its folder; nothing is measured again, and what is missing is said."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from placekit_report import placekit_next_steps
from placekit_report.command import main
from placekit_report.logger import PAGE
from placekit_report.rerun_command import command
from report_data import check, embedded, network

from placekit_core import PlacekitError, RunError, installed, place, save_graph
from placekit_core.cli.compose import assembled
from placekit_core.cli.main import find

for plugin in ("placekit_grouping", "placekit_sim", "placekit_formats", "placekit_heuristics"):
    pytest.importorskip(plugin, reason="runs that can be opened again")


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    path = tmp_path / "net.graph.npz"
    save_graph(network(), path)
    return path


def file(path: Path) -> dict[str, str]:
    """The importer that reads the graph file, by name, as a configuration can have it."""
    return {"name": "file", "path": str(path)}


def run(folder: Path, source: Any, **options: Any) -> dict[str, Any]:
    """Run as the command line does; the data of the page that the logger wrote."""
    options = {"cluster": "p100x4", "policy": "heft", "grouper": "none", "budget": 20, **options}
    place(source, run_dir=folder, **options)
    return embedded(folder / PAGE)


def report(*words: str) -> int:
    entry, arguments = find(["report", *words], installed())
    return entry.run(arguments, installed())


def test_the_command_makes_the_page_that_the_logger_made(
    tmp_path: Path, graph_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = run(tmp_path / "r", file(graph_file))
    assert report(str(tmp_path / "r"), "--out", str(tmp_path / "again.html")) == 0
    assert capsys.readouterr().out == f"written to {tmp_path / 'again.html'}\n"
    after = embedded(tmp_path / "again.html")
    check(after)
    assert before == after


def test_two_runs_are_compared(tmp_path: Path, graph_file: Path) -> None:
    run(tmp_path / "a", file(graph_file))
    run(tmp_path / "b", file(graph_file), policy="single_gpu")
    assert report(str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "c.html")) == 0
    data = embedded(tmp_path / "c.html")
    check(data)
    assert [Path(r["name"]).name for r in data["runs"]] == ["a", "b"]


def nothing(folder: Path) -> Path:
    return folder / "missing"


def below(folder: Path) -> Path:
    (folder / "x" / "run").mkdir(parents=True)
    (folder / "x" / "run" / "report.html").write_text("")
    return folder / "x"


def begun(folder: Path) -> Path:
    (folder / "config.json").write_text("{}")
    return folder


def damaged(folder: Path) -> Path:
    (folder / "report.html").write_text("{")
    return folder


@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (nothing, "is no directory of a run", "give the run_dir of a run"),
        (below, "is no directory of a run", "give one of the 1 below it"),
        (begun, "has not finished", "placekit run resume="),
        (damaged, "is damaged", ""),
    ],
)
def test_what_is_no_run(tmp_path: Path, make: Callable[[Path], Path], message: str, hint: str) -> None:
    with pytest.raises(RunError, match=message) as e:
        report(str(make(tmp_path)))
    assert hint in e.value.hint


def test_other_mistakes(tmp_path: Path, graph_file: Path) -> None:
    with pytest.raises(RunError, match="compares two runs, not 3") as e:
        report("a", "b", "c")
    assert "compare --html" in e.value.hint
    run(tmp_path / "r", file(graph_file))
    with pytest.raises(RunError, match="cannot write"):
        report(str(tmp_path / "r"), "--out", str(tmp_path / "r" / PAGE / "x.html"))


@pytest.mark.parametrize(
    "words",
    [
        ["workload=mlp", "cluster=k80x2", "policy=heft"],
        ["workload=chainmm_small", "policy=annealing", "policy.temperature_end=0.5", "seed=3", "budget.evaluations=50"],
        ["importer=mlp", "importer.batch=7", "grouper=none", "backend=bulk_synchronous", "costs.file=a b.json"],
        ["workload=mlp", "cluster=k80x2", "cluster.kinds.k80.memory_bytes=1000000000"],
        ["importer=file", 'importer.path="it\'s [1]=2.graph.npz"', "backend.prefetch=2", "budget.seconds=1.5"],
    ],
    ids=lambda words: words[-1],
)
def test_the_command_of_a_configuration_makes_it_again(words: list[str]) -> None:
    pytest.importorskip("placekit_zoo")
    pytest.importorskip("placekit_einsum")
    registry = installed()
    config = assembled(words, registry).config.model_dump(mode="json")
    made = command(config, registry)
    assert made.startswith("placekit run ")
    if any(word.startswith("cluster.") for word in words):
        assert made.endswith("cluster=CLUSTER.yaml  # its machine is the section `cluster` of config.json")
        return
    again = assembled(shlex.split(made)[2:], registry).config.model_dump(mode="json")
    for data in (config, again):
        del data["run_dir"], data["workload"]
    assert again == config


def test_the_command_names_a_workload_and_a_machine() -> None:
    pytest.importorskip("placekit_zoo")
    registry = installed()
    words = ["workload=inception_v3", "cluster=p100x4", "policy=etf"]
    config = assembled(words, registry).config.model_dump(mode="json")
    assert command(config, registry) == "placekit run workload=inception_v3 policy=etf cluster=p100x4"


def test_the_next_step_is_to_open_the_page(tmp_path: Path) -> None:
    result: Any = None
    assert placekit_next_steps(tmp_path, result) == []
    (tmp_path / PAGE).touch()
    assert placekit_next_steps(tmp_path, result) == [f"open {tmp_path / PAGE} in a browser"]


def test_main_is_what_the_command_runs(tmp_path: Path) -> None:
    with pytest.raises(PlacekitError, match="no directory of a run"):
        main([str(tmp_path)], installed())
