"""Sweeps: what is finished is skipped, what failed is told and loses nothing, the end is read from the files."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import placekit_core.run.pipeline
import placekit_core.run.run_directory
from placekit_core import RunError, installed
from placekit_core.cli import sweep
from placekit_core.cli.compose import compose_all, jobs
from placekit_core.cli.main import main
from placekit_core.run.config import conf_dir
from placekit_core.run.registry import discover
from placekit_core.run.run_directory import load_summary

Run = Callable[..., object]
SWEEP = ["-m", "workload=mlp", "budget.evaluations=60", "policy=etf,annealing", "seed=1,2", "run_dir=sweep", "log=csv"]
JOBS = [f"policy={p},seed={s}" for p in ("annealing", "etf") for s in (1, 2)]


def results(folder: Path) -> dict[str, bytes]:
    return {p.parent.name: p.read_bytes() for p in folder.glob("*/result.json")}


def computed(outcome) -> list[str]:
    """Folders of the jobs that said what they found."""
    return sorted(re.findall(r"^sweep/(.*?): .* evaluations? in ", outcome.out, re.M))


def skipped(outcome) -> list[str]:
    return sorted(re.findall(r"^sweep/(.*?): skipped", outcome.out, re.M))


@pytest.fixture(scope="module")
def one_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the sweep has run."""
    folder = tmp_path_factory.mktemp("one")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["placekit", "run", *SWEEP])
        assert main() == 0
    return folder


@pytest.fixture
def finished(one_sweep: Path, tmp_path: Path) -> None:
    """The sweep has run in the folder of the test."""
    shutil.copytree(one_sweep / "sweep", tmp_path / "sweep")


def test_a_sweep_ends_with_its_table(placekit: Run, tmp_path: Path) -> None:
    outcome = placekit("run", *SWEEP)
    assert (outcome.code, outcome.err) == (0, "")
    assert computed(outcome) == JOBS
    table = outcome.out[outcome.out.index("mlp, on rtx4090_3090") :]
    assert [line.split()[0] for line in table.splitlines()[3:5]] == ["annealing", "etf"]
    assert "best: annealing" in table
    assert table == placekit("compare", "sweep").out
    assert sorted(json.loads((tmp_path / "sweep" / "sweep.json").read_text())["jobs"]) == JOBS


def test_jobs_are_counted_on_a_terminal(placekit: Run, finished: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep.terminal, "is_terminal", lambda stream: stream.__class__.__name__ == "Harmless")
    monkeypatch.delenv("PLACEKIT_QUIET", raising=False)
    monkeypatch.setattr("placekit_core.run.progress._bars", lambda both: None)
    outcome = placekit("run", *SWEEP)
    counted = [line for line in outcome.err.splitlines() if line.startswith("job ")]
    assert counted[0] == "job 1 of 4: policy=etf,seed=1"
    assert [line.split(":")[0] for line in counted] == [f"job {i} of 4" for i in (1, 2, 3, 4)]


def test_jobs_in_this_process_get_the_registry_of_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    registry, got = discover(), []
    arguments = ["-m", "workload=mlp", "seed=1,2", "run_dir=sweep"]
    process = [*sys.argv], {**os.environ}

    def job(_, __, given):
        got.append(given)
        assert process == (sys.argv, os.environ)

    with pytest.raises(RunError, match="2 jobs of the sweep did not finish"):
        sweep.sweep(arguments, compose_all(arguments, registry), job, registry)
    assert got == [registry, registry] != [installed(), installed()]
    assert not list(tmp_path.rglob("failed.json"))


