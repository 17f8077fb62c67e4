"""The parameter server, called directly: steps, numbers of calls, the budget, and what a killed one has on disk."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from placekit_learn.optimisers import OPTIMISERS

pytest.importorskip("ray")

from placekit_ray import server
from placekit_ray.server import SNAPSHOT, ParameterServer

from placekit_core import pack_state, unpack_state

Call = Callable[[ParameterServer], Any]


def about(**changes: Any) -> dict[str, Any]:
    """What the driver tells a server: two parameters, two controllers, 20 evaluations."""
    rng = np.random.default_rng(0)
    parameters = {"a": rng.standard_normal((3, 2)).astype(np.float32), "b": rng.standard_normal(4)}
    return {
        "parameters": parameters, "optimiser": "adam", "controllers": 2, "synchronous": False, "limit": 20,
        "progress": 0.0, **changes,
    }  # fmt: skip


def started(folder: Path, **changes: Any) -> ParameterServer:
    """A server that was told."""
    folder.mkdir(exist_ok=True)
    found = ParameterServer(str(folder))
    asyncio.run(found.begin(about(**changes)))
    return found


def gradients(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"a": rng.standard_normal((3, 2)).astype(np.float32), "b": rng.standard_normal(4)}


def evaluations(count: int, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Placements and measurements on the wire."""
    rng = np.random.default_rng(seed)
    placements = {"device": rng.integers(0, 2, (count, 3)).astype(np.int16), "priority": None}
    measurements = {
        "value_s": rng.random(count), "peak_bytes": rng.random((count, 2)), "fits": np.ones(count, np.bool_),
        "error": [None] * count, "spread_s": None,
    }  # fmt: skip
    return placements, measurements


def fetch(controller: int) -> Call:
    return lambda s: s.fetch(controller)


def push(controller: int, step: int, based_on: int = 0, seed: int = 0, name: str = "policy", life: int = 0) -> Call:
    """One of a controller that has not fetched, unless `life` says how often it has."""
    return lambda s: s.push(controller, life, step, name, gradients(seed), 0.01, based_on)


def record(controller: int, ticket: int, count: int, seed: int = 0, life: int = 0) -> Call:
    placements, measurements = evaluations(count, seed)
    faults = {"lost": 0, "repeated": 1, "hung": 0}
    return lambda s: s.record(controller, life, ticket, 0, placements, measurements, faults)


def reserve(controller: int, count: int, life: int = 0) -> Call:
    return lambda s: s.reserve(controller, life, count)


def keep(controller: int, state: dict[str, Any], life: int = 0) -> Call:
    return lambda s: s.keep(controller, life, state)


def collected(s: ParameterServer) -> list[int]:
    """Whose evaluations the driver is told, in their order: a test gives `record` the number of the controller as the seed."""
    values = [evaluations(1, c)[1]["value_s"].tolist() for c in range(s.about["controllers"])]
    return [values.index(m["value_s"].tolist()) for _, _, m, _ in do(s, lambda s: s.collect(0))[0]]


def do(s: ParameterServer, *calls: Call) -> Any:
    """The answer to the last of these calls; none of them waits for another controller."""

    async def one_after_the_other() -> Any:
        answer = None
        for call in calls:
            answer = await asyncio.wait_for(call(s), 10)
        return answer

    return asyncio.run(one_after_the_other())


def bits(s: ParameterServer) -> bytes:
    """The whole state but the number of restarts."""
    state = s._state()
    del state["restarts"]
    return pack_state(state)


CALLS: list[Call] = [
    reserve(0, 4), reserve(1, 3), record(0, 0, 4, 1), push(0, 0, 0, 1), keep(0, {"rng": 2**100, "x": None}),
    record(1, 0, 3, 2), push(1, 0, 0, 2), push(0, 1, 1, 3, "critic"), fetch(1), reserve(1, 2, life=1),
    record(1, 1, 2, 4, life=1), lambda s: s.tell(0.25), push(1, 1, 2, 5, life=1), reserve(0, 30), record(0, 1, 3, 6),
    keep(1, {"trainer": {"updates": 2}}, life=1), lambda s: s.leave(1), push(0, 2, 4, 7), lambda s: s.tell(1.0),
]  # fmt: skip


