"""Loggers: called in order with what happened, left out when they fail, never a reason to lose a result."""

from __future__ import annotations

import pickle
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from placekit_testing.registries import use_registry

from placekit_core import Problem, Registry, Result, hookimpl, place
from placekit_core.run import assembly
from placekit_core.run.csv_log import CsvLog
from placekit_core.run.lifecycle import loggers
from placekit_core.run.pipeline import run
from placekit_core.run.registry import discover
from placekit_core.run.request import Request
from placekit_core.run.run_directory import load_summary
from tests.runs import minimal


def logger(name: str, **hooks: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    for hook, function in hooks.items():
        setattr(module, hook, hookimpl(function))
    return module


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry of its own, to which a test adds loggers."""
    found = discover()
    use_registry(monkeypatch, found)
    return found


def test_hooks_are_called_in_order(registry: Registry, tmp_path: Path) -> None:
    calls: list[tuple[Any, ...]] = []
    module = logger(
        "diary",
        placekit_run_started=lambda run_dir, config: calls.append(("started", run_dir, config["seed"])),
        placekit_evaluated=lambda directory, program, row: calls.append(
            ("row", directory, program, row["evaluations"])
        ),
        placekit_checkpoint=lambda run_dir: calls.append(("checkpoint", (run_dir / "checkpoint.npz").is_file())),
        placekit_run_finished=lambda result: calls.append(("finished", result.summary.evaluations)),
    )
    registry.add("diary", module, "placekit-diary", "1.0")
    assert loggers(registry) == sorted(["csv", "diary", *(n for n in loggers(registry) if n not in ("csv", "diary"))])
    policy = {"name": "critical_path", "samples": 50}
    request = Request.of(minimal(policy=policy, seed=5, checkpoint_s=0.0, log=["diary"]))
    run(assembly.assemble(request, registry), tmp_path / "r")
    kinds = [c[0] for c in calls]
    assert ("checkpoint", True) in calls
    assert kinds[0] == "started"
    assert kinds[-1] == "finished"
    assert calls[0][1:] == (tmp_path / "r", 5)
    assert calls[-1][1] == 50
    assert ("row", tmp_path / "r", "mlp", 50) in calls
    assert not (tmp_path / "r" / "history.csv").exists()


@pytest.mark.parametrize("hook", ["placekit_run_started", "placekit_evaluated", "placekit_run_finished"])
def test_a_logger_that_fails_is_left_out(
    registry: Registry, problem: Problem, tmp_path: Path, hook: str, recwarn: pytest.WarningsRecorder
) -> None:
    times = []

    def fail(run_dir: Path) -> None:
        times.append(1)
        raise ValueError("disk\nfull")

    registry.add("bad", logger("bad", **{hook: fail}), "placekit-bad", "1.0")
    result = place(problem.graph, cluster=problem.cluster, policy="random", run_dir=tmp_path / "r", log=["bad", "csv"])
    assert result.value_s is not None
    assert (tmp_path / "r" / "history.csv").is_file()
    assert len(times) == 1
    assert [str(w.message) for w in recwarn if "logger" in str(w.message)] == [
        "logger 'bad' failed and is left out from here on: ValueError: disk full"
    ]


def test_facts_that_fail_cost_no_result(
    registry: Registry, problem: Problem, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    given: dict[str, Any] = {
        "threads": {"threads": "four", "flags": True},
        "array": {"cores": np.arange(2)},
        "none": None,
    }
    for name, values in given.items():
        registry.add(name, logger(name, placekit_facts=lambda values=values: values), f"placekit-{name}", "1.0")
    registry.add("bad", logger("bad", placekit_facts=lambda: 1 / 0), "placekit-bad", "1.0")
    result = place(problem.graph, cluster=problem.cluster, policy="heft", run_dir=tmp_path / "r", log=["csv"])
    assert result.summary == load_summary(tmp_path / "r")
    assert result.summary.facts.items() >= {"threads": "four", "flags": True}.items()
    assert not result.summary.facts.keys() & {"cores"}
    assert [str(w.message).partition(":")[0] for w in recwarn if "fact" in str(w.message)] == [
        "plugin 'array' gives no facts",
        *(f"plugin {name!r} gives no facts" for name in ("bad", "none")),
    ]


def share(result: Result, of: float) -> float:
    assert result.value_s is not None
    return result.value_s / of


def test_plugins_add_methods_to_results(registry: Registry, problem: Problem, recwarn: pytest.WarningsRecorder) -> None:
    registry.add("adds", logger("adds", placekit_result_methods=lambda: {"share": share}), "placekit-adds", "1.0")
    again: dict[str, Any] = {"value_s": share}
    registry.add("again", logger("again", placekit_result_methods=lambda: again), "placekit-again", "1.0")
    registry.add("bad", logger("bad", placekit_result_methods=lambda: 1 / 0), "placekit-bad", "1.0")
    result = place(problem.graph, cluster=problem.cluster, policy="heft")
    assert result.share(result.value_s) == 1.0
    assert "share" in dir(result)
    with pytest.raises(AttributeError, match=r"a Result has no 'chart'; installed plugins add .*share"):
        result.chart()
    said = [str(w.message) for w in recwarn]
    assert any("plugin 'bad' adds nothing to results: ZeroDivisionError" in text for text in said)
    assert any("plugin 'again' adds nothing to results" in text and "already have value_s" in text for text in said)
    assert pickle.loads(pickle.dumps(result)).share(1.0) == result.value_s


class TestCsv:
    row = {"seconds": 0.5, "value_s": 0.1 + 0.2, "mean_s": 1 / 3, "best_s": float("nan")}  # noqa: RUF012

    def test_rows_read_back_exactly_and_are_there_before_the_end(self, tmp_path: Path) -> None:
        log = CsvLog()
        log.placekit_evaluated(tmp_path, {**self.row, "evaluations": 1})
        lines = (tmp_path / "history.csv").read_text().splitlines()
        log._open.pop(tmp_path / "history.csv")[0].close()
        assert lines[0] == "evaluations,seconds,value_s,mean_s,best_s"
        cells = lines[1].split(",")
        assert cells[:2] == ["1", "0.500000"]
        assert float(cells[2]) == 0.1 + 0.2
        assert cells[4] == ""

    def test_a_family_has_a_history_each(self, registry: Registry, tmp_path: Path) -> None:
        from placekit_testing.fakes import chain_graph, gpus

        place(
            [chain_graph(3), chain_graph(4)],
            cluster=gpus(),
            policy={"name": "random", "samples": 3},
            run_dir=tmp_path / "r",
        )
        for folder in ("000-chain3", "001-chain4"):
            lines = (tmp_path / "r" / "programs" / folder / "history.csv").read_text().splitlines()
            assert lines[1].startswith("3,")
        log = registry.manager.get_plugin("csv")
        assert log is not None
        assert log._open == {}, "every file is closed"


def test_result_json_comes_last(registry: Registry, problem: Problem, tmp_path: Path) -> None:
    """Whoever is killed while loggers write leaves a run that has not finished."""
    seen = []
    look = lambda run_dir: seen.append((run_dir / "result.json").exists())  # noqa: E731
    registry.add("late", logger("late", placekit_run_finished=look), "placekit-late", "1.0")
    place(problem.graph, cluster=problem.cluster, policy="random", run_dir=tmp_path / "r", log="late")
    assert seen == [False]
    assert (tmp_path / "r" / "result.json").exists()
