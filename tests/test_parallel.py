"""The group `parallel`: a backend that evaluates on the run's backend, in other processes."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest
from numpy.random import Generator
from placekit_testing.fakes import FakeBackend
from placekit_testing.registries import use_registry
from pydantic import Field

from placekit_core import (
    Backend,
    Component,
    ConfigError,
    Executable,
    Measurements,
    Options,
    Placement,
    Placements,
    Policy,
    Problem,
    Registry,
    Result,
    Schedule,
    Session,
    Task,
    hookimpl,
    installed,
    place,
)
from placekit_core.contracts.errors import RunError
from placekit_core.run.assembly import distributions
from placekit_core.run.config import CHANGES_NO_RESULT, NONE
from placekit_core.run.registry import discover
from placekit_core.run.run_directory import check_same, load_config


class WrapOptions(Options):
    """Options of `wrapping`."""

    inner: dict[str, Any] = Field({"name": "simulator"}, description="the backend that evaluates")
    workers: int = Field(3, ge=1, description="placements at once")


class Wrapping(Backend):
    """Another backend, `workers` placements at once; it keeps what it was built with."""

    name = "wrapping"
    options_class = WrapOptions
    built: ClassVar[list[Wrapping]] = []

    def __init__(self, options: Any = None, **values: Any) -> None:
        super().__init__(options, **values)
        given = dict(self.options.inner)
        self.wrapped: Backend = installed().build("backend", given.pop("name"), given)
        self.objective = self.wrapped.objective
        self.simulated, self.deterministic = self.wrapped.simulated, self.wrapped.deterministic
        self.sizes: list[int] = []
        self.built.append(self)

    def open(self, problem: Problem, executable: Executable | None = None) -> Session:
        return WrappedSession(self, self.wrapped.open(problem, executable))


class WrappedSession(Session):
    def __init__(self, backend: Wrapping, session: Session) -> None:
        self.backend, self.session = backend, session
        self.at_once = backend.options.workers

    def evaluate(self, placements: Placements) -> Measurements:
        self.backend.sizes.append(len(placements))
        return self.session.evaluate(placements)

    def schedule(self, placement: Placement) -> Schedule:
        return self.session.schedule(placement)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The installed plugins, with two more backends: `wrapping`, and `fake`."""
    found = discover()
    more = [
        Component("wrapping", "another backend", WrapOptions, f"{__name__}:Wrapping"),
        Component("fake", "a fake", FakeBackend.options_class, "placekit_testing.fakes:FakeBackend"),
    ]
    module = types.ModuleType("wraps")
    module.placekit_backends = hookimpl(lambda: more)  # type: ignore[attr-defined]
    module.placekit_backends.__name__ = "placekit_backends"  # type: ignore[attr-defined]
    found.add("wraps", module, "placekit-wraps", "1.0")
    assert [b.reason for b in found.broken] == []
    use_registry(monkeypatch, found)
    monkeypatch.setattr(Wrapping, "built", [])
    return found


class Batches(Policy):
    """Evaluates batches of 12 random placements until the budget ends."""

    name = "batches"

    def place(self, task: Task, rng: Generator) -> Placement:
        while task.evaluate.remaining:
            count = int(min(12, task.evaluate.remaining))
            task.evaluate(Placements.of(rng.integers(0, task.problem.cluster.size, (count, task.problem.g))))
        assert task.evaluate.best is not None
        return task.evaluate.best.placement


def placed(problem: Problem, **options: Any) -> Result:
    settings = {"policy": Batches(), "backend": "fake", "budget": 40, "seed": 1, "baselines": [], **options}
    return place(problem.graph, cluster=problem.cluster, **settings)


def test_it_evaluates_on_the_runs_backend(registry: Registry, problem: Problem, tmp_path: Path) -> None:
    backend = {"name": "fake", "failing": 0.25}
    alone = placed(problem, backend=backend, run_dir=tmp_path / "alone")
    result = placed(problem, backend=backend, parallel={"name": "wrapping", "workers": 5}, run_dir=tmp_path / "run")
    assert result.value_s == alone.value_s
    assert result.placement.same_as(alone.placement)
    [built] = Wrapping.built
    assert isinstance(built.wrapped, FakeBackend)
    assert built.wrapped.options.failing == 0.25
    assert built.options.workers == 5
    assert built.sizes[0] > 1, "even of the first call it takes several at once"
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["backend"] == {"name": "fake", "failing": 0.25, "compiled": False}
    assert config["parallel"] == {"name": "wrapping", "workers": 5}, "it has no backend of its own"
    assert load_config(tmp_path / "alone").parallel == {"name": NONE}
    assert "placekit-wraps" in distributions(load_config(tmp_path / "run"), registry), "its version is recorded"


def test_it_changes_no_result(registry: Registry, problem: Problem, tmp_path: Path) -> None:
    """So a run may be resumed with or without it."""
    assert "parallel" in CHANGES_NO_RESULT
    placed(problem, run_dir=tmp_path / "run")
    config = load_config(tmp_path / "run")
    check_same(tmp_path / "run", config.model_copy(update={"parallel": {"name": "wrapping", "workers": 9}}))
    with pytest.raises(RunError, match="seed differ"):
        check_same(tmp_path / "run", config.model_copy(update={"seed": 2}))


def test_a_backend_that_evaluates_on_no_other_one_is_refused(registry: Registry, problem: Problem) -> None:
    with pytest.raises(ConfigError, match="parallel=simulator: this backend cannot evaluate on another one"):
        placed(problem, parallel="simulator")


class Own(FakeBackend):
    """Installed nowhere."""

    name = "own"


def test_a_backend_object_is_refused(registry: Registry, problem: Problem) -> None:
    with pytest.raises(ConfigError, match="parallel=wrapping: another process cannot build the backend") as caught:
        placed(problem, backend=Own(), parallel="wrapping")
    assert "give the name of an installed backend" in caught.value.hint
    assert Wrapping.built == []