def test_steps_are_those_of_one_optimiser(tmp_path: Path) -> None:
    """Gradients are applied in the order of their arrival, whoever sent them; each name has an optimiser of its own."""
    s = started(tmp_path)
    adam, other, expected = OPTIMISERS["adam"](), OPTIMISERS["adam"](), about()["parameters"]
    sent = [(0, 0, 1, "policy"), (1, 0, 2, "policy"), (1, 1, 3, "critic"), (0, 1, 4, "policy")]
    for version, (controller, step, seed, name) in enumerate(sent):
        found, parameters = do(s, push(controller, step, version, seed, name))
        optimiser = adam if name == "policy" else other
        expected = {k: expected[k] + v for k, v in optimiser.steps(gradients(seed), 0.01).items()}
        assert found == version + 1
        assert {k: v.tobytes() for k, v in parameters.items()} == {k: v.tobytes() for k, v in expected.items()}
    assert parameters["a"].dtype == np.float32


def test_a_repeated_push_counts_once(tmp_path: Path) -> None:
    s = started(tmp_path)
    first = do(s, push(0, 0, seed=1))
    again = do(s, push(0, 0, seed=1))
    assert again[0] == first[0] == 1
    assert all((again[1][k] == first[1][k]).all() for k in first[1])
    do(s, push(1, 0, 1, 2))
    version, _ = do(s, push(0, 0, seed=1))
    assert (version, s.steps, s.staleness) == (2, [1, 1], {0: 2}), "the answer has the newest parameters"


def test_a_repeated_record_counts_once(tmp_path: Path) -> None:
    s = started(tmp_path)
    do(s, reserve(0, 4), record(0, 0, 4), record(0, 0, 4))
    assert (s.evaluations, s.granted, s.tickets) == (4, [0, 0], [1, 0])
    do(s, reserve(0, 2), record(0, 1, 2), record(0, 0, 4))
    found, _ = do(s, lambda s: s.collect(0))
    assert [len(measurements["value_s"]) for _, _, measurements, _ in found] == [4, 2]


def test_the_driver_takes_every_evaluation_once(tmp_path: Path) -> None:
    s = started(tmp_path)
    do(s, reserve(0, 6), record(0, 0, 1, 1), record(0, 1, 2, 2))
    found, version = do(s, lambda s: s.collect(0))
    assert [len(m["value_s"]) for _, _, m, _ in found] == [1, 2]
    assert version == 0
    again, _ = do(s, lambda s: s.collect(0))
    assert len(again) == 2, "it is repeated until the driver says that it has them"
    do(s, record(0, 2, 3, 3))
    later, _ = do(s, lambda s: s.collect(2))
    assert [len(m["value_s"]) for _, _, m, _ in later] == [3]
    restarted = ParameterServer(str(tmp_path))
    after, _ = do(restarted, lambda s: s.collect(2))
    assert [m["value_s"].tolist() for _, _, m, _ in after] == [m["value_s"].tolist() for _, _, m, _ in later]
    assert after[0][3] == {"lost": 0, "repeated": 1, "hung": 0}
    assert do(restarted, lambda s: s.collect(3))[0] == []


@pytest.mark.parametrize("log_bytes", [server._LOG_BYTES, 1])
def test_a_server_killed_between_two_calls_is_the_same_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_bytes: int
) -> None:
    monkeypatch.setattr(server, "_LOG_BYTES", log_bytes)
    monkeypatch.setattr(server, "_SNAPSHOTS", 0)
    s = started(tmp_path / "whole")
    for number, call in enumerate(CALLS):
        do(s, call)
        shutil.copytree(tmp_path / "whole", tmp_path / f"{number}")
        assert bits(ParameterServer(str(tmp_path / f"{number}"))) == bits(s), f"after call {number}"
    assert (s.number > 1) == (log_bytes == 1)
    assert len(list((tmp_path / "whole").glob("calls-*.log"))) == 1, "a log is removed when a snapshot has its calls"


