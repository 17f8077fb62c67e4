"""Plugins that misbehave: one message names them, and nothing that was found is lost."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from placekit_sim.simulator import SimulatorSession
from placekit_testing.registries import use_registry
from placekit_testing.small import chain, machine

from placekit_core import PluginError, Registry, place
from placekit_core.run import contained, evaluator
from placekit_core.run.registry import discover
from placekit_core.run.run_directory import load_summary

Run = Callable[..., Any]
PLUGIN = """
import os, sys, threading, time
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
    if does == "gives NaN priorities": return problem.placement(zeros, zeros * np.nan)
    if does == "names a device out of range": return problem.placement(zeros + 99)
    if does == "names a negative device": return problem.placement(zeros - 1)
    if does == "returns a list": return zeros.tolist()
    if does == "returns nothing": return None
    if does == "changes costs": problem.op_s[:] = 0
    if does == "changes the graph": problem.graph.flops[:] = 0
    if does == "changes the machine": problem.cluster.memory_bytes[:] = 0
    if does == "changes routes": problem.cluster.routes.latency_s[:] = 0
    if does == "changes the grouping": problem.grouping.group_of[:] = 0
    if does == "calls sys.exit": sys.exit(3)
    if does == "calls os._exit": os._exit(7)
    if does == "leaves a message": sys.exit("the model cannot be built")
    if does == "recurses": act(does, task)
    if does == "has no memory": raise MemoryError
    if does == "prints": print("hello from the plugin")
    if does == "loops":
        while True: pass
    if does == "sleeps": time.sleep(1000)
    if does == "evaluates for ever":
        while True:
            try: task.evaluate(good.batch())
            except Exception: pass
    if does == "leaves a thread": threading.Thread(target=time.sleep, args=(1000,), name="left behind").start()
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
        if does == "skips a number": return Grouping(np.where(np.arange(graph.n) % 2, 2, 0).astype(np.int32))
        if does == "calls sys.exit": sys.exit(3)
        return Grouping.of(np.arange(graph.n, dtype=np.int32))

class OddImporter(Importer):
    name, options_class = "odd", Does

    def load(self):
        does = self.options.does
        if does == "returns nothing": return None
        if does == "returns numbers": return [1, 2]
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
            if does == "measures NaN": return type(m)(m.value_s * np.nan, m.peak_bytes, m.fits, m.error)
            if does == "measures negative seconds": return type(m)(-m.value_s, m.peak_bytes, m.fits, m.error)
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
    "gives NaN priorities": "policy 'odd': a priority is not a number",
    "names a device out of range": "policy 'odd': group 'A[i0,j0]' is on device 99",
    "names a negative device": "policy 'odd': group 'A[i0,j0]' is on device -1",
    "returns a list": "policy 'odd' returned list, not a Placement",
    "returns nothing": "policy 'odd' returned NoneType, not a Placement",
    "changes costs": "ValueError: assignment destination is read-only",
    "changes the graph": "ValueError: assignment destination is read-only",
    "changes the machine": "ValueError: assignment destination is read-only",
    "changes routes": "ValueError: assignment destination is read-only",
    "changes the grouping": "ValueError: assignment destination is read-only",
    "calls sys.exit": "a plugin or the program ended Python with exit code 3 while policy 'odd' worked",
    "calls os._exit": "a plugin or the program ended Python with exit code 7 while policy 'odd' worked",
    "leaves a message": "a plugin or the program ended Python: the model cannot be built while policy 'odd' worked",
    "recurses": "RecursionError: maximum recursion depth exceeded",
    "has no memory": "MemoryError, while policy 'odd' worked",
}


