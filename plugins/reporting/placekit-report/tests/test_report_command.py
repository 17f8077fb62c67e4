"""`placekit report`: the page of any run, from its folder; nothing is measured again, and what is missing is said."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from placekit_report import placekit_next_steps
from placekit_report.command import main, reopened
from placekit_report.curves import other_seeds, read_history
from placekit_report.logger import PAGE
from placekit_report.rerun_command import command
from placekit_report.trace import write_trace
from placekit_report.trace_reader import read_schedule
from placekit_testing.small import machine
from report_data import check, embedded, network

from placekit_core import PlacekitError, RunError, installed, place, save_graph
from placekit_core.cli.compose import compose_all, own_part
from placekit_core.cli.main import find
from placekit_core.run.assembly import validate

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
    (tmp_path / "r" / PAGE).unlink()
    assert report(str(tmp_path / "r")) == 0
    assert capsys.readouterr().out == f"written to {tmp_path / 'r' / PAGE}\n"
    after = embedded(tmp_path / "r" / PAGE)
    check(after)
    for data in (before, after):  # a file has fewer digits
        del data["runs"][0]["programs"][0]["search"][0]["seconds"]
    assert before == after


def test_a_run_without_the_logger(tmp_path: Path, graph_file: Path) -> None:
    place(file(graph_file), cluster="p100x4", policy="heft", run_dir=tmp_path / "r", log=["csv"])
    assert report(str(tmp_path / "r"), "--out", str(tmp_path / "page.html")) == 0
    assert not (tmp_path / "r" / PAGE).exists()
    data = embedded(tmp_path / "page.html")
    check(data)
    assert data["runs"][0]["programs"][0]["timeline"] is not None


def test_two_runs_are_compared(tmp_path: Path, graph_file: Path) -> None:
    run(tmp_path / "a", file(graph_file))
    run(tmp_path / "b", file(graph_file), policy="single_gpu")
    assert report(str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "c.html")) == 0
    data = embedded(tmp_path / "c.html")
    check(data)
    assert [Path(r["name"]).name for r in data["runs"]] == ["a", "b"]


def test_a_program_that_is_gone(tmp_path: Path, graph_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = run(tmp_path / "r", file(graph_file))["runs"][0]["programs"][0]
    graph_file.unlink()
    (tmp_path / "r" / PAGE).unlink()
    assert report(str(tmp_path / "r")) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "note: the program could not be opened again: no graph file" in said
    data = embedded(tmp_path / "r" / PAGE)
    check(data)
    [p] = data["runs"][0]["programs"]
    assert p["timeline"] is p["memory"] is p["change"] is p["headroom"] is None
    assert p["search"][0]["best_s"] == before["search"][0]["best_s"]
    assert p["devices"]["peak_bytes"] == before["devices"]["peak_bytes"]
    assert data["runs"][0]["notes"]


def test_a_program_that_has_changed(tmp_path: Path, graph_file: Path) -> None:
    run(tmp_path / "r", file(graph_file))
    (tmp_path / "r" / PAGE).unlink()
    save_graph(network(4), graph_file)
    assert report(str(tmp_path / "r")) == 0
    data = embedded(tmp_path / "r" / PAGE)["runs"][0]
    assert data["programs"][0]["timeline"] is None
    assert "the program has changed since" in data["notes"][0]


def test_a_program_of_a_script_is_shown_as_its_own_page_shows_it(tmp_path: Path) -> None:
    for name in "ab":
        run(tmp_path / name, network(), cluster=machine())
    before = embedded(tmp_path / "a" / PAGE)["runs"][0]
    assert report(str(tmp_path / "a"), str(tmp_path / "b")) == 0
    data = embedded(tmp_path / "a" / "comparison.html")
    check(data)
    assert data["command"] == "# placed by a Python program, with objects of its own: programs"
    for again in data["runs"]:
        assert "objects of a Python program; what report.html of the run says is shown" in again["notes"][0]
        assert again["programs"][0]["timeline"] is not None
    assert data["runs"][0]["programs"] == before["programs"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"complete":true', '"complete":false'),
        ('"runs":[', '"runs":[1,'),
        ("placekit-data", "other"),
        ("<title>", "<title>x"),
    ],
)
def test_an_edited_page_is_not_believed(tmp_path: Path, old: str, new: str) -> None:
    run(tmp_path / "r", network(), cluster=machine())
    page = tmp_path / "r" / PAGE
    edited = page.read_text().replace(old, new)
    assert edited != page.read_text()
    page.write_text(edited)
    assert report(str(tmp_path / "r")) == 0
    again = embedded(page)["runs"][0]
    assert again["programs"][0]["timeline"] is None
    assert "report.html of the run cannot stand in" in again["notes"][0]


def test_what_a_run_lacks_comes_first(tmp_path: Path) -> None:
    """A missing history is no reason why there is no timeline, and no matter if the page of the run has the curve."""
    folder = tmp_path / "r"
    run(folder, network(), cluster=machine())
    (folder / "history.csv").unlink()
    assert report(str(folder), "--out", str(tmp_path / "page.html")) == 0
    [note] = embedded(tmp_path / "page.html")["runs"][0]["notes"]
    assert note.endswith("objects of a Python program; what report.html of the run says is shown")
    (folder / PAGE).unlink()
    assert report(str(folder)) == 0
    notes = embedded(folder / PAGE)["runs"][0]["notes"]
    assert len(notes) == 2
    assert any("the search has no curve" in note for note in notes)


def test_other_seeds_without_a_history_are_left_out(tmp_path: Path, graph_file: Path) -> None:
    for seed in range(3):
        run(tmp_path / f"seed={seed}", file(graph_file), seed=seed)
    (tmp_path / "seed=1" / "history.csv").unlink()
    assert report(str(tmp_path / "seed=0")) == 0
    [made] = embedded(tmp_path / "seed=0" / PAGE)["runs"]
    assert [found["seed"] for found in made["programs"][0]["search"]] == [0, 2]
    assert not any("curve" in note for note in made["notes"])


def test_two_runs_without_their_programs_and_pages(tmp_path: Path) -> None:
    for name in "ab":
        run(tmp_path / name, network(), cluster=machine())
    (tmp_path / "a" / PAGE).unlink()
    assert report(str(tmp_path / "a"), str(tmp_path / "b")) == 0
    (tmp_path / "b" / PAGE).unlink()
    assert report(str(tmp_path / "a"), str(tmp_path / "b")) == 0
    data = embedded(tmp_path / "a" / "comparison.html")
    assert [run["programs"][0]["timeline"] for run in data["runs"]] == [None, None]


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_run_whose_history_is_gone(tmp_path: Path, graph_file: Path, interrupted: bool) -> None:
    run(tmp_path / "r", file(graph_file))
    if interrupted:
        (tmp_path / "r" / "history.csv").write_text("not a history\n")
    else:
        (tmp_path / "r" / "history.csv").unlink()
    assert report(str(tmp_path / "r")) == 0
    data = embedded(tmp_path / "r" / PAGE)["runs"][0]
    assert data["programs"][0]["search"][0]["best_s"] == []
    assert data["notes"][0].startswith("the search has no curve")


def nothing(folder: Path) -> Path:
    return folder / "missing"


def below(folder: Path) -> Path:
    (folder / "x" / "run").mkdir(parents=True)
    (folder / "x" / "run" / "result.json").write_text("{}")
    return folder / "x"


def begun(folder: Path) -> Path:
    (folder / "config.json").write_text("{}")
    return folder


def damaged(folder: Path) -> Path:
    (folder / "result.json").write_text("{")
    return folder


@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (nothing, "is no directory of a run: it has no result.json", "give the run_dir of a run"),
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
    program = tmp_path / "family" / "programs" / "000-net"
    program.mkdir(parents=True)
    (tmp_path / "family" / "result.json").write_text("{}")
    with pytest.raises(RunError, match="one program of a family") as e:
        report(str(program))
    assert "family" in e.value.hint


def test_the_page_of_a_sweeps_job_has_the_other_seeds(tmp_path: Path, graph_file: Path) -> None:
    names = [f"policy=random,seed={seed}" for seed in (0, 1, 2)]
    for seed, name in enumerate(names):
        place(file(graph_file), cluster="p100x4", policy="single_gpu", seed=seed, run_dir=tmp_path / name)
    place(file(graph_file), cluster="p100x4", policy="heft", seed=3, run_dir=tmp_path / "policy=random,seed=3")
    (tmp_path / "policy=random,seed=x").mkdir()
    config = json.loads((tmp_path / names[1] / "config.json").read_text())
    assert [(s, p.name) for s, p in other_seeds(tmp_path / names[1], config)] == [(0, names[0]), (2, names[2])]
    assert report(str(tmp_path / names[0])) == 0
    search = embedded(tmp_path / names[0] / PAGE)["runs"][0]["programs"][0]["search"]
    assert [s["seed"] for s in search] == [0, 1, 2]
    last = embedded(tmp_path / names[2] / PAGE)["runs"][0]["programs"][0]["search"]
    assert [s["seed"] for s in last] == [2, 0, 1], "the logger shows those that have run"


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
    config = validate(own_part(compose_all(words, registry)), registry).model_dump(mode="json")
    made = command(config, registry)
    assert made.startswith("placekit run ")
    if any(word.startswith("cluster.") for word in words):
        assert made.endswith("cluster=CLUSTER.yaml  # its machine is the section `cluster` of config.json")
        return
    again = validate(own_part(compose_all(shlex.split(made)[2:], registry)), registry).model_dump(mode="json")
    for data in (config, again):
        del data["run_dir"], data["workload"]
    assert again == config


def test_the_command_names_a_workload_and_a_machine() -> None:
    pytest.importorskip("placekit_zoo")
    registry = installed()
    words = ["workload=inception_v3", "cluster=p100x4", "policy=etf"]
    config = validate(own_part(compose_all(words, registry)), registry).model_dump(mode="json")
    assert command(config, registry) == "placekit run workload=inception_v3 policy=etf cluster=p100x4"


def test_a_trace_is_read_back(tmp_path: Path, graph_file: Path) -> None:
    result = place(file(graph_file), cluster="p100x4", policy="heft", run_dir=tmp_path / "r")
    schedule, problem = result.schedule, result.problem
    assert schedule is not None
    write_trace(tmp_path / "schedule.trace.json", schedule, problem)
    again = read_schedule(tmp_path, problem, schedule.op_device, schedule.value_s)
    for name in ("op_start_s", "op_end_s", "transfer_start_s", "transfer_end_s"):
        order = np.argsort(schedule.transfer_start_s, kind="stable") if name.startswith("transfer") else slice(None)
        assert getattr(again, name) == pytest.approx(getattr(schedule, name)[order], abs=1e-12)
    assert again.op_stream.tolist() == schedule.op_stream.tolist()
    assert sorted(again.transfer_tensor.tolist()) == sorted(schedule.transfer_tensor.tolist())
    elsewhere = (schedule.op_device + 1) % problem.cluster.size
    for change in (lambda text: text.replace("layers.0.mlp.mm", "other"), lambda text: text[:-9], lambda text: "{}"):
        (tmp_path / "x").mkdir(exist_ok=True)
        text = (tmp_path / "schedule.trace.json").read_text()
        (tmp_path / "x" / "schedule.trace.json").write_text(change(text))
        with pytest.raises(RunError):
            read_schedule(tmp_path / "x", problem, schedule.op_device, 1.0)
    with pytest.raises(RunError, match="not the trace of this placement"):
        read_schedule(tmp_path, problem, elsewhere.astype(np.int16), 1.0)


def test_a_measured_run_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("placekit_einsum")
    session = pytest.importorskip("placekit_cuda.session")
    options: dict[str, Any] = {"backend": {"name": "cpu", "devices": 2, "steps": 1, "warm_up": 1}, "budget": 2}
    importer = {"name": "einsum", "program": "chainmm", "sizes": {"n": 16}}
    place(importer, cluster="default", policy="single_device", run_dir=tmp_path / "r", **options)
    before = embedded(tmp_path / "r" / PAGE)["runs"][0]
    monkeypatch.setattr(session.MeasuredSession, "evaluate", forbidden)
    monkeypatch.setattr(session.MeasuredSession, "schedule", forbidden)
    assert report(str(tmp_path / "r")) == 0
    data = embedded(tmp_path / "r" / PAGE)
    check(data)
    after = data["runs"][0]
    assert after["truth"] == "measured"
    assert after["truth_text"] == before["truth_text"]
    assert after["programs"][0]["timeline"]["end_s"] == pytest.approx(before["programs"][0]["timeline"]["end_s"])
    (tmp_path / "r" / "schedule.trace.json").unlink()
    assert report(str(tmp_path / "r")) == 0
    text = embedded(tmp_path / "r" / PAGE)["runs"][0]["truth_text"]
    assert "the timeline is simulated" in text


def forbidden(*_: Any) -> None:
    raise AssertionError("it measured again")


def test_the_next_step_is_to_open_the_page(tmp_path: Path) -> None:
    result: Any = None
    assert placekit_next_steps(tmp_path, result) == []
    (tmp_path / PAGE).touch()
    assert placekit_next_steps(tmp_path, result) == [f"open {tmp_path / PAGE} in a browser"]


def test_reopening_keeps_sessions_open_until_the_end(tmp_path: Path, graph_file: Path) -> None:
    run(tmp_path / "r", file(graph_file))
    with ExitStack() as stack:
        found = reopened(tmp_path / "r", installed(), stack)
        [part] = found.parts
        assert part.simulation is not None
        assert part.found is not None
        assert part.found.schedule is not None
        assert part.found.schedule.value_s == part.summary.value_s
    assert read_history(tmp_path / "r") == [tuple(row) for row in part.history]


def test_main_is_what_the_command_runs(tmp_path: Path) -> None:
    with pytest.raises(PlacekitError, match="no directory of a run"):
        main([str(tmp_path)], installed())


def test_listing_commands_imports_no_matplotlib() -> None:
    code = "import sys, placekit_report; placekit_report.placekit_commands(); print('matplotlib' in sys.modules)"
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert found.stdout.strip() == "False"
