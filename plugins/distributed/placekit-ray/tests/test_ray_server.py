"""The parameter server, called directly: updates, the budget, restarted controllers, and snapshots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from placekit_learn.optimisers import OPTIMISERS

pytest.importorskip("ray")

from placekit_ray.server import ParameterServer, first_state

from placekit_core import pack_state, unpack_state


def parameters() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"a": rng.standard_normal((3, 2)).astype(np.float32), "b": rng.standard_normal(4)}


def started(controllers: int = 2, limit: int | None = 20, progress: float = 0.0) -> ParameterServer:
    """A server whose controllers have joined once."""
    server = ParameterServer(first_state(parameters(), "adam", controllers, limit, progress))
    for c in range(controllers):
        server.join(c)
    return server


def gradients(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"a": rng.standard_normal((3, 2)).astype(np.float32), "b": rng.standard_normal(4)}


def push(s: ParameterServer, controller: int, seed: int, based_on: int, name: str = "policy") -> Any:
    return s.push(controller, s.lives[controller], name, gradients(seed), 0.01, based_on)


def record(s: ParameterServer, controller: int, count: int, life: int | None = None) -> float:
    rng = np.random.default_rng(count)
    placements = {"device": rng.integers(0, 2, (count, 3)).astype(np.int16), "priority": None}
    measurements = {
        "value_s": rng.random(count), "peak_bytes": rng.random((count, 2)), "fits": np.ones(count, np.bool_),
        "error": [None] * count, "spread_s": None,
    }  # fmt: skip
    return s.record(controller, s.lives[controller] if life is None else life, 0, placements, measurements)


def bits(s: ParameterServer) -> bytes:
    return pack_state(s.snapshot())


def test_updates_are_those_of_one_optimiser() -> None:
    """Gradients are applied in the order of their arrival, whoever sent them; each name has an optimiser of its own."""
    s, adam, other, expected = started(), OPTIMISERS["adam"](), OPTIMISERS["adam"](), parameters()
    for version, (controller, seed, name) in enumerate([(0, 1, "policy"), (1, 2, "policy"), (1, 3, "critic")]):
        found, now = push(s, controller, seed, version, name)
        steps = (adam if name == "policy" else other).steps(gradients(seed), 0.01)
        expected = {k: expected[k] + v for k, v in steps.items()}
        assert found == version + 1
        assert {k: v.tobytes() for k, v in now.items()} == {k: v.tobytes() for k, v in expected.items()}
    assert now["a"].dtype == np.float32


def test_the_driver_takes_every_evaluation_once() -> None:
    s = started()
    record(s, 0, 1)
    record(s, 1, 2)
    found, version = s.collect()
    assert ([len(m["value_s"]) for _, _, m in found], version) == ([1, 2], 0)
    assert s.collect() == ([], 0)


@pytest.mark.parametrize("seed", range(3))
def test_the_budget_is_exact(seed: int) -> None:
    """Controllers ask, die and record in any order: never more than the budget, and in the end all of it."""
    rng, limit, count = np.random.default_rng(seed), 50, 3
    s = started(count, limit)
    for _ in range(200):
        c = int(rng.integers(count))
        if rng.random() < 0.1:
            s.join(c)
            assert s.granted[c] == 0, "what it had asked for is given back"
        granted, progress = s.reserve(c, s.lives[c], int(rng.integers(1, 9)))
        assert 0 <= granted <= 8
        assert s.evaluations + sum(s.granted) <= limit
        if granted and rng.random() < 0.8:
            progress = record(s, c, granted)
        assert progress == pytest.approx(s.evaluations / limit)
    for c in range(count):
        s.join(c)
    if granted := s.reserve(0, s.lives[0], limit)[0]:
        record(s, 0, granted)
    assert (s.evaluations, s.reserve(1, s.lives[1], 5)) == (limit, (0, 1.0))


def test_seconds_end_the_budget_too() -> None:
    s = started(limit=None, progress=0.5)
    assert s.reserve(0, 1, 1000) == (1000, 0.0)
    s.set_seconds(0.7)
    s.set_seconds(0.6)
    assert s.reserve(0, 1, 1) == (1, 0.7), "it never goes back"
    s.set_seconds(1.0)
    assert s.reserve(0, 1, 1) == (0, 1.0)
    other = started(progress=0.5)
    assert record(other, 0, 5) == pytest.approx(0.5 + 0.5 * 5 / 20), "a resumed run has used a part already"


def test_a_restarted_controller_goes_on_from_its_last_update() -> None:
    s = started()
    push(s, 0, 1, 0)
    s.keep(0, 1, {"trainer": {"updates": 1}})
    begun = s.join(0)
    assert (begun["life"], begun["version"], begun["kept"]) == (2, 1, {"trainer": {"updates": 1}})
    assert all((begun["parameters"][name] == values).all() for name, values in s.parameters.items())


def test_late_calls_of_a_dead_controller_change_nothing() -> None:
    """Calls that a controller sent before it was killed may arrive after Ray has restarted it."""
    s = started(limit=8)
    s.join(0)
    s.reserve(0, 2, 5)
    before = bits(s)
    assert s.reserve(0, 1, 2)[0] == 0
    record(s, 0, 5, life=1)
    s.push(0, 1, "policy", gradients(1), 0.01, 0)
    s.keep(0, 1, {"trainer": {"updates": 9}})
    assert bits(s) == before
    assert s.reserve(1, 1, 8)[0] == 3, "or more would be evaluated than the budget has"


def test_a_server_goes_on_from_a_snapshot() -> None:
    s = started()
    push(s, 0, 1, 0)
    push(s, 1, 2, 1, "critic")
    record(s, 0, 3)
    s.keep(0, 1, {"rng": 2**100, "x": None})
    other = ParameterServer(unpack_state(bits(s)))
    assert bits(other) == bits(s)
    for server in (s, other):
        server.join(0)
        push(server, 0, 3, 2)
    assert bits(other) == bits(s), "the optimisers have the same moments"
