"""The pipeline beyond one program and one method: families, training, proxies, and resuming all of them exactly."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from numpy.random import Generator
from placekit_testing.fakes import FakeLearnable, FakeTrainer, chain_graph, gpus
from placekit_testing.registries import use_registry
from placekit_testing.speed import mostly_slow

from placekit_core import (
    ConfigError,
    Importer,
    Interrupted,
    Ledger,
    Placement,
    Policy,
    Program,
    RunError,
    RunFailed,
    Summary,
    Task,
)
from placekit_core.run import registry
from placekit_core.run.config import RunConfig
from placekit_core.run.pipeline import Observer
from tests.runs import minimal, run, validate

SOURCE = """
from placekit_core import Component, ImporterComponent, PolicyComponent, hookimpl
from placekit_core import LearnableOptions, Options
from placekit_testing.fakes import FakeTrainerOptions

@hookimpl
def placekit_importers():
    return [ImporterComponent(name="family", summary="three chains", config=Options, target="tests.test_pipeline:Family")]

@hookimpl
def placekit_policies():
    return [
        PolicyComponent(name="softmax", summary="learns", config=LearnableOptions, target="placekit_testing.fakes:FakeLearnable",
                  trainer="fake_trainer"),
        PolicyComponent(name="orphan", summary="names no trainer", config=LearnableOptions,
                  target="placekit_testing.fakes:FakeLearnable"),
        PolicyComponent(name="screening", summary="asks the proxy", config=Options, target="tests.test_pipeline:Screening"),
        PolicyComponent(name="nothing", summary="evaluates nothing", config=Options, target="tests.test_pipeline:Nothing"),
    ]

@hookimpl
def placekit_trainers():
    return [Component(name="fake_trainer", summary="trains", config=FakeTrainerOptions,
                      target="placekit_testing.fakes:FakeTrainer")]
"""


class Family(Importer):
    """Three chains of equal length, the last one for testing, with a machine of their own."""

    name = "family"

    def load(self) -> list[Program]:
        splits = ("train", "train", "test")
        return [Program(chain_graph(6, seed=i), cluster=gpus(3), split=s) for i, s in enumerate(splits)]  # type: ignore[arg-type]


class Screening(Policy):
    """Evaluates ten placements on the proxy, and none on the run's backend."""

    name = "screening"

    def place(self, task: Task, rng: Generator) -> Placement:
        assert task.proxy is not task.evaluate
        device = rng.integers(0, task.problem.cluster.size, (10, task.problem.g))
        from placekit_core import Placements

        task.proxy(Placements.of(device))
        return task.problem.placement([0] * task.problem.g)


