"""Divides batches of placements among workers, and replaces workers that die or hang."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    WorkerCrashedError,
)

from placekit_core import BackendError, Measurements, Placements, Schedule
from placekit_ray.cluster import check_alive
from placekit_ray.wire import measurements_from, placements_as
from placekit_ray.worker import failed

LOST = (
    RayActorError, WorkerCrashedError, ObjectLostError, NodeDiedError, OutOfMemoryError, LocalRayletDiedError,
)  # fmt: skip
"""Failures of Ray itself: a process or a machine is gone. Exceptions of plugins are not among them."""
PIECE_S = 0.25
"""Seconds that a call to a worker should take: few, so that all workers end together, but many beside the call's overhead."""
DEATHS = 3
"""A placement counts as failed after this many processes died while evaluating it; a worker, after as many while opening."""
LOST_S, START_S = 120.0, 1200.0
"""Seconds to wait for a worker before evaluating fails; `START_S` at the start, when workers may build programs."""
_PAUSE_S = 0.5  # between two calls to a worker that is being restarted
_POLL_S = 0.2  # how long to wait for answers before looking for workers that hang


@dataclass
class _Piece:
    """Consecutive placements of a batch, and how many processes have died while evaluating them."""

    begin: int
    end: int
    deaths: int = 0

    def __len__(self) -> int:
        return self.end - self.begin


@dataclass
class _Batch:
    """A batch that is being evaluated.

    Attributes:
        waiting: pieces that no worker has begun.
        busy: by reference to the answer: worker, piece, and when the worker began.
        answers: measurements by the first row of their piece.
    """

    waiting: deque[_Piece]
    busy: dict[Any, tuple[Any, _Piece, float]] = field(default_factory=dict)
    answers: dict[int, Measurements] = field(default_factory=dict)

    def repeat(self, piece: _Piece, devices: int) -> None:
        """Evaluate a piece again, one placement at a time, after its process died."""
        deaths = piece.deaths + 1
        if len(piece) == 1 and deaths >= DEATHS:
            self.answers[piece.begin] = _failed_one(devices, f"{DEATHS} processes that evaluated it died")
        else:
            self.waiting.extendleft(_Piece(i, i + 1, deaths) for i in reversed(range(piece.begin, piece.end)))