@pytest.mark.parametrize(
    ("does", "first"), [*((does, True) for does in POLICIES), ("returns a list", False), ("calls os._exit", False)]
)
def test_a_policy_that_fails_is_named_and_loses_nothing(
    odd: Run, plugin: tuple[Registry, Path], tmp_path: Path, does: str, first: bool
) -> None:
    outcome = odd("policy=odd", f"policy.does={does}", f"policy.first={first}")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(f"placekit: {POLICIES[does]}")
    if POLICIES[does].partition(":")[0] in ("ValueError", "RecursionError", "MemoryError"):
        assert f", while policy 'odd' worked\n  at {plugin[1]}" in outcome.err  # a bug: its file and line
    assert "Traceback" not in outcome.err
    if first:
        found = load_summary(tmp_path / "out")
        assert found.status == "failed"
        assert any(note.startswith("the run failed: ") for note in found.programs[0].notes)
    assert re.search(r"\n  the best so far, \S+ us, is in out\n$", outcome.err) is not None or not first
    assert (tmp_path / "out" / "placement.json").exists() is first


OTHERS = {
    ("grouper", "returns a list"): "grouper 'odd' returned list, not a Grouping",
    ("grouper", "is too short"): "grouper 'odd': the grouping has 111 operations, 'chainmm' has 112",
    ("grouper", "skips a number"): "grouper 'odd': group numbers must be 0..g-1, every one of them used",
    ("grouper", "calls sys.exit"): "a plugin or the program ended Python with exit code 3\n",
    ("importer", "returns nothing"): "importer 'odd' gave no program",
    ("importer", "returns numbers"): "importer 'odd' returned list, not a sequence of Programs",
    ("importer", "calls sys.exit"): "a plugin or the program ended Python with exit code 3\n",
    ("backend", "measures too few"): "backend 'odd' returned value_s of length 0 for 1 placements",
    ("backend", "returns nothing"): "backend 'odd' returned NoneType, not Measurements",
    ("backend", "calls sys.exit"): "a plugin or the program ended Python with exit code 3 while policy 'random' worked",
    ("backend", "measures NaN"): "backend 'odd' measured nan seconds",
    ("backend", "measures negative seconds"): "backend 'odd' measured -0.000",
}


@pytest.mark.parametrize(("kind", "does"), OTHERS)
def test_others_that_fail_are_named(odd: Run, kind: str, does: str) -> None:
    workload = ["workload=none"] if kind == "importer" else []
    outcome = odd(*workload, f"{kind}=odd", f"{kind}.does={does}", "policy=random_search")
    assert (outcome.code, outcome.out) == (1, "")
    assert f"{outcome.err}\n".startswith(f"placekit: {OTHERS[kind, does]}")
    assert "Traceback" not in outcome.err


def test_what_a_policy_prints_is_not_on_stdout(odd: Run) -> None:
    outcome = odd("policy=odd", "policy.does=prints")
    assert outcome.code == 0
    assert "hello" not in outcome.out
    assert outcome.err == "hello from the plugin\n"


@pytest.mark.parametrize(("does", "first"), [("loops", False), ("sleeps", True)])
def test_a_policy_that_does_not_end_is_stopped_some_time_after_its_budget(
    odd: Run, tmp_path: Path, does: str, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contained, "LATE_S", 0.5)
    outcome = odd(
        "policy=odd", f"policy.does={does}", f"policy.first={first}", "budget.evaluations=null", "budget.seconds=0.5"
    )
    assert outcome.code == 0
    summary = load_summary(tmp_path / "out")
    assert (summary.fits, summary.evaluations) == (True, int(first))
    [note] = [n for n in summary.notes if "stopped" in n]
    assert re.fullmatch(r"policy 'odd' was stopped: it went on for [\d.]+ m?s after its budget of 500 ms", note)


def test_a_policy_that_asks_for_ever_is_stopped(odd: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "_REFUSALS", 50)
    assert odd("policy=odd", "policy.does=evaluates for ever").code == 0
    summary = load_summary(tmp_path / "out")
    assert summary.evaluations == 20
    assert (
        "policy 'odd' was stopped: it went on to ask for evaluations after its budget had ended, 50 times"
        in summary.notes
    )


def test_threads_that_go_on_do_not_keep_the_process() -> None:
    code = """
import sys, threading, time
from placekit_core.run import contained
from placekit_core.run.interruption import tell
threading.Thread(target=time.sleep, args=(1000,), name="left behind").start()
print("done", flush=True)
contained.end_with_threads(5, tell, patience_s=0.5)
"""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, env=env
    )
    assert (done.returncode, done.stdout) == (5, "done\n")
    assert done.stderr == "placekit: threads of a plugin or program go on (left behind); ended without them\n"


