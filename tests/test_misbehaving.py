"""Plugins that misbehave: one message names them, and nothing that was found is lost."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from placekit_sim.simulator import SimulatorSession
from placekit_testing.fakes import chain_graph, gpus
from placekit_testing.registries import use_registry
from placekit_testing.speed import mostly_slow

from placekit_core import Registry, place
from placekit_core.run.registry import discover
from placekit_core.run.run_directory import load_summary

Run = Callable[..., Any]
PLUGIN = """
import asyncio, os, sys
import numpy as np
from pydantic import Field
from placekit_core import Component, Grouper, Grouping, Importer, ImporterComponent, Options, Placements, Policy, PolicyComponent
from placekit_core import hookimpl
from placekit_sim.simulator import Simulator

class Does(Options):
    does: str = Field(default_factory=lambda: os.environ.get("ODD", "nothing"))
    first: bool = False

def act(does, task):
    problem, zeros = task.problem, np.zeros(task.problem.g, np.int16)
    good = problem.placement(zeros)
    if does == "evaluates too many groups": task.evaluate(Placements.of(np.zeros((2, problem.g + 1), np.int16)))
    if does == "names a device out of range": return problem.placement(zeros + 99)
    if does == "returns nothing": return None
    if does == "changes costs": problem.op_s[:] = 0
    if does == "calls sys.exit": sys.exit(3)
    if does == "is cancelled": raise asyncio.CancelledError
    if does == "closes": raise GeneratorExit
    if does == "prints": print("hello from the plugin")
    return good

class Odd(Policy):
    name, options_class = "odd", Does

    def place(self, task, rng):
        if self.options.first:
            task.evaluate(task.problem.placement([0] * task.problem.g).batch())
        return act(self.options.does, task)

class OddGrouper(Grouper):
    name, options_class = "odd", Does

    def group(self, graph, rng):
        does = self.options.does
        if does == "returns a list": return [0] * graph.n
        if does == "is too short": return Grouping.of(np.zeros(graph.n - 1, np.int32))
        if does == "calls sys.exit": sys.exit(3)
        return Grouping.of(np.arange(graph.n, dtype=np.int32))

class OddImporter(Importer):
    name, options_class = "odd", Does

    def load(self):
        does = self.options.does
        if does == "calls sys.exit": sys.exit(3)
        return []

class OddBackend(Simulator):
    name, options_class = "odd", Does

    def open(self, problem, executable=None):
        from placekit_sim import SimulatorOptions
        does, session = self.options.does, Simulator().open(problem)
        evaluate = session.evaluate

        def odd(placements):
            m = evaluate(placements)
            if does == "measures too few": return m.rows(slice(0, len(m) - 1))
            if does == "returns nothing": return None
            if does == "calls sys.exit": sys.exit(3)
            return m

        session.evaluate = odd
        return session

@hookimpl
def placekit_policies():
    return [PolicyComponent("odd", "Misbehaves", Does, __name__ + ":Odd")]

@hookimpl
def placekit_groupers():
    return [Component("odd", "Misbehaves", Does, __name__ + ":OddGrouper")]

@hookimpl
def placekit_importers():
    return [ImporterComponent("odd", "Misbehaves", Does, __name__ + ":OddImporter")]

@hookimpl
def placekit_backends():
    return [Component("odd", "Misbehaves", Does, __name__ + ":OddBackend")]
"""
FAST = ["workload=chainmm_small", "budget.evaluations=20", "log=[]", "run_dir=out"]


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Registry, Path]]:
    """What is installed and a plugin whose components do what their option `does` says; and the folder of that."""
    site = tmp_path_factory.mktemp("site")
    (site / "placekit_odd.py").write_text(PLUGIN)
    found = discover()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        found.add("odd", importlib.import_module("placekit_odd"), "placekit-odd", "1.0")
        assert found.broken == []
        yield found, site


@pytest.fixture
def odd(plugin: tuple[Registry, Path], monkeypatch: pytest.MonkeyPatch, placekit: Run) -> Run:
    """Runs with this plugin."""
    monkeypatch.setenv("PLACEKIT_QUIET", "1")
    use_registry(monkeypatch, plugin[0])
    return lambda *options: placekit("run", *FAST, *options)


POLICIES = {
    "evaluates too many groups": "policy 'odd': a placement of 'chainmm' has 112 groups, not 113",
    "names a device out of range": "policy 'odd': group 'A[i0,j0]' is on device 99",
    "returns nothing": "policy 'odd' returned NoneType, not a Placement",
    "changes costs": "ValueError: assignment destination is read-only, while policy 'odd' worked",
    "calls sys.exit": "SystemExit: 3, while policy 'odd' worked",
    "is cancelled": "CancelledError, while policy 'odd' worked",
    "closes": "GeneratorExit, while policy 'odd' worked",
}
OFTEN = ["evaluates too many groups", "calls sys.exit", "is cancelled"]


@pytest.mark.parametrize("does", mostly_slow(POLICIES, OFTEN, [does for does in POLICIES if does not in OFTEN]))
def test_a_policy_that_fails_is_named_and_the_best_so_far_is_kept(odd: Run, tmp_path: Path, does: str) -> None:
    outcome = odd("policy=odd", f"policy.does={does}", "policy.first=true")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(f"placekit: {POLICIES[does]}")
    assert outcome.err.endswith("is in out; continue with `placekit run resume=out`\n")
    found = load_summary(tmp_path / "out")
    assert (found.status, found.fits) == ("failed", True)
    assert any(note.startswith("the run failed: ") for note in found.programs[0].notes)
    assert (tmp_path / "out" / "placement.json").exists()


OTHERS = {
    ("policy", "calls sys.exit"): "policy 'odd' raised SystemExit: 3",
    ("grouper", "is too short"): "the grouping has 111 operations, 'chainmm' has 112",
    ("importer", "calls sys.exit"): "importer 'odd' raised SystemExit: 3",
    ("backend", "measures too few"): "backend 'odd' returned 0 measurements for 1 placements",
}


@pytest.mark.parametrize(("kind", "does"), OTHERS)
def test_others_that_fail_are_named(odd: Run, kind: str, does: str) -> None:
    workload = ["workload=none"] if kind == "importer" else []
    policy = [] if kind == "policy" else ["policy=random_search"]
    outcome = odd(*workload, f"{kind}=odd", f"{kind}.does={does}", *policy)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(f"placekit: {OTHERS[kind, does]}")


def test_what_a_policy_prints_is_not_on_stdout(odd: Run) -> None:
    outcome = odd("policy=odd", "policy.does=prints")
    assert outcome.code == 0
    assert "hello" not in outcome.out
    assert outcome.err == "hello from the plugin\n"


def test_a_schedule_that_leaves_python_costs_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatorSession, "schedule", lambda *_: sys.exit(3))
    result = place(chain_graph(8), cluster=gpus(2), policy="etf", budget=5)
    assert any("there is no schedule of" in note for note in result.summary.notes)