@pytest.mark.slow
def test_jobs_of_one_workload_share_the_program(placekit: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    importer, loaded = installed().get("importer", "mlp").load(), []
    load = importer.load
    monkeypatch.setattr(importer, "load", lambda self: loaded.append(self) or load(self))
    assert placekit("run", *SWEEP).code == 0
    assert len(loaded) == 1
    assert placekit("run", *SWEEP).code == 0
    assert len(loaded) == 2, "another sweep imports again: a file may have changed"


def test_finished_jobs_are_skipped(placekit: Run, finished: None, tmp_path: Path) -> None:
    before = results(tmp_path / "sweep")
    for file in (tmp_path / "sweep" / JOBS[2]).iterdir():  # as a killed process leaves it
        if file.name != "config.json":
            file.unlink()
    outcome = placekit("run", "resume=sweep")
    assert outcome.code == 0, outcome.err
    assert computed(outcome) == [JOBS[2]]
    assert skipped(outcome) == [JOBS[0], JOBS[1], JOBS[3]]
    after = results(tmp_path / "sweep")
    assert [name for name in JOBS if after[name] != before[name]] == [JOBS[2]], (
        "its seconds differ; the others are kept"
    )
    assert json.loads(after[JOBS[2]])["value_s"] == json.loads(before[JOBS[2]])["value_s"]


@pytest.mark.slow
def test_a_run_of_another_configuration_is_an_error_of_its_job(placekit: Run, finished: None, tmp_path: Path) -> None:
    before = results(tmp_path / "sweep")
    path = tmp_path / "sweep" / JOBS[0] / "config.json"
    path.write_text(path.read_text().replace('"evaluations": 60', '"evaluations": 61'))
    (tmp_path / "sweep" / JOBS[1] / "config.json").write_text("{")
    outcome = placekit("run", *SWEEP)
    assert outcome.code == 1
    assert f"sweep/{JOBS[0]} holds a run of another configuration: budget differ" in outcome.err
    assert f"sweep/{JOBS[1]}/config.json is damaged: " in outcome.err
    assert "placekit: 2 jobs of the sweep failed" in outcome.err
    assert skipped(outcome) == JOBS[2:]
    assert results(tmp_path / "sweep") == before


@pytest.mark.slow
def test_a_bug_in_one_job_loses_no_other(placekit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = placekit_core.run.pipeline.run

    def faulty(assembly, *args, **kwargs):
        config = assembly.config
        return 1 / 0 if config.seed == 2 and config.policy["name"] == "etf" else real(assembly, *args, **kwargs)

    monkeypatch.setattr(placekit_core.run.pipeline, "run", faulty)
    outcome = placekit("run", *SWEEP)
    assert outcome.code == 1
    assert computed(outcome) == JOBS[:3]
    assert "ZeroDivisionError: division by zero" in outcome.err
    assert "Traceback" not in outcome.err
    assert "placekit: 1 job of the sweep failed" in outcome.err
    path = tmp_path / "sweep" / JOBS[3] / "failed.json"
    reason = json.loads(path.read_text())
    assert (reason["type"], reason["message"]) == ("ZeroDivisionError", "division by zero")
    assert "in faulty" in reason["traceback"]
    assert f"failed: sweep/{JOBS[3]}: ZeroDivisionError: division by zero" in outcome.out
    assert f"failed: sweep/{JOBS[3]}: ZeroDivisionError: division by zero" in placekit("compare", "sweep").out

    monkeypatch.setattr(placekit_core.run.pipeline, "run", real)
    outcome = placekit("run", "resume=sweep")
    assert (outcome.code, computed(outcome)) == (0, [JOBS[3]])
    assert not path.exists(), "it has succeeded"


def test_missing_jobs_are_listed(placekit: Run, finished: None, tmp_path: Path) -> None:
    for name in ("result.json", "config.json"):
        (tmp_path / "sweep" / JOBS[0] / name).unlink()
    (tmp_path / "sweep" / JOBS[1] / "result.json").unlink()
    out = placekit("compare", "sweep").out
    assert f"missing: sweep/{JOBS[0]}: not started" in out
    assert f"missing: sweep/{JOBS[1]}: not finished" in out


def test_a_sweep_is_never_mixed_with_a_single_run(placekit: Run, finished: None) -> None:
    outcome = placekit("run", "workload=mlp", "run_dir=sweep")
    assert outcome.code == 1
    assert "sweep holds a sweep already\n  continue it with `placekit run resume=sweep`" in outcome.err


@pytest.mark.slow
def test_arguments_win_over_an_experiment(placekit: Run, tmp_path: Path) -> None:
    args = ["+experiment=quick", "seed=1,2", "policy=etf,critical_path", "policy.samples=3", "budget.evaluations=20"]
    outcome = placekit("run", *args, "run_dir=some")
    assert outcome.code == 0, outcome.err
    runs = [load_summary(p.parent) for p in (tmp_path / "some").glob("*/result.json")]
    found = sorted((r.policy, r.seed, r.config["policy"]["samples"], r.budget["evaluations"]) for r in runs)
    assert found == [(p, s, 3, 20) for p in ("critical_path", "etf") for s in (1, 2)]
    assert placekit("run", "+experiment=quick", "policy=heft", "seed=4", "run_dir=one").code == 0
    assert list(results(tmp_path / "one")) == ["policy=heft,experiment=quick,seed=4"]


def test_cfg_and_help_of_an_experiment(placekit: Run) -> None:
    assert "evaluations: 200" in placekit("run", "--cfg", "job", "+experiment=quick").out
    assert "samples: 3" in placekit("run", "--cfg", "job", "+experiment=quick", "policy=etf", "policy.samples=3").out
    assert "a sweep over policy: critical_path, etf, portfolio" in placekit("run", "+experiment=quick", "--help").out


def names_of(group: str) -> set[str]:
    return {choice.name for choice in installed().choices() if choice.group == group}


@pytest.mark.parametrize("path", sorted((conf_dir() / "experiment").glob("*.yaml")), ids=lambda p: p.stem)
def test_experiments_name_what_exists(path: Path) -> None:
    params = yaml.safe_load(path.read_text())["hydra"]["sweeper"]["params"]
    known = {key: names_of(key) for key in ("workload", "cluster", "policy")}
    swept = {option for job in jobs([f"{k}={v}" for k, v in params.items()], installed()) for option in job}
    for key, names in known.items():
        assert {o.partition("=")[2] for o in swept if o.startswith(f"{key}=")} <= names


def test_a_glob_of_an_experiment_finds_the_presets_of_plugins() -> None:
    params = yaml.safe_load((conf_dir() / "experiment" / "workloads.yaml").read_text())["hydra"]["sweeper"]["params"]
    found = {job[0].removeprefix("workload=") for job in jobs([f"workload={params['workload']}"], installed())}
    names = {n for n in names_of("workload") if not n.startswith("planted") and not n.endswith("_small")} - {"none"}
    assert found == names


REFUSE = {"data_parallel", "enumerative", "exact", "expert", "given", "single_cpu"}
"""Policies that place only what they are made for: towers, sharded programs, small graphs, known networks, maps, a CPU."""
RULES = {
    "accelerate_auto", "accelerate_sequential", "bandwidth_share", "chain", "exo_memory", "fastest_first", "llamacpp_layers",
    "torchtitan_weights", "vllm_even",
}  # fmt: skip
"""The rules of tools, and the best split, for networks of layers in pipelines: experiment `rules` compares them."""


def test_baselines_are_all_that_learn_nothing() -> None:
    params = yaml.safe_load((conf_dir() / "experiment" / "baselines.yaml").read_text())["hydra"]["sweeper"]["params"]
    learn = {name for name in installed().names("policy") if installed().own_trainer(name)} | {"post"}
    assert sorted(params["policy"].split(",")) == sorted(set(installed().names("policy")) - learn - REFUSE - RULES)


@pytest.mark.slow
def test_a_file_that_changed_is_not_skipped_over(placekit: Run, tmp_path: Path) -> None:
    """An edited machine, or model, would mix two of them in one table."""
    machine = yaml.safe_load((conf_dir() / "cluster" / "p100x4.yaml").read_text())
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(machine))
    command = ["-m", "workload=mlp", "policy=etf", "seed=1,2", "cluster=mine.yaml", "run_dir=sweep"]
    assert placekit("run", *command).code == 0
    assert len(skipped(placekit("run", *command))) == 2
    machine["kinds"]["p100"]["launch_overhead_s"] = 1e-3
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(machine))
    before = results(tmp_path / "sweep")
    outcome = placekit("run", *command)
    assert outcome.code == 1
    assert skipped(outcome) == []
    assert outcome.err.count("holds a run of another program, machine or costs: a file has changed since") == 2
    assert results(tmp_path / "sweep") == before


