"""Baselines beside the result of a run: what is compared, what it leaves unchanged, and what goes wrong without harm."""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from placekit_testing.fakes import FakeBackend, FakeSession, chain_graph, gpus
from placekit_testing.registries import use_registry

from placekit_core import (
    Cluster,
    ConfigError,
    Interrupted,
    Launching,
    Measurements,
    NothingFits,
    Options,
    Placement,
    Placements,
    PluginError,
    Policy,
    PolicyComponent,
    Problem,
    Registry,
    Task,
    hookimpl,
    place,
    search,
)
from placekit_core.contracts.result import Baseline, Result, compared
from placekit_core.contracts.units import seconds
from placekit_core.run.registry import discover
from placekit_core.run.run_directory import load_summary


class Refusing(Policy):
    """As said by the class attribute `error`."""

    error: BaseException | None = None

    def place(self, task: Task, rng: Generator) -> Placement:
        if self.error is not None:
            raise self.error
        return task.problem.placement(np.zeros(task.problem.g, int))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry of its own, with one more baseline: `own`."""
    found = discover()
    own = PolicyComponent("own", "everything on the first device", Options, f"{__name__}:Refusing", baseline=True)
    module = types.ModuleType("more")
    module.placekit_policies = hookimpl(lambda: [own])  # type: ignore[attr-defined]
    module.placekit_policies.__name__ = "placekit_policies"  # type: ignore[attr-defined]
    found.add("more", module, "placekit-more", "1.0")
    assert [b.reason for b in found.broken] == []
    use_registry(monkeypatch, found)
    return found


def found(result: Result) -> dict[str, Baseline]:
    return {b.policy: b for b in result.summary.programs[0].baselines}


def test_the_standard_ones_are_beside_the_result(problem: Problem, tmp_path: Path) -> None:
    result = place(problem.graph, cluster=problem.cluster, policy="annealing", budget=50, run_dir=tmp_path / "run")
    single = place(problem.graph, cluster=problem.cluster, policy="single_device")
    assert found(result).keys() >= {"single_device"}
    one = found(result)["single_device"]
    assert (one.value_s, one.fits, one.device) == (single.value_s, True, "gpu:0")
    assert one.peak_bytes == single.summary.peak_bytes
    assert "data_parallel" not in found(result), "it refuses graphs without towers"
    assert load_summary(tmp_path / "run").programs[0].baselines == result.summary.programs[0].baselines
    assert "baselines: " in repr(result)
    assert "single_device on gpu:0 (20 ms)" in repr(result)


def test_they_change_nothing_else(problem: Problem) -> None:
    def outcome(**more: Any) -> tuple[Any, ...]:
        r = place(problem.graph, cluster=problem.cluster, policy="annealing", budget=30, seed=3, **more)
        [p] = r.programs
        assert p.placement is not None
        history = [(row[0], *row[2:]) for row in p.history]
        return p.placement.device.tolist(), r.value_s, r.summary.evaluations, history, r.summary.gap

    assert outcome() == outcome(baselines=[]) == outcome(baselines=["random", "heft", "annealing"])


def test_those_asked_for_in_their_order(problem: Problem) -> None:
    result = place(problem.graph, cluster=problem.cluster, policy="random", baselines=["heft", "etf", "heft"])
    assert [b.policy for b in result.summary.programs[0].baselines] == ["heft", "etf"]
    assert found(place(problem.graph, cluster=problem.cluster, policy="random", baselines=[])) == {}
    refused = place(problem.graph, cluster=problem.cluster, policy="random", baselines=["data_parallel"])
    assert found(refused) == {}
    assert [n for n in refused.summary.notes if n.startswith("baseline 'data_parallel' does not apply: ")]


def test_a_search_that_is_cut_short_says_so(problem: Problem) -> None:
    result = place(problem.graph, cluster=problem.cluster, policy="random", baselines=["annealing", "heft"])
    assert {name: b.stopped_after for name, b in found(result).items()} == {"annealing": 16, "heft": None}
    assert " annealing after 16 evaluations (" in result.summary.against_baselines


class Unsteady(FakeBackend):
    """A backend that measures on a machine that is slower from one measurement to the next, by `drift`."""

    deterministic, drift = False, 1.0

    def open(self, problem: Problem, executable: Any = None) -> FakeSession:
        class Slowing(FakeSession):
            factor = 1.0

            def evaluate(self, placements: Placements) -> Measurements:
                m = super().evaluate(placements)
                self.factor *= Unsteady.drift
                return Measurements(m.value_s * self.factor, m.peak_bytes, m.fits, m.error)

        return Slowing(problem)


def test_measured_baselines_are_compared_with_what_is_measured_beside_them(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Unsteady, "drift", 1.5)
    first = lambda task, rng: task.problem.placement([0] * task.problem.g)  # noqa: E731
    result = place(
        problem.graph,
        cluster=problem.cluster,
        policy=first,
        backend=Unsteady(),
        budget=1,
        baselines=["heft", "single_device"],
    )
    heft, single = (found(result)[name] for name in ("heft", "single_device"))
    assert (single.value_s, single.own_remeasured_s) == (result.value_s, None), "the same placement is measured once"
    assert heft.value_s is not None
    assert heft.own_remeasured_s is not None
    assert heft.own_remeasured_s == pytest.approx(result.value_s * 1.5**2)
    assert "as fast as single_device on gpu:0" in result.summary.against_baselines
    both = f"({seconds(heft.value_s)}; this placement beside it {seconds(heft.own_remeasured_s)})"
    assert f"{compared(heft.own_remeasured_s, heft.value_s)} heft {both}" in result.summary.against_baselines


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("heftt", PluginError, "no policy named 'heftt'\n  did you mean 'heft'"),
        ("doppler", ConfigError, "needs training"),
    ],
)
def test_a_wrong_name_fails_before_anything_runs(
    problem: Problem, tmp_path: Path, name: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        place(problem.graph, cluster=problem.cluster, policy="heft", baselines=[name], run_dir=tmp_path / "run")
    assert not (tmp_path / "run" / "history.csv").exists()
    with pytest.raises(error, match=message), search(problem.graph, cluster=problem.cluster, baselines=[name]):
        pytest.fail("the block runs")


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("error", "notes"),
    [
        (None, []),
        (ZeroDivisionError("by\nzero"), ["baseline 'own' failed: ZeroDivisionError: by zero"]),
        (SystemExit(3), ["baseline 'own' failed: SystemExit: 3"]),
        (BaseException("ends"), ["baseline 'own' failed: BaseException: ends"]),
    ],
)
def test_a_plugin_declares_a_baseline_and_its_failure_costs_nothing(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, error: BaseException | None, notes: list[str]
) -> None:
    monkeypatch.setattr(Refusing, "error", error)
    result = place(problem.graph, cluster=problem.cluster, policy="heft")
    assert result.summary.status == "finished"
    assert result.value_s is not None
    assert ("own" in found(result)) == (error is None)
    assert [n for n in result.summary.notes if "own" in n] == notes


@pytest.mark.usefixtures("registry")
def test_ctrl_c_in_a_baseline_ends_the_run_with_its_result(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Refusing, "error", KeyboardInterrupt())
    with pytest.raises(Interrupted) as caught:
        place(problem.graph, cluster=problem.cluster, policy="heft")
    assert caught.value.result.summary.status == "finished"


def test_what_cannot_be_measured_is_not_said_to_be_too_large(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = FakeSession.evaluate

    def without_driver(session: FakeSession, placements: Placements) -> Measurements:
        m, one = evaluate(session, placements), (placements.device == placements.device[:, :1]).all(axis=1)
        error = tuple("no driver" if x else None for x in one)
        return Measurements(np.where(one, np.nan, m.value_s), m.peak_bytes, m.fits & ~one, error)

    monkeypatch.setattr(FakeSession, "evaluate", without_driver)
    result = place(problem.graph, cluster=problem.cluster, policy="round_robin", backend=FakeBackend())
    assert "single_device" not in found(result)
    assert "baseline 'single_device' has no value: no driver" in result.summary.notes
    assert "single_device does not fit" not in repr(result)


def test_nothing_fits_but_a_baseline_does() -> None:
    [(name, kind)] = gpus(1).model_dump(mode="json")["kinds"].items()
    tiny = {**kind, "memory_bytes": 1}
    cluster = Cluster.parse({
        "name": "lopsided",
        "kinds": {name: kind, "tiny": tiny},
        "devices": [{"kind": name}, {"kind": "tiny"}],
        "links": [{"mesh": "*", "bytes_per_s": 1e9}],
    })  # fmt: skip
    with pytest.raises(NothingFits) as failed:
        place(
            chain_graph(6),
            cluster=cluster,
            policy=lambda task, rng: task.problem.placement([1] * task.problem.g),
            budget=1,
        )
    assert failed.value.hint.startswith("policy=single_device finds one: ")
    assert "; the closest needs 2.9 KiB more on a device" in failed.value.message
    [program] = failed.value.result.summary.programs
    assert program.value_s is None
    assert {b.policy: b.fits for b in program.baselines}["single_device"]


def test_a_search_of_ones_own_has_them_too(problem: Problem) -> None:
    with search(problem.graph, cluster=problem.cluster, budget=5) as s:
        s.evaluate(np.zeros((5, problem.g), int))
    assert s.result is not None
    assert s.result.summary.evaluations == 5
    assert "as fast as single_device on gpu:0" in s.result.summary.against_baselines


@pytest.mark.parametrize(
    ("value_s", "base_s", "said"),
    [
        (1.0, 1.016, "1.6% faster than"),
        (1.0, 2.5, "2.5x as fast as"),
        (1.0, 1.0004, "as fast as"),
        (1.041, 1.0, "4.1% slower than"),
        (3.0, 1.0, "3.0x as slow as"),
        (0.0, 0.0, "as fast as"),
        (0.0, 1.0, "faster than"),
        (1.0, 0.0, "slower than"),
    ],
)
def test_words(value_s: float, base_s: float, said: str) -> None:
    assert compared(value_s, base_s) == said


@pytest.mark.parametrize(("launching", "noted"), [("eager", True), ("graph", False)])
def test_a_step_that_is_bound_by_launches_says_so(launching: Launching, noted: bool) -> None:
    pytest.importorskip("placekit_sim")
    machine = Cluster.parse({**gpus(2).model_dump(), "hosts": [{"launch_s": 1.0}]})
    result = place(chain_graph(4), cluster=machine, policy="single_device", launching=launching)
    assert any(note.startswith("bound by launches: the host takes ") for note in result.summary.notes) == noted
    assert result.problem.cluster.launching == launching


def test_the_note_on_launches_with_several_hosts() -> None:
    pytest.importorskip("placekit_sim")
    hosts = [{"devices": f"gpu:{i}", "launch_s": 1.0} for i in range(2)]
    machine = Cluster.parse({**gpus(2).model_dump(), "hosts": hosts})
    [note] = place(chain_graph(4), cluster=machine, policy="single_device").summary.notes[:1]
    assert re.match("bound by launches: a host takes .* to launch the operations of its devices; ", note)
