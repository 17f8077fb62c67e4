"""placekit from Python: the same numbers as the command line, objects in the place of names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from placekit_report import html
from placekit_testing.fakes import FakeBackend, FakeLearnable, FakeTrainer, chain_graph, gpus

from placekit_core import (
    ConfigError,
    ImporterError,
    Interrupted,
    PlacekitError,
    Placement,
    Placements,
    PluginError,
    Problem,
    Program,
    RunError,
    Task,
    installed,
    load_placement,
    load_programs,
    place,
    save_graph,
)
from placekit_core.cli.console import show_result
from placekit_core.run.run_directory import load_summary


def without_time(summary: Any) -> dict[str, Any]:
    """The numbers that must agree between two runs, as JSON has them."""
    data = json.loads(summary.model_dump_json(exclude={"seconds", "config", "importer", "workload", "versions"}))
    for p in data["programs"]:
        del p["seconds"]
    return data


def test_place_finds_what_the_command_line_finds(placekit: Any, tmp_path: Path) -> None:
    outcome = placekit("run", "workload=mlp", "+policy=portfolio", "seed=3", "budget.evaluations=300", "run_dir=cli")
    assert outcome.code == 0, outcome.err
    result = place("mlp", cluster="rtx4090_3090", budget=300, seed=3)
    assert without_time(result.summary) == without_time(load_summary(tmp_path / "cli"))
    kept = load_placement(tmp_path / "cli" / "placement.json", result.problem)
    assert result.placement is not None
    assert result.placement.same_as(kept)


def test_a_result_holds_what_was_found(problem: Problem) -> None:
    result = place(problem.graph, cluster=problem.cluster, budget=100)
    assert result.placement is not None
    assert result.schedule is not None
    assert result.measurements is not None
    assert result.measurements.value_s.tolist() == [result.value_s]
    assert result.measurements.fits.tolist() == [True]
    assert result.schedule.value_s == result.value_s
    assert result.value_s == pytest.approx(0.012, rel=0.2)
    assert result.problem.fingerprint == problem.fingerprint
    assert result.run_dir is None
    lines = repr(result).splitlines()
    assert re.fullmatch(r"\S+ on \S+, portfolio, seed 0: 1\S+ ms, gap \S+%, 100 evaluations in \S+ s", lines[0])
    assert lines[1].startswith("baselines: 53.8% faster than ")


def test_nothing_is_written_unless_asked_for(problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place(problem.graph, cluster=problem.cluster, budget=10)
    assert list(tmp_path.iterdir()) == []
    result = place(problem.graph, cluster=problem.cluster, budget=10, run_dir="kept")
    assert result.run_dir == Path("kept")
    written = {"result.json", "placement.json", "config.json", "history.csv"}  # by the core
    # by the logger `report`, which is on by default
    written |= {"report.html", "schedule.trace.json"}
    assert {p.name for p in (tmp_path / "kept").iterdir()} == written
    place(problem.graph, cluster=problem.cluster, budget=10, run_dir="plain", log=())
    assert {p.name for p in (tmp_path / "plain").iterdir()} == {"result.json", "placement.json", "config.json"}
    with pytest.raises(RunError, match="holds a run already"):
        place(problem.graph, cluster=problem.cluster, budget=10, run_dir="kept")


def test_notes_are_in_the_result(problem: Problem, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def talkative(task: Task, rng: np.random.Generator) -> Placement:
        task.evaluate.note("put everything <here>")
        return task.problem.placement(np.zeros(task.problem.g, np.int16))

    result = place(problem.graph, cluster=problem.cluster, policy=talkative, run_dir=tmp_path / "run")
    assert result.summary.notes == result.programs[0].summary.notes == ["put everything <here>"]
    assert load_summary(tmp_path / "run") == result.summary
    assert repr(result).endswith("\nnote: put everything <here>")
    assert "put everything &lt;here&gt;" in html(result)
    show_result(result.summary, "run")
    assert "\nnote: put everything <here>\n" in capsys.readouterr().out
    assert place([chain_graph(4, 0), chain_graph(5, 1)], cluster=gpus(), policy=talkative).summary.notes == [
        "put everything <here>"
    ]


def test_sources(problem: Problem, tmp_path: Path) -> None:
    path = save_graph(problem.graph, tmp_path / "d.graph.npz") or tmp_path / "d.graph.npz"
    entry = installed().get("importer", "file")
    importer = entry.build(entry.component.config(path=str(path)))
    sources: list[Any] = [
        problem.graph, Program(problem.graph), [problem.graph], str(path), path, importer, {"name": "file", "path": str(path)}
    ]  # fmt: skip
    for source in sources:
        [program] = load_programs(source)
        assert program.graph.fingerprint == problem.graph.fingerprint
        result = place(source, cluster=gpus(), policy="heft")
        assert result.problem.graph.fingerprint == problem.graph.fingerprint


def test_a_torch_module_is_a_source() -> None:
    torch = pytest.importorskip("torch")
    step = pytest.importorskip("placekit_torch").Step
    net, x = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)), torch.zeros(4, 8)
    forward = place(net, inputs=x, policy="heft").problem.graph
    assert set(np.unique(forward.phase)) == {0}
    training: dict[str, Any] = {
        "inputs": x,
        "targets": x,
        "loss": torch.nn.functional.mse_loss,
        "optimizer": torch.optim.SGD,
    }
    train = place(net, policy="heft", **training).problem.graph
    assert set(np.unique(train.phase)) == {0, 1, 2}
    assert load_programs(step(net, **training))[0].graph.fingerprint == train.fingerprint
    with pytest.raises(ImporterError, match="a Sequential needs inputs"):
        place(net)
    with pytest.raises(ImporterError, match="takes no 'input'"):
        place(net, input=x)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"cluster": "p100x5"}, PlacekitError, "no cluster named 'p100x5'\n  did you mean 'p100x4'"),
        ({"policy": "anealing"}, PluginError, "did you mean 'annealing'"),
        ({"policy": {"name": "annealing", "start": 3}}, ConfigError, "no option named 'policy.start'\n  did you mean"),
        ({"width": 3}, ImporterError, "Graph takes no 'width'"),
        ({"run_dir": 5}, ConfigError, "run_dir=5\n  give a folder, or None"),
        ({"run_dir": "a\0b"}, RunError, "cannot write to run directory a\0b: embedded null byte"),
        ({"policy": 3}, ConfigError, "policy: 3 is not a component"),
        ({"policy": FakeBackend()}, ConfigError, "is not a policy"),
        ({"policy": FakeLearnable()}, ConfigError, "policy 'fake_learnable' names no trainer of its own"),
        ({"resume": True}, ConfigError, "without a run_dir"),
        ({"polcy": "etf"}, ConfigError, "no argument 'polcy'\n  did you mean 'policy'"),
        ({"name": "mine"}, ConfigError, "no argument 'name'\n  only `search` takes it"),
        ({"log": ["cvs"], "run_dir": "r"}, PluginError, "no logger named 'cvs'\n  did you mean 'csv'"),
    ],
)
def test_wrong_arguments(
    problem: Problem,
    arguments: Any,
    error: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message.replace("\n", r"\n")):
        place(problem.graph, **arguments)


@pytest.mark.parametrize("source", [3, FakeBackend, object(), "no_such_importer", "missing.graph.npz", []])
def test_wrong_sources(source: Any) -> None:
    with pytest.raises(PlacekitError):
        place(source)


def test_components_as_objects_and_with_options(problem: Problem) -> None:
    entry = installed().get("policy", "random")
    policy = entry.build(entry.component.config(samples=7))
    own = place(problem.graph, cluster=problem.cluster, policy=policy, seed=2)
    named = place(problem.graph, cluster=problem.cluster, policy={"name": "random", "samples": 7}, seed=2)
    assert own.summary.evaluations == 7
    assert without_time(own.summary) == without_time(named.summary)


def test_a_function_is_a_policy(problem: Problem) -> None:
    def spread(task: Task, rng: np.random.Generator) -> Placement:
        return task.problem.placement(np.arange(task.problem.g) % task.problem.cluster.size)

    result = place(problem.graph, cluster=problem.cluster, policy=spread)
    assert result.summary.policy == "spread"
    assert result.summary.evaluations == 1
    assert result.placement is not None
    assert result.placement.device.tolist() == [0, 1, 0, 1, 0, 1]


def test_resume_from_python(placekit: Any, tmp_path: Path) -> None:
    """Interrupted at an arbitrary point and continued, the result is that of an uninterrupted run."""
    stopped: dict[str, Any] = {"budget": 4000, "cluster": gpus(4), "seed": 1}
    whole = place(chain_graph(40), **stopped)
    from placekit_core.run import api
    from placekit_core.run.pipeline import Observer

    class Stop(Observer):
        def row(self, program: str, row: Any, ledger: Any, unit: str) -> None:
            if row["evaluations"] > 1000:
                raise KeyboardInterrupt

    class Once:
        def __enter__(self) -> Observer:
            return Stop()

        def __exit__(self, *_: Any) -> None:
            return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "_observer", lambda progress: Once())
        with pytest.raises(Interrupted) as e:
            place(chain_graph(40), run_dir=tmp_path / "r", **stopped)
    assert e.value.result.summary.status == "interrupted"
    assert e.value.result.placement is not None
    assert isinstance(e.value, KeyboardInterrupt)
    outcome = placekit("run", f"resume={tmp_path / 'r'}")
    assert outcome.code == 1
    assert "was started from Python, with objects (programs)" in outcome.err
    again = place(chain_graph(40), run_dir=tmp_path / "r", resume=True, **stopped)
    assert without_time(again.summary) == without_time(whole.summary)


def test_resume_takes_the_run_that_is_there_and_no_other(problem: Problem, tmp_path: Path) -> None:
    """A finished run is never computed again or overwritten; a refused start leaves its files as they were."""
    arguments: dict[str, Any] = {"cluster": problem.cluster, "budget": 50, "run_dir": tmp_path / "r"}
    place(problem.graph, seed=1, **arguments)
    before = {p.name: p.read_bytes() for p in (tmp_path / "r").iterdir()}
    with pytest.raises(RunError, match=r"the run in .* has finished"):
        place(problem.graph, seed=1, resume=True, **arguments)
    with pytest.raises(RunError, match="another configuration: seed differ"):
        place(problem.graph, seed=2, resume=True, **arguments)
    assert {p.name: p.read_bytes() for p in (tmp_path / "r").iterdir()} == before
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "sweep.json").write_text("{}")
    with pytest.raises(RunError, match="holds a sweep"):
        place(problem.graph, cluster=problem.cluster, run_dir=tmp_path / "s", resume=True)


def test_two_runs_in_one_folder(problem: Problem, tmp_path: Path) -> None:
    def nested(task: Task, rng: np.random.Generator) -> Placement:
        with pytest.raises(RunError, match="another run is writing in"):
            place(problem.graph, cluster=problem.cluster, policy="heft", run_dir=tmp_path / "r")
        return task.problem.placement([0] * task.problem.g)

    assert place(problem.graph, cluster=problem.cluster, policy=nested, run_dir=tmp_path / "r").value_s is not None


def test_a_proxy_and_a_trainer_as_objects(problem: Problem) -> None:
    opened = []

    class Cheap(FakeBackend):
        name = "cheap"

        def open(self, problem: Problem, executable: Any = None) -> Any:
            opened.append(problem)
            return super().open(problem)

    def screening(task: Task, rng: np.random.Generator) -> Placement:
        scores = task.proxy(Placements.of(np.eye(task.problem.g, dtype=int))).value_s
        return task.problem.placement([int(scores.argmin() == i) for i in range(task.problem.g)])

    result = place(problem.graph, cluster=problem.cluster, policy=screening, proxy=Cheap())
    assert len(opened) == 1
    assert result.summary.proxy_evaluations == problem.g
    trained = place(problem.graph, cluster=problem.cluster, policy=FakeLearnable(), trainer=FakeTrainer(), budget=64)
    assert trained.summary.trainer == "fake_trainer"
    assert trained.summary.evaluations == 64


def test_a_proxy_budget_that_nobody_used_is_said(tmp_path: Path) -> None:
    budget = {"evaluations": 20, "proxy_evaluations": 5}
    result = place(chain_graph(6), cluster=gpus(), policy="random", backend=FakeBackend(), budget=budget)
    assert "budget.proxy_evaluations=5 was not used: policy 'random' used no proxy" in result.summary.notes


def test_a_file_of_a_program_that_is_missing() -> None:
    for source in ("nofile.npz", "folder/nofile", Path("nofile")):
        with pytest.raises(ImporterError, match=f"^there is no file {source}\n  files of programs end in"):
            load_programs(source)
    with pytest.raises(ImporterError, match="no importer is called 'zooo', and no file"):
        load_programs("zooo")


def test_a_name_where_a_file_is_expected_is_told_its_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    named = SimpleNamespace(shorthand=("model", "mode"))
    monkeypatch.setattr("placekit_core.run.api.known_files", lambda registry: "files end in .x")
    monkeypatch.setattr("placekit_core.run.registry.Registry.importers", lambda self: [named])
    monkeypatch.setattr("placekit_core.run.api.readers_of", lambda source, registry: [])
    with pytest.raises(ImporterError) as e:
        load_programs("hf:no/Model")
    assert e.value.hint == "files end in .x; write the name of a model as model='hf:no/Model'"
    with pytest.raises(ImporterError) as e:
        load_programs("no/Model")
    assert e.value.hint == "files end in .x"