@pytest.mark.parametrize("log_bytes", [server._LOG_BYTES, 6000])
def test_a_server_killed_after_every_call_ends_like_one_that_lived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_bytes: int
) -> None:
    monkeypatch.setattr(server, "_LOG_BYTES", log_bytes)
    monkeypatch.setattr(server, "_SNAPSHOTS", 0)
    lived = started(tmp_path / "lived")
    do(lived, *CALLS)
    s = started(tmp_path / "killed")
    for call in CALLS:
        do(s, call)
        s = ParameterServer(str(tmp_path / "killed"))
    assert bits(s) == bits(lived)


def test_a_call_that_was_half_written_is_left_out(tmp_path: Path) -> None:
    s = started(tmp_path / "a")
    do(s, *CALLS[:7])
    before, kept = bits(s), (tmp_path / "a" / "calls-1.log").read_bytes()
    do(s, CALLS[7])
    whole, after = (tmp_path / "a" / "calls-1.log").read_bytes(), bits(s)
    assert whole.startswith(kept)
    for size in [*range(len(kept), len(kept) + 12), *range(len(kept) + 12, len(whole), 97), len(whole) - 1]:
        (tmp_path / "a" / "calls-1.log").write_bytes(whole[:size])
        cut = ParameterServer(str(tmp_path / "a"))
        assert bits(cut) == before, f"{size - len(kept)} bytes of the call were written"
    do(cut, CALLS[7])  # Ray repeats a call that was not answered
    assert bits(cut) == after
    assert bits(ParameterServer(str(tmp_path / "a"))) == after, "what follows a cut is read"


def test_a_server_killed_after_a_snapshot_does_not_repeat_the_old_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = started(tmp_path)
    do(s, *CALLS[:4])
    old = (tmp_path / "calls-1.log").read_bytes()
    monkeypatch.setattr(server, "_LOG_BYTES", 1)
    monkeypatch.setattr(server, "_SNAPSHOTS", 0)
    do(s, CALLS[4])
    assert s.number > 1
    (tmp_path / "calls-1.log").write_bytes(old)  # killed before it was removed
    (tmp_path / f"calls-{s.number}.log").unlink()  # and before the new one was made
    assert bits(ParameterServer(str(tmp_path))) == bits(s)


def test_it_begins_once_and_goes_on_from_a_snapshot_of_the_driver(tmp_path: Path) -> None:
    s = started(tmp_path / "first")
    do(s, *CALLS[:8])
    state = unpack_state(do(s, lambda s: s.snapshot()))
    before = bits(s)
    asyncio.run(s.begin(about(limit=3)))
    assert bits(s) == before, "Ray repeats the call after a restart"
    (tmp_path / "second").mkdir()
    other = ParameterServer(str(tmp_path / "second"))
    asyncio.run(other.begin(state))
    assert bits(other) == before
    do(s, *CALLS[8:])
    do(other, *CALLS[8:])
    assert bits(other) == bits(s)


def test_one_that_nobody_told_has_no_snapshot(tmp_path: Path) -> None:
    ParameterServer(str(tmp_path))
    assert not (tmp_path / SNAPSHOT).exists()


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_the_budget_is_exact(tmp_path: Path, seed: int, synchronous: bool) -> None:
    """Controllers ask, die and record in any order: never more than the budget, and in the end all of it."""
    rng, limit, count = np.random.default_rng(seed), 50, 3
    s = started(tmp_path, controllers=count, limit=limit, synchronous=synchronous)

    async def play() -> None:
        for _ in range(200):
            c = int(rng.integers(count))
            if rng.random() < 0.1:
                await s.fetch(c)  # it was restarted; what it had asked for is given back
                assert s.granted[c] == 0
            granted, progress = await s.reserve(c, s.lives[c], int(rng.integers(1, 9)))
            assert 0 <= granted <= 8
            assert s.evaluations + sum(s.granted) <= limit
            if granted and rng.random() < 0.8:
                progress = await record(c, s.tickets[c], granted, life=s.lives[c])(s)
            used, share = (s.used[c], (17, 17, 16)[c]) if synchronous else (s.evaluations, limit)
            assert progress == pytest.approx(used / share)
        for c in range(count):  # those who hold some finish
            life = (await s.fetch(c))["life"]
            granted, _ = await s.reserve(c, life, limit)
            if granted:
                await record(c, s.tickets[c], granted, life=life)(s)

    asyncio.run(play())
    assert s.evaluations == limit
    assert [s._progress(c) for c in range(count)] == [1, 1, 1]


