"""Workers that evaluate a batch of placements together, and what happens when some of them die or hang."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from ray.exceptions import (
    ActorUnavailableError,
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    WorkerCrashedError,
)

from placekit_core import BackendError, Measurements, Placements
from placekit_ray.wire import measurements_from, placements_as
from placekit_ray.worker import UNREADY, failed

LOST = (
    RayActorError, WorkerCrashedError, ObjectLostError, NodeDiedError, OutOfMemoryError, LocalRayletDiedError,
)  # fmt: skip
"""Failures of Ray itself: a process or a machine is gone. An exception of a plugin is never among them."""
PIECE_S = 0.25
"""How long one call to a worker should take: short enough that all of them end together, long beside the call itself."""
DEATHS = 3
"""A placement whose evaluation ended so many processes counts as failed."""
STARTS, LOST_S, START_S = 20, 120.0, 1200.0
"""A worker that died so often in a row before it was ready is given up; so are all, if none is there for `LOST_S` seconds, or
`START_S` at first, when programs may have to be built."""
_PAUSE_S = 0.5  # between two looks at a worker that is being restarted
_LOOK_S = 0.2  # how long to wait for answers before looking for workers that hang


@dataclass
class Faults:
    """What went wrong so far.

    Attributes:
        lost: processes that died, or were ended because they hung.
        repeated: evaluations that were made again, because their process died before it answered.
        hung: evaluations that gave no answer in time.
    """

    lost: int = 0
    repeated: int = 0
    hung: int = 0

    def add(self, other: Mapping[str, int]) -> None:
        """Add those of another process."""
        for name, count in other.items():
            setattr(self, name, getattr(self, name) + count)


@dataclass
class _Piece:
    """Consecutive placements of a batch, and how many processes have died over them."""

    begin: int
    end: int
    deaths: int = 0


@dataclass
class Fleet:
    """Workers with the same problems. `evaluate` gives each the next piece of a batch as soon as it is free.

    Attributes:
        workers: handles of the Ray actors `Worker`; Ray restarts those that die.
        about: what they are told when they start: a reference to the argument of `Worker.ready`.
        devices: number of devices of each problem.
        timeout_s: seconds after which a placement counts as failed; None: no limit.
        queue_s: how long a call may have to wait for those of another fleet with the same workers, seconds.
        faults: what went wrong so far.
    """

    workers: Sequence[Any]
    about: Any
    devices: list[int]
    timeout_s: float | None = None
    queue_s: float = 0.0
    faults: Faults = field(default_factory=Faults)
    _idle: list[Any] = field(default_factory=list)
    _waking: dict[Any, tuple[Any, float]] = field(default_factory=dict)  # its answer, and when to look at it
    _failures: dict[Any, int] = field(default_factory=dict)
    _begun: bool = False
    _each_s: float = math.nan  # seconds of one evaluation, lately

    def __post_init__(self) -> None:
        if self.devices:
            for worker in self.workers:
                self._wake(worker, 0.0)

    def tell(self, about: Any, devices: int) -> None:
        """Have all workers open one more problem, the last one in `about`, for so many devices; wait until they have."""
        self.about = about
        self.devices.append(devices)
        self._idle.clear()
        for worker in self.workers:
            self._wake(worker, 0.0)
        self.wait()

    def evaluate(self, number: int, placements: Placements) -> Measurements:
        """The measurements of placements of problem `number`, in their order.

        Raises BackendError if a worker raised an exception, or if no worker is left.
        """
        size = len(placements)
        if not size:
            return Measurements(np.empty(0), np.empty((0, self.devices[number])), np.empty(0, np.bool_), ())
        waiting = deque(self._pieces(size))
        answers: dict[int, Measurements] = {}
        busy: dict[Any, tuple[Any, _Piece, float]] = {}  # by reference: worker, piece, when it began
        while waiting or busy:
            self._woken(block=not busy and not self._idle)
            while waiting and self._idle:
                piece, worker = waiting.popleft(), self._idle.pop()
                part = placements_as(placements[piece.begin : piece.end])
                busy[worker.evaluate.remote(number, part)] = worker, piece, time.monotonic()
            done, _ = ray.wait(list(busy), timeout=_LOOK_S) if busy else ([], [])
            for reference in done:
                worker, piece, began = busy.pop(reference)
                answer = _answer(reference)
                if answer is None or answer is UNREADY:
                    self._died(worker)
                    if answer is UNREADY:  # the piece has ended no process, and nothing was evaluated
                        waiting.appendleft(piece)
                    else:
                        why = f"{DEATHS} processes that evaluated it died"
                        self._again(piece, waiting, answers, self.devices[number], why)
                    continue
                if error := failed(answer):
                    self._idle.append(worker)
                    self._drain(busy)
                    raise error
                self._idle.append(worker)
                answers[piece.begin] = measurements_from(answer)
                each_s = (time.monotonic() - began) / (piece.end - piece.begin)
                self._each_s = each_s if math.isnan(self._each_s) else 0.5 * (self._each_s + each_s)
            self._end_hung(busy, waiting, answers, self.devices[number])
        return Measurements.join([answers[begin] for begin in sorted(answers)])

    def wait(self) -> None:
        """Wait until all workers are ready, or gone for good; but not long, if some are. Raises BackendError if none is left."""
        began = time.monotonic()
        while self._waking and not (self._idle and time.monotonic() - began > LOST_S):
            self._woken(block=not self._idle)
            if self._waking:
                ray.wait([reference for reference, _ in self._waking.values()], timeout=_LOOK_S)

    def ask(self, call: Callable[[Any], Any]) -> Any:
        """The answer of any worker to `call(worker)`, a reference. Raises BackendError if it is an exception."""
        for _ in range(DEATHS):
            self._woken(block=not self._idle)
            worker = self._idle[-1]
            reference = call(worker)
            hangs = self.timeout_s is not None and not ray.wait([reference], timeout=self.timeout_s + self.queue_s)[0]
            if hangs:
                ray.kill(worker, no_restart=False)
            answer = None if hangs else _answer(reference)
            if answer is None or answer is UNREADY:
                self._died(worker)
                continue
            if error := failed(answer):
                raise error
            return answer
        raise BackendError(f"{DEATHS} processes died over it, one after the other")

    def _pieces(self, size: int) -> list[_Piece]:
        """The batch in equal pieces of about `PIECE_S`; their number is a multiple of the workers', where it is long enough."""
        workers = max(len(self.workers), 1)
        most = 1 if math.isnan(self._each_s) else max(1, round(PIECE_S / max(self._each_s, 1e-9)))
        count = min(size, workers * math.ceil(size / (workers * most)))
        ends = [size * (i + 1) // count for i in range(count)]
        return [_Piece(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]

    def _wake(self, worker: Any, pause_s: float) -> None:
        """Ask a worker to get ready, and look for its answer after `pause_s`."""
        self._waking[worker] = worker.ready.remote(self.about), time.monotonic() + pause_s

    def _woken(self, block: bool) -> None:
        """Take in the workers that have become ready; with `block`, wait for one of them. Raises BackendError if none is left."""
        began, gone = time.monotonic(), "no machine has room for them"
        while True:
            for worker, (reference, at) in list(self._waking.items()):
                if at > time.monotonic() or not ray.wait([reference], timeout=0)[0]:
                    continue
                del self._waking[worker]
                try:
                    answer = ray.get(reference)
                except LOST as e:  # Ray is restarting it, or it died again
                    gone = str(e).splitlines()[0]
                    if not isinstance(e, ActorUnavailableError):
                        self.faults.lost += 1
                        self._failures[worker] = self._failures.get(worker, 0) + 1
                    if self._failures.get(worker, 0) < STARTS:
                        self._wake(worker, _PAUSE_S)
                    continue
                if error := failed(answer):
                    raise error
                self._failures[worker] = 0
                self._idle.append(worker)
                self._begun = True
            if not block or self._idle:
                return
            waited_s = time.monotonic() - began
            patience_s = START_S if self.queue_s or not self._begun else LOST_S  # a shared worker may be busy, not lost
            if not self._waking or waited_s > patience_s:
                raise BackendError(
                    f"no worker of the Ray cluster is {'left' if self._begun else 'ready'} after {waited_s:.0f} s: {gone}",
                    "`ray status` says what the cluster has, and what is in use",
                )
            ray.wait([reference for reference, _ in self._waking.values()], timeout=_LOOK_S)

    def _died(self, worker: Any) -> None:
        """A worker died; those that are idle may have died with it, as a machine does: ask them whether they are ready."""
        self.faults.lost += 1
        self._wake(worker, _PAUSE_S)
        for other in self._idle:
            if other is not worker:
                self._wake(other, 0.0)
        self._idle.clear()

    def _again(
        self, piece: _Piece, waiting: deque[_Piece], answers: dict[int, Measurements], devices: int, why: str
    ) -> None:
        """Put a piece back, in single placements; one that has had its chances counts as failed."""
        deaths = piece.deaths + 1
        if piece.end - piece.begin == 1 and deaths >= DEATHS:
            answers[piece.begin] = _failed_one(devices, why)
            return
        self.faults.repeated += piece.end - piece.begin
        waiting.extendleft(_Piece(i, i + 1, deaths) for i in reversed(range(piece.begin, piece.end)))

    def _end_hung(
        self,
        busy: dict[Any, tuple[Any, _Piece, float]],
        waiting: deque[_Piece],
        answers: dict[int, Measurements],
        devices: int,
    ) -> None:
        """End the workers that have not answered in time; Ray starts new ones in their place."""
        if self.timeout_s is None:
            return
        now = time.monotonic()
        for reference, (worker, piece, began) in list(busy.items()):
            length = piece.end - piece.begin
            if now - began < self.timeout_s * length + self.queue_s:
                continue
            del busy[reference]
            ray.kill(worker, no_restart=False)
            self.faults.lost += 1
            self._wake(worker, _PAUSE_S)
            if length == 1:
                self.faults.hung += 1
                answers[piece.begin] = _failed_one(devices, f"no answer within {self.timeout_s:g} s")
            else:
                self._again(piece, waiting, answers, devices, "")

    def _drain(self, busy: dict[Any, tuple[Any, _Piece, float]]) -> None:
        """Wait for the other workers, so that the next batch finds them free."""
        for reference, (worker, _, _) in busy.items():
            try:
                ray.get(reference, timeout=self.timeout_s)
                self._idle.append(worker)
            except (*LOST, ray.exceptions.GetTimeoutError):
                self._wake(worker, _PAUSE_S)


def _answer(reference: Any) -> Any:
    """The answer of a worker; None if its process died, UNREADY if it did before, and another one was started in its place."""
    try:
        answer = ray.get(reference)
    except LOST:
        return None
    return UNREADY if isinstance(answer, dict) and answer.keys() == UNREADY.keys() else answer


def _failed_one(devices: int, why: str) -> Measurements:
    """The measurement of a placement that has none."""
    none = np.array([math.nan])
    return Measurements(none, np.full((1, devices), math.nan), np.array([False]), (why,), none)
