"""`isolation: process`: what happens to the child costs one measurement."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
from placekit_cuda.backend import CPUBackend

from placekit_core import BackendError, Placements, Problem

EinsumImporter = pytest.importorskip("placekit_einsum.importer").EinsumImporter


def opened(n: int = 32, **options: Any) -> Any:
    program = EinsumImporter(program="chainmm", sizes={"n": n}).load()[0]
    backend = CPUBackend(isolation="process", devices=2, **options)
    return backend.open(Problem.of(program.graph, backend.devices()), program.executable)


def placements(problem: Problem, b: int = 2) -> Placements:
    return Placements.of(np.random.default_rng(0).integers(0, 2, (b, problem.g)))


@pytest.mark.slow
def test_a_killed_child_costs_one_measurement() -> None:
    session = opened(512, steps=100_000)
    one = placements(session.problem, 1)
    session._start()
    child = session.process
    threading.Timer(0.5, os.kill, (child.pid, signal.SIGKILL)).start()
    found = session.evaluate(one)
    assert found.error == ("the process that ran it was killed by SIGKILL",)
    assert not found.fits[0]
    assert np.isnan(found.value_s[0])
    assert session.process is None
    session.options = session.options.model_copy(update={"steps": 1})
    session._about["options"]["steps"] = 1
    assert session.evaluate(one).error == (None,), "the next one is measured by another child"
    assert session.process.pid != child.pid
    session.close()


@pytest.mark.slow
def test_a_child_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placekit_cuda.isolation._GRACE_S", 0.5)
    session = opened(timeout_s=0.1, warm_up=0, steps=1)
    session._start()
    child = session.process
    os.kill(child.pid, signal.SIGSTOP)
    start = time.perf_counter()
    assert session.evaluate(placements(session.problem, 1)).error == (
        "the process that ran it did not answer, and was ended",
    )
    assert time.perf_counter() - start < 30
    assert child.returncode == -signal.SIGKILL


def test_what_no_other_process_can_build_is_refused() -> None:
    found = EinsumImporter(program="chainmm", sizes={"n": 32}).load()[0]
    backend = CPUBackend(isolation="process", devices=2)
    problem = Problem.of(found.graph, backend.devices())
    executable: Any = found.executable
    executable._recipe = {}
    with pytest.raises(BackendError, match=r"(?s)another process cannot build .*backend\.isolation=none"):
        backend.open(problem, executable)


def test_a_recipe_that_makes_another_program_is_refused() -> None:
    session = opened()
    session._about["recipe"]["options"]["sizes"] = {"n": 64}
    with pytest.raises(BackendError, match="makes another program"):
        session.evaluate(placements(session.problem))
    assert session.process is None