def test_those_who_wait_for_each_other_have_equal_shares(tmp_path: Path) -> None:
    s = started(tmp_path, controllers=3, limit=11, synchronous=True)
    assert [do(s, reserve(c, 100))[0] for c in range(3)] == [4, 4, 3]
    do(s, *(record(c, 0, (4, 4, 3)[c]) for c in range(3)))
    assert [do(s, reserve(c, 100)) for c in range(3)] == [(0, 1.0)] * 3


@pytest.mark.parametrize("synchronous", [False, True])
def test_a_repeated_reserve_holds_what_the_last_one_asked_for(tmp_path: Path, synchronous: bool) -> None:
    s = started(tmp_path, synchronous=synchronous)
    most = 10 if synchronous else 20
    assert [do(s, reserve(0, count))[0] for count in (4, 4, 50, 6, 6)] == [4, 4, most, 6, 6]
    assert s.granted == [6, 0]
    assert do(s, reserve(1, 50))[0] == (10 if synchronous else 14), "the others get all that it does not hold"
    assert ParameterServer(str(tmp_path)).granted == s.granted
    do(s, record(0, 0, 2))
    assert s.granted[0] == 0, "what it has not used of a batch is given back, too"
    assert do(s, reserve(0, 50))[0] == (8 if synchronous else 4)


def test_seconds_end_it_too(tmp_path: Path) -> None:
    s = started(tmp_path, limit=None, progress=0.5)
    assert do(s, reserve(0, 1000)) == (1000, 0.0)
    do(s, lambda s: s.tell(0.7), lambda s: s.tell(0.6))
    assert do(s, reserve(0, 1)) == (1, 0.7), "it never goes back"
    do(s, lambda s: s.tell(1.0))
    assert do(s, reserve(0, 1)) == (0, 1.0)
    other = started(tmp_path / "other", progress=0.5)
    assert do(other, reserve(0, 5)) == (5, 0.5), "a run that goes on has used a part already"
    assert do(other, record(0, 0, 5)) == pytest.approx(0.5 + 0.5 * 5 / 20)


def test_those_who_wait_for_each_other_step_along_the_mean(tmp_path: Path) -> None:
    s = started(tmp_path, synchronous=True, optimiser="sgd")

    async def play() -> None:
        first = asyncio.create_task(push(1, 0, 0, 1)(s))
        await asyncio.sleep(0.01)
        assert not first.done()
        assert s.version == 0
        second = await push(0, 0, 0, 2)(s)
        assert second[0] == (await first)[0] == 1

    asyncio.run(play())
    start, g1, g2 = about()["parameters"], gradients(1), gradients(2)
    for name in start:
        np.testing.assert_allclose(s.parameters[name], start[name] + 0.01 * (g1[name] + g2[name]) / 2, rtol=1e-6)
    assert (s.steps, s.staleness) == ([1, 1], {0: 2})


def test_the_order_of_arrival_changes_nothing_for_those_who_wait(tmp_path: Path) -> None:
    found = []
    for order in ((0, 1), (1, 0)):
        s = started(tmp_path / str(order[0]), synchronous=True)

        async def play(s: ParameterServer = s, order: tuple[int, int] = order) -> None:
            for step in range(3):
                await asyncio.gather(*(push(c, step, step, 10 * step + c)(s) for c in order))

        asyncio.run(play())
        found.append(pack_state({"parameters": s.parameters}))
    assert found[0] == found[1]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_a_round_is_told_in_the_order_of_the_controllers(tmp_path: Path, order: tuple[int, ...]) -> None:
    """Equal seeds then give equal histories, whoever was first. Nothing is told before the round is complete."""
    s = started(tmp_path, synchronous=True, controllers=3)
    do(s, *(record(c, 0, 1, c) for c in order), record(order[0], 1, 1, order[0]))
    assert collected(s) == []
    s = ParameterServer(str(tmp_path))

    async def step() -> None:
        waiting = [asyncio.create_task(push(c, 0)(s)) for c in order[:2]]
        await asyncio.sleep(0.01)
        assert (await s.collect(0))[0] == []
        await asyncio.gather(push(order[2], 0)(s), *waiting)

    asyncio.run(step())
    first = sorted([*order, order[0]])
    assert collected(s) == first
    assert collected(ParameterServer(str(tmp_path))) == first

    do(s, *(record(c, s.tickets[c], 1, c) for c in order))
    for c in order:
        assert collected(s) == first, "the budget ended before gradients: it is told when all have left"
        do(s, lambda s, c=c: s.leave(c))
    assert collected(s) == [*first, 0, 1, 2]