class Fleet:
    """Workers with the same problems. `evaluate` gives each the next piece of a batch as soon as it is free.

    Args:
        workers: handles of the Ray actors `Worker`, which Ray restarts if they die.
        problems: references to the data for `Worker.open`.
        devices: number of devices of each problem.
        timeout_s: seconds after which a placement counts as failed; None: no limit.
    """

    def __init__(
        self,
        workers: Sequence[Any],
        problems: Sequence[Any] = (),
        devices: Sequence[int] = (),
        timeout_s: float | None = None,
    ) -> None:
        self.workers, self.problems, self.devices = workers, list(problems), list(devices)
        self.timeout_s = timeout_s
        self._idle: list[Any] = []
        self._opening: dict[Any, tuple[Any, float]] = {}  # by worker: reference to its answer, and when to check for it
        self._deaths: dict[Any, int] = {}  # by worker, while it opens the problems
        self._begun = False
        self._each_s = math.nan  # moving average of the seconds of an evaluation
        if self.problems:
            for worker in workers:
                self._open(worker)

    def add(self, problem: Any, devices: int) -> None:
        """Let all workers open another problem, and wait for them."""
        self.problems.append(problem)
        self.devices.append(devices)
        self._idle.clear()
        for worker in self.workers:
            self._open(worker)
        self.wait()

    def wait(self) -> None:
        """Wait until all workers are ready; after `LOST_S`, one is enough. Raises BackendError if none is ready."""
        began = time.monotonic()
        while self._opening and not (self._idle and time.monotonic() - began > LOST_S):
            self._collect_ready(block=not self._idle)
            if self._opening:
                ray.wait([reference for reference, _ in self._opening.values()], timeout=_POLL_S)

    def evaluate(self, number: int, placements: Placements) -> Measurements:
        """Measure placements of problem `number`; returns the measurements in their order.

        Raises BackendError if a worker raised an exception, or if no worker is left.
        """
        size, devices = len(placements), self.devices[number]
        if not size:
            return Measurements(np.empty(0), np.empty((0, devices)), np.empty(0, np.bool_), ())
        batch = _Batch(deque(self._pieces(size)))
        while batch.waiting or batch.busy:
            self._collect_ready(block=not batch.busy)
            while batch.waiting and self._idle:
                piece, worker = batch.waiting.popleft(), self._idle.pop()
                part = placements_as(placements[piece.begin : piece.end])
                reference = worker.evaluate.remote(self.problems, number, part)
                batch.busy[reference] = worker, piece, time.monotonic()
            self._collect(batch, devices)
            self._end_hung(batch, devices)
        return Measurements.join([batch.answers[begin] for begin in sorted(batch.answers)])

    def schedule(self, number: int, placement: Placements) -> Schedule:
        """The schedule of one placement of problem `number`, from any worker. Raises BackendError if all attempts fail."""
        for _ in range(DEATHS):
            self._collect_ready(block=True)
            worker = self._idle.pop()
            try:
                call = worker.schedule.remote(self.problems, number, placements_as(placement))
                answer = ray.get(call, timeout=self.timeout_s)
            except (*LOST, GetTimeoutError) as e:
                self._replace(worker, hung=isinstance(e, GetTimeoutError))
                continue
            self._idle.append(worker)
            if error := failed(answer):
                raise error
            found: Schedule = answer
            return found
        raise BackendError(f"{DEATHS} processes died while they made a schedule, one after the other")

    def _pieces(self, size: int) -> list[_Piece]:
        """Divide a batch into equal pieces of about `PIECE_S`; of a long batch, their number is a multiple of the workers."""
        workers = max(len(self.workers), 1)
        most = 1 if math.isnan(self._each_s) else max(1, round(PIECE_S / max(self._each_s, 1e-9)))
        count = min(size, workers * math.ceil(size / (workers * most)))
        ends = [size * (i + 1) // count for i in range(count)]
        return [_Piece(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]

    def _collect(self, batch: _Batch, devices: int) -> None:
        """Wait a moment for answers, and store them."""
        done, _ = ray.wait(list(batch.busy), timeout=_POLL_S) if batch.busy else ([], [])
        for reference in done:
            worker, piece, began = batch.busy.pop(reference)
            try:
                answer = ray.get(reference)
            except LOST:
                self._replace(worker)
                batch.repeat(piece, devices)
                continue
            self._idle.append(worker)
            if error := failed(answer):
                for other, _, _ in batch.busy.values():
                    self._open(other)  # it answers when the worker has finished its piece
                raise error
            batch.answers[piece.begin] = measurements_from(answer)
            each_s = (time.monotonic() - began) / len(piece)
            self._each_s = each_s if math.isnan(self._each_s) else 0.5 * (self._each_s + each_s)

    def _end_hung(self, batch: _Batch, devices: int) -> None:
        """End workers that have not answered in time; Ray starts new ones in their place."""
        if self.timeout_s is None:
            return
        now = time.monotonic()
        for reference, (worker, piece, began) in list(batch.busy.items()):
            if now - began < self.timeout_s * len(piece):
                continue
            del batch.busy[reference]
            self._replace(worker, hung=True)
            if len(piece) == 1:
                batch.answers[piece.begin] = _failed_one(devices, f"no answer within {self.timeout_s:g} s")
            else:
                batch.repeat(piece, devices)

    def _replace(self, worker: Any, hung: bool = False) -> None:
        """Open the problems in the process that Ray starts in place of a dead or hanging worker."""
        if hung:
            ray.kill(worker, no_restart=False)
        self._open(worker, _PAUSE_S)

    def _open(self, worker: Any, pause_s: float = 0.0) -> None:
        """Ask a worker to open the problems, and check for its answer after `pause_s`."""
        self._opening[worker] = worker.open.remote(self.problems), time.monotonic() + pause_s

    def _collect_ready(self, block: bool) -> None:
        """Collect workers that have become ready; with `block`, wait until one is idle.

        Raises BackendError if no worker is left.
        """
        began, why = time.monotonic(), "no machine has room for them"
        patience_s = LOST_S if self._begun else START_S
        while True:
            check_alive()
            for worker, (reference, at) in list(self._opening.items()):
                if at > time.monotonic() or not ray.wait([reference], timeout=0)[0]:
                    continue
                del self._opening[worker]
                try:
                    answer = ray.get(reference)
                except LOST as e:  # Ray is restarting it, or it died again
                    why = str(e).splitlines()[0]
                    self._deaths[worker] = self._deaths.get(worker, 0) + (not isinstance(e, ActorUnavailableError))
                    if self._deaths[worker] < DEATHS:
                        self._open(worker, _PAUSE_S)
                    continue
                if error := failed(answer):
                    raise error
                self._deaths[worker] = 0
                self._idle.append(worker)
                self._begun = True
            if not block or self._idle:
                return
            waited_s = time.monotonic() - began
            if not self._opening or waited_s > patience_s:
                raise BackendError(
                    f"no worker of the Ray cluster is {'left' if self._begun else 'ready'} after {waited_s:.0f} s: {why}",
                    "`ray status` shows what the cluster has, and what is in use",
                )
            ray.wait([reference for reference, _ in self._opening.values()], timeout=_POLL_S)


def _failed_one(devices: int, why: str) -> Measurements:
    """The measurement of a placement that failed."""
    none = np.array([math.nan])
    return Measurements(none, np.full((1, devices), math.nan), np.array([False]), (why,), none)
