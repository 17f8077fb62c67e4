"""The fleet of workers, without Ray: who gets what, and what happens when workers die, hang or raise."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from placekit_testing import fakes

pytest.importorskip("ray")

import ray
from placekit_ray import fleet
from placekit_ray.fleet import DEATHS, Fleet
from placekit_ray.wire import measurements_as, placements_from
from placekit_ray.worker import raised

from placekit_core import BackendError, PlacekitError, Placements

PROBLEM = fakes.diamond()
SESSION = fakes.FakeBackend().open(PROBLEM)
PROBLEMS = [object()]
"""Stands for references to what workers open."""
GONE = ray.exceptions.ActorDiedError()
AWAY = ray.exceptions.ActorUnavailableError("it is being restarted", b"0" * 16)


class Reference:
    """The answer to a call: there `after_s`, or never."""

    def __init__(self, answer: Any, after_s: float = 0.0) -> None:
        self.answer, self.at = answer, time.monotonic() + after_s


NEVER = float("inf")


class FakeRay:
    """`get`, `wait` and `kill`; `killed` are the workers that were ended."""

    exceptions = ray.exceptions

    def __init__(self) -> None:
        self.killed: list[FakeWorker] = []

    def wait(self, references: Sequence[Reference], timeout: float | None = None) -> tuple[list[Reference], Any]:
        first = min(r.at for r in references)
        time.sleep(max(0.0, min(first - time.monotonic(), timeout or 0.0)))
        return [r for r in references if r.at <= time.monotonic()][:1], None

    def get(self, reference: Reference, timeout: float | None = None) -> Any:
        if reference.at > time.monotonic() + (timeout or 10.0):
            assert timeout, "nobody waits for ever"
            raise ray.exceptions.GetTimeoutError
        if isinstance(reference.answer, Exception):
            raise reference.answer
        return reference.answer

    def kill(self, worker: FakeWorker, no_restart: bool) -> None:
        assert not no_restart, "Ray is to start another one"
        self.killed.append(worker)


class FakeWorker:
    """Acts for each call of `evaluate` as its script says, and evaluates when the script has ended."""

    def __init__(self, *script: Callable[[Mapping[str, Any]], Reference | None], opens: Sequence[Any] = ()) -> None:
        self.script, self.opens = list(script), list(opens)
        self.sizes: list[int] = []
        self.schedule = SimpleNamespace()
        self.asked_to_open = 0
        self.evaluate = SimpleNamespace(remote=self._evaluate)
        self.open = SimpleNamespace(remote=self._open)

    def _open(self, problems: Sequence[object]) -> Reference:
        assert problems == PROBLEMS
        self.asked_to_open += 1
        return Reference(self.opens.pop(0) if self.opens else {})

    def _evaluate(self, problems: Sequence[object], number: int, placements: Mapping[str, Any]) -> Reference:
        assert (problems, number) == (PROBLEMS, 0)
        self.sizes.append(len(placements["device"]))
        own = self.script.pop(0)(placements) if self.script else None
        return own or Reference(measurements_as(SESSION.evaluate(placements_from(placements))))


def dies(placements: Mapping[str, Any]) -> Reference:
    return Reference(GONE)


def hangs(placements: Mapping[str, Any]) -> Reference:
    return Reference(None, NEVER)


def slow(placements: Mapping[str, Any]) -> Reference:
    return Reference(measurements_as(SESSION.evaluate(placements_from(placements))), 0.05)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    found = FakeRay()
    monkeypatch.setattr(fleet, "ray", found)
    monkeypatch.setattr(fleet, "_PAUSE_S", 0.0)
    return found


def batch(size: int) -> Placements:
    return Placements.of(np.random.default_rng(size).integers(0, 2, (size, PROBLEM.g)))


def evaluated(workers: Sequence[FakeWorker], size: int, **more: Any) -> tuple[Fleet, Any]:
    found = Fleet(workers, PROBLEMS, [PROBLEM.cluster.size], **more)
    return found, found.evaluate(0, batch(size))


def check(m: Any, size: int, failed: Sequence[int] = ()) -> None:
    """The measurements are those of the batch in its order, but for the rows that failed."""
    expected = SESSION.evaluate(batch(size))
    assert len(m) == size
    for row in range(size):
        if row in failed:
            assert np.isnan(m.value_s[row])
            assert not m.fits[row]
            assert m.peak_bytes[row].shape == (PROBLEM.cluster.size,)
            assert m.error[row]
        else:
            assert m.value_s[row] == expected.value_s[row]
            assert m.peak_bytes[row].tolist() == expected.peak_bytes[row].tolist()
            assert m.error[row] is None


@pytest.mark.parametrize(("workers", "size"), [(1, 7), (3, 2), (3, 40)])
def test_answers_are_in_order(fake: FakeRay, workers: int, size: int) -> None:
    check(evaluated([FakeWorker(*[slow] * (i % 2)) for i in range(workers)], size)[1], size)


def test_fast_evaluations_are_sent_together(fake: FakeRay) -> None:
    workers = [FakeWorker(), FakeWorker()]
    found, _ = evaluated(workers, 40)
    assert all(size == 1 for w in workers for size in w.sizes), "nothing is known yet"
    before = [len(w.sizes) for w in workers]
    check(found.evaluate(0, batch(40)), 40)
    later = [size for w, n in zip(workers, before, strict=True) for size in w.sizes[n:]]
    assert sorted(later) == [20, 20]
    found._each_s = fleet.PIECE_S
    check(found.evaluate(0, batch(4)), 4)
    assert [size for w in workers for size in w.sizes][-1] == 1


def test_a_free_worker_takes_the_next_piece(fake: FakeRay) -> None:
    busy, free = FakeWorker(lambda p: Reference(slow(p).answer, 0.2)), FakeWorker(*[slow] * 3)
    check(evaluated([busy, free], 4)[1], 4)
    assert (len(busy.sizes), len(free.sizes)) == (1, 3)


def test_the_piece_of_a_dead_worker_is_evaluated_again(fake: FakeRay) -> None:
    workers = [FakeWorker(slow, dies), FakeWorker(slow)]
    check(evaluated(workers, 6)[1], 6)
    assert workers[0].asked_to_open == 2, "the process in its place opens the problems, too"


def test_a_placement_that_ends_every_process_counts_as_failed(fake: FakeRay) -> None:
    fatal = batch(5).device[2].tobytes()

    def picky(placements: Mapping[str, Any]) -> Reference | None:
        return Reference(GONE) if any(row.tobytes() == fatal for row in placements["device"]) else None

    _, m = evaluated([FakeWorker(*[picky] * 20), FakeWorker(*[picky] * 20)], 5)
    check(m, 5, failed=[2])
    assert m.error[2] == f"{DEATHS} processes that evaluated it died"


def test_a_hanging_evaluation_counts_as_failed(fake: FakeRay) -> None:
    worker = FakeWorker(hangs, hangs)
    _, m = evaluated([worker], 3, timeout_s=0.05)
    check(m, 3, failed=[0, 1])
    assert m.error[0] == "no answer within 0.05 s"
    assert fake.killed == [worker, worker]
    assert worker.asked_to_open == 3


def test_a_schedule_is_made_by_another_process_if_one_dies_or_hangs(fake: FakeRay) -> None:
    worker, answers = FakeWorker(), [Reference(None, NEVER), Reference(GONE), Reference("the schedule")]
    worker.schedule = SimpleNamespace(remote=lambda problems, number, placements: answers.pop(0))
    found = Fleet([worker], PROBLEMS, [PROBLEM.cluster.size], timeout_s=0.02)
    assert found.schedule(0, batch(1)) == "the schedule"
    assert fake.killed == [worker]


def test_of_a_piece_that_hangs_only_the_placement_that_hangs_fails(fake: FakeRay) -> None:
    worker = FakeWorker()
    found, _ = evaluated([worker], 4)
    bad = batch(8).device[5].tobytes()

    def stuck(placements: Mapping[str, Any]) -> Reference | None:
        return hangs(placements) if any(row.tobytes() == bad for row in placements["device"]) else None

    worker.script, found.timeout_s = [stuck] * 9, 0.02
    check(found.evaluate(0, batch(8)), 8, failed=[5])


def test_what_a_plugin_raises_is_reported_as_the_plugins(fake: FakeRay) -> None:
    def raises(placements: Mapping[str, Any]) -> Reference:
        try:
            raise PlacekitError("the disk is full", "buy another one")
        except PlacekitError as e:
            return Reference(raised(e))

    workers = [FakeWorker(raises), FakeWorker(slow)]
    found = Fleet(workers, PROBLEMS, [2])
    with pytest.raises(BackendError, match=r"^the disk is full \(in process \d+ on \S+\)\n") as caught:
        found.evaluate(0, batch(2))
    assert caught.value.hint == "buy another one"
    check(found.evaluate(0, batch(6)), 6)


def test_an_exception_of_no_plugin_says_where_it_was_raised() -> None:
    try:
        raise ZeroDivisionError("division by zero")
    except ZeroDivisionError as e:
        answer = raised(e)
    assert answer["raised"] == "ZeroDivisionError: division by zero"
    assert "test_ray_fleet.py" in answer["hint"]


def test_one_that_is_being_restarted_is_asked_again(fake: FakeRay) -> None:
    worker = FakeWorker(opens=[AWAY] * (DEATHS + 1))
    check(evaluated([worker], 3)[1], 3)
    assert worker.asked_to_open == DEATHS + 2


def test_without_any_worker_left_it_ends(fake: FakeRay) -> None:
    gone = [GONE] * DEATHS
    workers = [FakeWorker(opens=gone), FakeWorker(dies, opens=[{}, *gone])]
    found = Fleet(workers, PROBLEMS, [2])
    with pytest.raises(BackendError, match="no worker of the Ray cluster is left"):
        found.evaluate(0, batch(3))
    assert [w.asked_to_open for w in workers] == [DEATHS, DEATHS + 1]


def test_it_goes_on_with_the_workers_that_are_left(fake: FakeRay) -> None:
    check(evaluated([FakeWorker(opens=[GONE] * DEATHS), FakeWorker()], 9)[1], 9)