def test_those_who_do_not_wait_are_told_at_once(tmp_path: Path) -> None:
    s = started(tmp_path)
    do(s, record(1, 0, 1, 1), record(0, 0, 1, 0), record(1, 1, 1, 1))
    assert collected(s) == [1, 0, 1]


def test_a_snapshot_has_the_round_that_is_not_told_yet(tmp_path: Path) -> None:
    s = started(tmp_path / "first", synchronous=True)
    do(s, record(1, 0, 1, 1), record(0, 0, 1, 0))
    (tmp_path / "second").mkdir()
    other = ParameterServer(str(tmp_path / "second"))
    asyncio.run(other.begin(unpack_state(do(s, lambda s: s.snapshot()))))
    do(other, lambda s: s.leave(1), lambda s: s.leave(0))
    assert collected(other) == [0, 1]


def test_nobody_waits_for_one_that_has_left(tmp_path: Path) -> None:
    s = started(tmp_path, synchronous=True, controllers=3)

    async def play() -> None:
        waiting = [asyncio.create_task(push(c, 0, 0, c)(s)) for c in (0, 2)]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in waiting)
        await s.leave(1)
        assert [version for version, _ in await asyncio.gather(*waiting)] == [1, 1]
        await s.leave(2)
        assert (await push(0, 1, 1, 5)(s))[0] == 2

    asyncio.run(play())


def test_a_server_killed_while_some_wait_is_asked_again(tmp_path: Path) -> None:
    """Ray repeats the calls of those that wait; the round is made once."""
    lived = started(tmp_path, synchronous=True)

    async def ask_one() -> None:
        task = asyncio.create_task(push(0, 0, 0, 1)(lived))
        await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(ask_one())
    s = ParameterServer(str(tmp_path))
    assert s.version == 0

    async def ask_all() -> None:
        both = await asyncio.gather(push(0, 0, 0, 1)(s), push(1, 0, 0, 2)(s))
        assert [version for version, _ in both] == [1, 1]
        assert (await push(1, 0, 0, 2)(s))[0] == 1, "an answer that was lost"

    asyncio.run(ask_all())
    assert s.steps == [1, 1]


def test_all_begin_together(tmp_path: Path) -> None:
    s = started(tmp_path)

    async def play() -> None:
        first = asyncio.create_task(s.arrive(0))
        await asyncio.sleep(0.01)
        assert not first.done()
        assert not await s.ready()
        await s.arrive(1)
        await first
        assert await s.ready()

    asyncio.run(play())


@pytest.mark.parametrize("arrived", [(), (0,), (0, 1)])
def test_nobody_waits_for_the_others_after_the_server_was_restarted(tmp_path: Path, arrived: tuple[int, ...]) -> None:
    """Those who had arrived do not come again."""
    s = started(tmp_path)

    async def arrive() -> None:
        tasks = [asyncio.create_task(s.arrive(c)) for c in arrived]
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()

    asyncio.run(arrive())
    again = ParameterServer(str(tmp_path))
    assert again.restarts == s.restarts + 1

    async def begin() -> None:
        assert await again.ready()
        await asyncio.wait_for(again.arrive(1), 1)

    asyncio.run(begin())
    assert bits(again) == bits(s)
    assert ParameterServer(str(tmp_path)).restarts == s.restarts + 2, "each is counted, also those before"