class Nothing(Policy):
    """Returns a placement without evaluating any."""

    name = "nothing"

    def place(self, task: Task, rng: Generator) -> Placement:
        return task.problem.placement([1] * task.problem.g)


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry of this process with one more plugin."""
    name = f"pipeline_plugin_{abs(hash(tmp_path.name))}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = registry.discover()
    found.add("several_programs", importlib.import_module(name), "placekit-several-programs", "0.0.0")
    assert [b.reason for b in found.broken] == []
    use_registry(monkeypatch, found)


def configure(policy: str, checkpoint: str | None = None, **changes: Any) -> RunConfig:
    chosen = {"name": policy} if checkpoint is None else {"name": policy, "checkpoint": checkpoint}
    values = {"importer": {"name": "family"}, "policy": chosen, "checkpoint_s": 0.0, "log": ["csv"], **changes}
    return validate(minimal(**values))


def without_time(result: Summary, run_dir: Path) -> dict[str, Any]:
    data = json.loads((run_dir / "result.json").read_text())
    for part in (data, *data["programs"]):
        part.pop("seconds")
    for program in data["programs"]:
        folder = run_dir / program["directory"]
        rows = [line.split(",") for line in (folder / "history.csv").read_text().splitlines()]
        program["history"] = [[*r[:1], *r[2:]] for r in rows]
        program["placement"] = json.loads((folder / "placement.json").read_text())
    assert result.model_dump(mode="json")["programs"][0]["program"] == data["programs"][0]["program"]
    return data


class Crash(Exception):
    """A component fails in the middle of a run."""


class CrashAfter(Observer):
    """Raises once this many rows have been recorded."""

    def __init__(self, rows: int) -> None:
        self.left = rows

    def row(self, program: str, row: Mapping[str, float], ledger: Ledger, unit: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash


@pytest.mark.parametrize("policy", mostly_slow(["annealing", "softmax"], ["annealing"]))
def test_family_resumed_after_crashes_equals_uninterrupted(tmp_path: Path, policy: str) -> None:
    changes = {"backend": {"name": "bulk_synchronous"}, "budget": {"evaluations": 300}}
    whole = run(configure(policy, **changes), tmp_path / "whole").summary
    expected = without_time(whole, tmp_path / "whole")
    crashes, rows = 0, 1
    while True:
        try:
            result = run(
                configure(policy, **changes), tmp_path / "cut", resume=crashes > 0, observer=CrashAfter(rows)
            ).summary
            break
        except RunFailed as e:
            cause, crashes = e.__cause__, crashes + 1
            rows += 1 if policy != "softmax" else 200
        assert isinstance(cause, Crash)
        assert crashes < 50
    assert crashes > 0
    assert without_time(result, tmp_path / "cut") == expected


def test_a_family_has_files_per_program_and_means(tmp_path: Path) -> None:
    result = run(configure("critical_path", log=None), tmp_path / "run").summary
    assert [p.split for p in result.programs] == ["train", "train", "test"]
    assert len({p.directory for p in result.programs}) == 3
    values = [p.value_s for p in result.programs]
    assert result.value_s == pytest.approx(sum(v or 0 for v in values) / 3)
    assert result.evaluations == sum(p.evaluations for p in result.programs) == 150
    assert result.gap == pytest.approx(sum(p.gap or 0 for p in result.programs) / 3)
    assert result.spread_s is None
    for p in result.programs:
        files = {f.name for f in (tmp_path / "run" / p.directory).iterdir()}
        assert files == {"placement.json", "history.csv", "schedule.trace.json"}
        assert p.gap == pytest.approx(0, abs=1e-6), "a chain is best on one device"
    assert (tmp_path / "run" / "report.html").is_file()
    assert result.cluster == "fake3+0", "cluster: default takes the program's own"


def test_training_shares_one_budget_and_tests_zero_shot(tmp_path: Path) -> None:
    result = run(configure("softmax", budget={"evaluations": 400}), tmp_path / "run").summary
    train, test = result.programs[:2], result.programs[2]
    assert sum(p.evaluations for p in train) == 400
    assert train[0].seconds == train[1].seconds
    assert result.seconds == pytest.approx(train[0].seconds + test.seconds), "a shared budget counts once"
    assert test.evaluations == 1, "the test program is placed once by the trained policy"
    assert result.trainer == FakeTrainer.name


def test_what_was_found_on_the_proxy_is_measured_in_the_end(tmp_path: Path) -> None:
    result = run(configure("screening", backend={"name": "bulk_synchronous"}), tmp_path / "run").summary
    for p in result.programs:
        assert p.proxy_evaluations == 10
        assert p.evaluations == 2, "the returned placement, and the proxy's best"


def test_a_grouper_that_is_not_used_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Nothing, "level", "operation")
    assert run(configure("nothing"), tmp_path / "none").summary.notes == []
    result = run(configure("nothing", grouper={"name": "chains"}), tmp_path / "chains").summary
    assert result.notes == ["grouper 'chains' is not used: the policy groups the operations by itself"]


def test_policy_without_a_trainer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="policy 'orphan' names no trainer of its own\n  choose one: trainer=NAME"):
        run(configure("orphan"), tmp_path / "run")


def test_checkpoints_are_written_when_due_and_not_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    monkeypatch.setattr("placekit_core.run.current_run.save_checkpoint", lambda folder, state: written.append(state))
    run(configure("annealing", importer={"name": "mlp"}, checkpoint_s=1000.0), tmp_path / "rare")
    assert written == []
    run(configure("annealing", importer={"name": "mlp"}, checkpoint_s=0.0), tmp_path / "often")
    assert len(written) >= 3


def test_every_session_is_closed_also_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from placekit_sim.simulator import SimulatorSession

    opened, closed = [], []
    init, close = SimulatorSession.__init__, SimulatorSession.close
    monkeypatch.setattr(SimulatorSession, "__init__", lambda self, *a: (opened.append(self), init(self, *a))[1])
    monkeypatch.setattr(SimulatorSession, "close", lambda self: (closed.append(self), close(self))[1])
    run(configure("screening", backend={"name": "bulk_synchronous"}), tmp_path / "run")
    assert len(opened) == 6, "a backend and a proxy for each of three programs"
    assert set(map(id, closed)) == set(map(id, opened))
    with pytest.raises(RunFailed, match="Crash"):
        run(configure("critical_path"), tmp_path / "crashed", observer=CrashAfter(1))
    assert set(map(id, closed)) == set(map(id, opened))


def test_a_measuring_backend_has_seconds_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from placekit_sim.simulator import Simulator

    monkeypatch.setattr(Simulator, "simulated", False)
    result = run(configure("nothing"), tmp_path / "run").summary
    assert result.budget == {"evaluations": None, "seconds": 600.0, "proxy_evaluations": None}
    assert result.simulated is False


def test_the_failing_signal_can_be_set(tmp_path: Path) -> None:
    seen: list[float] = []

    class Look(Observer):
        def row(self, program: str, row: Mapping[str, float], ledger: Ledger, unit: str) -> None:
            seen.append(row["mean_s"])

    tiny = {**gpus(3, memory_bytes=2500).model_dump(mode="json"), "name": "tiny"}
    with pytest.raises(RunError, match="that fits"):
        run(configure("nothing", cluster=tiny, failing_signal_s=77.0), tmp_path / "run", observer=Look())
    assert 77.0 in seen


def test_a_failed_search_keeps_what_it_had_found(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="Crash") as failed:
        run(configure("critical_path"), tmp_path / "run", observer=CrashAfter(2))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result == failed.value.result.summary.model_dump(mode="json")
    assert result["status"] == "failed"
    assert result["programs"][0]["fits"] is True


def test_the_clock_stops_when_the_search_ends_early(tmp_path: Path) -> None:
    ledgers: list[Ledger] = []

    class Stop(Observer):
        def row(self, program: str, row: Mapping[str, float], ledger: Ledger, unit: str) -> None:
            ledgers.append(ledger)
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as e:
        run(configure("critical_path"), tmp_path / "run", observer=Stop())
    assert ledgers[0].seconds == ledgers[0].seconds == e.value.result.summary.programs[0].seconds


@pytest.mark.parametrize("crashes", [False, True])
def test_parameters_that_cannot_be_written_cost_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crashes: bool
) -> None:
    def state_dict(self: FakeLearnable) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(FakeLearnable, "state_dict", state_dict)
    config = configure("softmax", budget={"evaluations": 400}, checkpoint_s=None)
    if crashes:
        with pytest.raises(RunFailed, match="Crash"):
            run(config, tmp_path / "run", observer=CrashAfter(3))
    else:
        run(config, tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["fits"]) == ("failed" if crashes else "finished", not crashes)
    kept = "the trained policy is not written: RuntimeError: the device is gone"
    failed = "the run failed: Crash, while trainer 'fake_trainer' worked"
    assert result["notes"] == ([kept, failed] if crashes else [kept])


def test_a_trained_policy_is_kept_and_placed_without_training(tmp_path: Path) -> None:
    run(configure("softmax", budget={"evaluations": 400}), tmp_path / "run")
    about = json.loads((tmp_path / "run" / "policy.json").read_text())
    assert (about["policy"], about["trainer"]["name"], about["evaluations"]) == ("fake_learnable", "fake_trainer", 400)
    assert len(about["programs"]) == 2, "not the test program"
    loaded: dict[str, Any] = {"policy": "softmax", "checkpoint": str(tmp_path / "run")}
    config = configure(trainer={"name": "none"}, **loaded)
    result = run(config, tmp_path / "again").summary
    assert [p.evaluations for p in result.programs] == [1, 1, 1]
    assert result.trainer is None
    assert not (tmp_path / "again" / "policy.json").exists(), "nothing was learned"


@pytest.mark.slow
def test_training_goes_on_from_a_trained_policy(tmp_path: Path) -> None:
    first = run(configure("softmax", budget={"evaluations": 3000}), tmp_path / "run").summary
    loaded: dict[str, Any] = {"policy": "softmax", "checkpoint": str(tmp_path / "run" / "policy.safetensors")}
    again = run(configure(**loaded, budget={"evaluations": 16}), tmp_path / "more").summary
    untrained = run(configure("softmax", budget={"evaluations": 16}), tmp_path / "new").summary
    assert again.programs[0].value_s == pytest.approx(first.programs[0].value_s)
    assert again.value_s is not None
    assert untrained.value_s is not None
    assert again.value_s < untrained.value_s


def test_an_untrained_policy_places_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trainer=none, but policy 'fake_learnable' is not trained"):
        run(configure("softmax", trainer={"name": "none"}), tmp_path / "run")
