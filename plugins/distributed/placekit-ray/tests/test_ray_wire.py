"""What goes over the wire is plain, and comes back as it was."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
from placekit_testing import fakes
from placekit_testing.evaluations import seeded_placements, seeded_problem

pytest.importorskip("ray")

from placekit_ray.wire import (
    measurements_as,
    measurements_from,
    packed,
    placements_as,
    placements_from,
    unpacked,
)

from placekit_core import BackendError, Measurements, Problem

PROBLEMS = {
    "grouped": fakes.grouped, "mixed": fakes.mixed, "unequal": fakes.unequal, "tight": fakes.tight,
    "seeded": lambda: seeded_problem(3),
}  # fmt: skip


def plain(value: Any) -> bool:
    """Whether a value is made of arrays, strings, bytes and numbers alone."""
    if isinstance(value, dict):
        return all(type(k) is str and plain(v) for k, v in value.items())
    if isinstance(value, list):
        return all(plain(v) for v in value)
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf"
    return value is None or type(value) in (str, bytes, int, float, bool)


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems(name: str) -> None:
    problem: Problem = PROBLEMS[name]()
    data = packed(problem)
    assert plain(data)
    found = unpacked(pickle.loads(pickle.dumps(data)))
    assert found.fingerprint == problem.fingerprint
    assert found.grouping.names == problem.grouping.names
    assert found.cluster == problem.cluster
    assert (found.allowed == problem.allowed).all()
    assert found.op_s.tobytes() == problem.op_s.tobytes()
    placements = seeded_placements(problem, 5)
    here, there = (fakes.FakeBackend().open(p).evaluate(placements) for p in (problem, found))
    assert here.value_s.tobytes() == there.value_s.tobytes()


def test_a_problem_that_is_another_one_there_is_refused() -> None:
    data = packed(fakes.diamond())
    with pytest.raises(BackendError, match="'diamond' is a different problem on this machine") as caught:
        unpacked(data | {"op_s": data["op_s"] * 2})
    assert "same version of placekit" in caught.value.hint


@pytest.mark.parametrize("priorities", [False, True])
def test_placements(priorities: bool) -> None:
    placements = seeded_placements(fakes.diamond(), 4, priorities=priorities)
    assert (placements.priority is not None) == priorities
    data = placements_as(placements)
    assert plain(data)
    for array in [a for a in data.values() if a is not None]:
        array.setflags(write=False)  # as Ray gives them
    found = placements_from(data)
    assert found.device.dtype == placements.device.dtype
    assert found.device.tolist() == placements.device.tolist()
    assert (found.priority is None) == (placements.priority is None)
    if found.priority is not None and placements.priority is not None:
        assert found.priority.tobytes() == placements.priority.tobytes()
    assert found.device.flags.writeable


@pytest.mark.parametrize("spread", [None, np.array([0.1, 0.2, np.nan])])
def test_measurements(spread: Any) -> None:
    peak = np.arange(6.0).reshape(3, 2)
    m = Measurements(
        np.array([1.0, 0.1 + 0.2, np.nan]), peak, np.array([True, False, False]), (None, None, "no"), spread
    )
    data = measurements_as(m)
    assert plain(data)
    for array in (data["value_s"], data["peak_bytes"], data["fits"]):
        array.setflags(write=False)
    found = measurements_from(data)
    for field in dataclasses.fields(Measurements):
        was, now = getattr(m, field.name), getattr(found, field.name)
        if isinstance(was, np.ndarray):
            assert now.dtype == was.dtype
            assert now.tobytes() == was.tobytes()
            assert now.flags.writeable
        else:
            assert now == was