def test_staleness_counts_the_steps_that_others_made(tmp_path: Path) -> None:
    s = started(tmp_path, controllers=3)
    do(s, push(0, 0, 0), push(1, 0, 0), push(2, 0, 0), push(0, 1, 1), push(2, 1, 3))
    assert s.staleness == {0: 1, 1: 2, 2: 2}  # 0, 1, 2 late; then 3 - 1, 4 - 3
    assert ParameterServer(str(tmp_path)).staleness == s.staleness


def test_evaluations_of_a_controller_that_died_before_its_step_are_lost(tmp_path: Path) -> None:
    s = started(tmp_path)
    do(s, reserve(0, 9), record(0, 0, 4), push(0, 0), keep(0, {"trainer": {}}))
    assert s.lost == 0
    do(s, record(0, 1, 3))
    begun = do(s, fetch(0))
    assert (s.lost, s.granted[0], s.evaluations) == (3, 0, 7)
    assert (begun["step"], begun["ticket"], begun["version"], begun["kept"]) == (1, 2, 1, {"trainer": {}})
    assert begun["progress"] == pytest.approx(7 / 20)
    do(s, fetch(0))
    assert s.lost == 3, "they are lost once"


@pytest.mark.parametrize("synchronous", [False, True])
def test_late_calls_of_a_dead_life_change_nothing(tmp_path: Path, synchronous: bool) -> None:
    """Calls that a controller sent before it was killed may arrive after it was restarted."""
    s = started(tmp_path, synchronous=synchronous)
    assert do(s, fetch(0))["life"] == 1
    do(s, reserve(0, 4, life=1), record(0, 0, 4, life=1))
    begun = do(s, fetch(0))
    assert (begun["life"], begun["ticket"], begun["step"]) == (2, 1, 0)
    do(s, reserve(0, 3, life=2))
    before = bits(s)
    progress = do(s, record(0, 1, 5, 1, life=1))
    version, parameters = do(s, push(0, 0, 0, 1, life=1))
    assert (progress, version) == (s._progress(0), 0), "it is answered at once, also where controllers wait"
    assert all((parameters[name] == s.parameters[name]).all() for name in parameters)
    do(s, keep(0, {"trainer": {"updates": 9}}, life=1))
    assert not s.waiting
    assert bits(s) == before

    do(s, record(0, begun["ticket"], 3, 2, life=2))
    assert (s.tickets[0], s.evaluations, s.granted[0]) == (2, 7, 0)

    async def step() -> None:
        both = (push(0, begun["step"], 0, 2, life=2), push(1, 0, 0, 3)) if synchronous else (push(0, 0, 0, 2, life=2),)
        assert {version for version, _ in await asyncio.gather(*(each(s) for each in both))} == {1}

    asyncio.run(step())
    assert s.steps[0] == 1
    do(s, keep(0, {"trainer": {"updates": 1}}, life=2))
    assert do(ParameterServer(str(tmp_path)), fetch(0))["kept"] == {"trainer": {"updates": 1}}


def test_a_late_reserve_of_a_dead_life_takes_nothing_from_the_new_one(tmp_path: Path) -> None:
    s = started(tmp_path, limit=8)
    do(s, fetch(0), fetch(0), reserve(0, 5, life=2))
    before = bits(s)
    assert do(s, reserve(0, 2, life=1))[0] == 0
    assert bits(s) == before
    assert do(s, reserve(1, 8))[0] == 3, "or more would be evaluated than the budget has"


def test_a_push_that_waits_is_forgotten_when_its_controller_is_restarted(tmp_path: Path) -> None:
    s = started(tmp_path, synchronous=True, optimiser="sgd")

    async def play() -> None:
        old = asyncio.create_task(push(0, 0, 0, 1)(s))
        await asyncio.sleep(0.01)
        life = (await s.fetch(0))["life"]
        other = asyncio.create_task(push(1, 0, 0, 2)(s))
        await asyncio.sleep(0.01)
        assert not other.done(), "the round waits for the new life"
        assert (await push(0, 0, 0, 3, life=life)(s))[0] == (await other)[0] == 1
        old.cancel()

    asyncio.run(play())
    start, g2, g3 = about()["parameters"], gradients(2), gradients(3)
    for name in start:
        np.testing.assert_allclose(s.parameters[name], start[name] + 0.01 * (g2[name] + g3[name]) / 2, rtol=1e-6)