def test_a_program_that_leaves_python_is_an_error_in_python_too(odd: Run) -> None:
    with pytest.raises(PluginError, match="ended Python with exit code 7 while policy 'odd' worked"):
        place(chain(3), cluster=machine(2), policy={"name": "odd", "does": "calls os._exit"}, budget=5)


def test_the_alarm_of_somebody_else_is_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer of the caller's own rings in the caller's handler, and ends nothing."""
    rung: list[int] = []

    def ring(number: int, _: object) -> None:
        rung.append(number)

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        result = place(chain(8), cluster=machine(2), policy="annealing", budget={"seconds": 1.0})
        assert signal.getsignal(signal.SIGALRM) is ring
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert rung == [signal.SIGALRM]
    assert not any("stopped" in note for note in result.summary.notes)


def test_a_backend_that_is_slow_is_not_a_policy_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contained, "LATE_S", 0.3)
    evaluate = SimulatorSession.evaluate

    def slow(self: SimulatorSession, placements: Any) -> Any:
        time.sleep(1.2)
        return evaluate(self, placements)

    monkeypatch.setattr(SimulatorSession, "evaluate", slow)
    result = place(chain(8), cluster=machine(2), policy="etf", budget={"seconds": 0.2}, baselines=[])
    assert result.summary.evaluations == 1
    assert not any("stopped" in note for note in result.summary.notes)


@pytest.mark.parametrize("does", ["evaluates for ever", "calls sys.exit"])
def test_a_baseline_that_misbehaves_is_a_note(
    odd: Run, tmp_path: Path, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator, "_REFUSALS", 50)
    monkeypatch.setenv("ODD", does)
    assert odd("policy=etf", "baselines=[odd]").code == 0
    assert any(note.startswith("baseline 'odd' failed: ") for note in load_summary(tmp_path / "out").notes)


def test_a_schedule_that_leaves_python_costs_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatorSession, "schedule", lambda *_: sys.exit(3))
    result = place(chain(8), cluster=machine(2), policy="etf", budget=5)
    assert any("there is no schedule of" in note for note in result.summary.notes)


def test_threads_that_python_does_not_wait_for_change_no_exit_code() -> None:
    code = """
import atexit, sys, threading, time
from placekit_core.cli import main as cli

def command():
    atexit.register(print, "tidied up")
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    threading.Thread(target=lambda: (time.sleep(0.2), print("waited for"))).start()
    return 5

cli.main = command
sys.exit(cli.script())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (5, "waited for\ntidied up\n", "")


STUCK = """
import torch

@torch.library.custom_op("placekit_test::stuck", mutates_args=())
def stuck(x: torch.Tensor) -> torch.Tensor:
    while True:
        pass

@stuck.register_fake
def _(x):
    return torch.empty_like(x)

class Net(torch.nn.Module):
    def forward(self, x):
        return stuck(x)

def make():
    return Net(), (torch.randn(2, 8),)
"""


@pytest.mark.slow
def test_an_operation_that_hangs_ends_with_one_error(tmp_path: Path) -> None:
    """Python aborted ("terminate called without an active exception") when the thread of the device asked for its lock."""
    pytest.importorskip("placekit_cuda")
    (tmp_path / "stuck.py").write_text(STUCK)
    options = [
        "importer=torch",
        "importer.module=stuck:make",
        "importer.mode=inference",
        "backend=cpu",
        "backend.devices=2",
    ]
    more = ["backend.timeout_s=1", "policy=single_device", "budget.evaluations=1", "run_dir=out"]
    program = Path(sys.executable).with_name("placekit")
    done = subprocess.run(
        [program, "run", *options, *more], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PLACEKIT_QUIET": "1"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[1:] == [
        "  BackendError: a step did not end within 1 s", "  raise `backend.timeout_s`, or look for a hang"
    ]  # fmt: skip