@pytest.mark.slow
def test_a_method_that_was_edited_is_not_skipped_over(placekit: Run, finished: None, tmp_path: Path) -> None:
    for name in JOBS[:2]:
        path = tmp_path / "sweep" / name / "result.json"
        data = json.loads(path.read_text())
        libraries = {"placekit-layers", "placekit-partitioning", "placekit-scheduling"}
        assert set(data["code"]) == {"placekit-grouping", "placekit-search", "placekit-sim", *libraries}
        path.write_text(json.dumps({**data, "code": {**data["code"], "placekit-search": "another"}}))
    outcome = placekit("run", *SWEEP)
    assert outcome.code == 1
    assert skipped(outcome) == JOBS[2:], "the other method's runs stand"
    assert outcome.err.count("holds a run made by other code of placekit-search\n  choose another run_dir, or") == 2


@pytest.mark.parametrize("key", ["policy", "backend@proxy"])
def test_a_sweep_over_numbers_in_place_of_names(placekit: Run, tmp_path: Path, key: str) -> None:
    outcome = placekit("run", "-m", "workload=mlp", f"{key}=1,2", "run_dir=sweep")
    said = f"placekit: {key}=1,2: {key} takes names, and 1 is a number"
    assert (outcome.code, outcome.err.splitlines()[0]) == (1, said)
    assert not (tmp_path / "sweep").exists()
