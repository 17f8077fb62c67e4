"""The Evaluator: the only way from a policy or trainer to a backend.

It counts against the budget, caches equal placements where the backend is deterministic (a cached answer still counts, so
that budgets compare), keeps the best placement that fits (measured again where values vary), and writes the history.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placekit_core.errors import BudgetExhausted
from placekit_core.interfaces import Session
from placekit_core.measurement import Kernel, Measurements
from placekit_core.placement import Placement, Placements
from placekit_core.problem import Problem

HISTORY = ("evaluations", "seconds", "value_s", "mean_s", "best_s")
TURNS = 4
"""How often a placement must be faster than the best, where values vary, to become the best."""
_CACHE_ENTRIES = 200_000
_CHUNK_S = 0.25  # how long one call to the backend may take before budget and progress are looked at again


class Ledger:
    """A budget and what was used of it; None is unlimited. Evaluators of one family of programs share a ledger."""

    def __init__(self, evaluations: int | None = None, seconds: float | None = None) -> None:
        self.limit, self.limit_s = evaluations, seconds
        self.evaluations = 0
        self._used_s = 0.0
        self._since: float | None = None  # None while the clock stands
        self._new = True  # neither started nor stopped yet

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of searching; the clock runs from `start` to `stop`."""
        return self._used_s + (0.0 if self._since is None else time.perf_counter() - self._since)

    def start(self) -> None:
        """Let the clock run (what was used before stays used)."""
        self._new = False
        if self._since is None:
            self._since = time.perf_counter()

    def _start_if_new(self) -> None:
        if self._new:
            self.start()

    def stop(self) -> None:
        """Let the clock stand."""
        self._used_s, self._since, self._new = self.seconds, None, False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let the clock stand meanwhile: for what is not searching, such as logging."""
        ran = self._since is not None
        if ran:
            self.stop()
        try:
            yield
        finally:
            if ran:
                self.start()

    @contextlib.contextmanager
    def limited(self, evaluations: int) -> Iterator[None]:
        """Give a budget without a limit this one for a while."""
        limit, self.limit = self.limit, evaluations if self.limit is None else self.limit
        try:
            yield
        finally:
            self.limit = limit

    @contextlib.contextmanager
    def reserved(self, evaluations: int) -> Iterator[None]:
        """Keep some of the evaluations for later."""
        limit = self.limit
        if limit is not None:
            self.limit = max(limit - evaluations, 0)
        try:
            yield
        finally:
            self.limit = limit

    @property
    def remaining(self) -> float:
        """Evaluations left; infinite without a limit; 0 once the seconds are used up. Asking starts the clock."""
        self._start_if_new()
        if self.limit_s is not None and self.seconds >= self.limit_s:
            return 0
        return math.inf if self.limit is None else self.limit - self.evaluations

    @property
    def progress(self) -> float:
        """Share of the budget that is used, in [0, 1]; deterministic where only evaluations are limited."""
        used = 0.0 if self.limit is None else self.evaluations / max(self.limit, 1)
        if self.limit_s is not None:
            used = max(used, self.seconds / self.limit_s)
        return min(used, 1.0)

    def state(self) -> dict[str, Any]:
        """What `restore` needs."""
        return {"evaluations": self.evaluations, "seconds": self.seconds}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`."""
        self.evaluations, self._used_s = int(state["evaluations"]), float(state["seconds"])
        self._since, self._new = None, True


@dataclass(frozen=True, eq=False)
class Best:
    """The best placement that fits, and what was measured of it."""

    placement: Placement
    value_s: float
    peak_bytes: NDArray[np.float64]
    spread_s: float | None
    evaluation: int
    again: tuple[float, ...] = ()
    """Where values vary: those of all turns against others, whose median is `value_s`."""


class Evaluator:
    """Evaluates placements of one problem on one backend session, within a budget.

    `objective` is that of the backend (`Backend.objective`); None where nobody said.
    """

    def __init__(
        self,
        problem: Problem,
        session: Session,
        ledger: Ledger | None = None,
        *,
        deterministic: bool = True,
        failing_signal_s: float | None = None,
        on_row: Callable[[Mapping[str, float]], None] | None = None,
        objective: str | None = None,
    ) -> None:
        self.problem, self.session = problem, session
        self.ledger = ledger or Ledger()
        self.deterministic, self.objective = deterministic, objective
        self.failing_signal_s = failing_signal_s if failing_signal_s is not None else default_failing_signal_s(problem)
        self.on_row = on_row
        self.evaluations = 0
        self.best: Best | None = None
        self.proven_s: float | None = None
        self.notes: list[str] = []
        self.least_over_bytes = math.inf
        self.last_error: str | None = None
        self.history: list[tuple[float, ...]] = []
        self._cache: dict[bytes, Measurements] = {}
        self._rate = 0.0  # evaluations per second of the last calls, only to size calls to the backend

    @property
    def remaining(self) -> float:
        """Evaluations left in the budget, maybe infinite; 0 once its seconds are used up."""
        return self.ledger.remaining

    @property
    def progress(self) -> float:
        """Share of the budget that is used, in [0, 1]."""
        return self.ledger.progress

    def __call__(self, placements: Placements) -> Measurements:
        """Evaluate a batch of b placements.

        Raises BudgetExhausted when the budget ends within the batch: what was evaluated until then is recorded.
        Raises PlacementError if a placement is not one of this problem.
        """
        self.problem.check(placements)
        if len(placements) == 0:
            raise ValueError("there is nothing to evaluate in an empty batch")
        parts: list[Measurements] = []
        done = 0
        while done < len(placements):
            left = self.remaining
            if left <= 0:
                self._record(placements, parts)
                raise BudgetExhausted(self)
            size = max(1, int(self._rate * _CHUNK_S))
            chunk = placements[done : done + int(min(left, size, len(placements) - done))]
            start = time.perf_counter()
            parts.append(self._measure(chunk))
            # at most double: the first evaluations of a measuring backend may each take seconds
            self._rate = min(len(chunk) / max(time.perf_counter() - start, 1e-9), 2 * len(chunk) / _CHUNK_S)
            done += len(chunk)
            self._count(len(chunk))
        self._record(placements, parts)
        return Measurements.join(parts)

    def scores(self, measurements: Measurements) -> NDArray[np.float64]:
        """[b] the objective in seconds, or the failing signal where a placement does not fit or failed.

        The failing signal is a large constant (Mirhoseini et al. 2017, §3.2): option `failing_signal_s`.
        """
        return np.where(measurements.fits, measurements.value_s, self.failing_signal_s)

    def kernel(self) -> Kernel | None:
        """The backend's compiled evaluation, or None. Whoever uses it calls `charge`."""
        return self.session.kernel()

    def charge(self, evaluations: int, best: Placements, mean_s: float = math.nan) -> None:
        """Count `evaluations` that were made through `kernel()`, and record the best placements among them.

        `best` is measured once more by the backend itself, which is not counted.
        """
        if self.ledger.limit is not None and self.ledger.evaluations + evaluations > self.ledger.limit:
            raise ValueError(f"{evaluations} evaluations charged with {self.remaining} left")
        self._count(evaluations)
        self._record(self.problem.check(best), [self.session.evaluate(best)], mean_s)

    def prove(self, bound_s: float) -> None:
        """Record a lower bound on the objective, seconds, that a policy has proven; the run reports the highest."""
        self.proven_s = bound_s if self.proven_s is None else max(self.proven_s, bound_s)

    def note(self, text: str) -> None:
        """Tell the user, in one plain sentence, what was done beyond what was asked; the same sentence is kept once."""
        if text not in self.notes:
            self.notes.append(text)

    def _count(self, evaluations: int) -> None:
        self.evaluations += evaluations
        self.ledger.evaluations += evaluations

    def _measure(self, batch: Placements) -> Measurements:
        if not self.deterministic:
            return self.session.evaluate(batch)
        keys = [_key(batch, row) for row in range(len(batch))]
        new = [row for row, key in enumerate(keys) if key not in self._cache and keys.index(key) == row]
        if len(new) == len(keys):
            fresh = self.session.evaluate(batch)
        elif new:
            priority = None if batch.priority is None else batch.priority[new]
            fresh = self.session.evaluate(Placements(batch.device[new], priority))
        local = {keys[row]: fresh.rows(slice(i, i + 1)) for i, row in enumerate(new)}
        answers = [local[key] if key in local else self._cache[key] for key in keys]
        if len(self._cache) + len(new) > _CACHE_ENTRIES:
            self._cache.clear()
        self._cache.update(local)
        return Measurements.join(answers)

    def _record(self, placements: Placements, parts: list[Measurements], mean_s: float | None = None) -> None:
        if not parts:
            return
        m = Measurements.join(parts)
        value = np.where(m.fits & np.isfinite(m.value_s), m.value_s, np.inf)
        row = int(np.argmin(value))
        over = np.maximum(m.peak_bytes - self.problem.cluster.memory_bytes, 0).max(axis=1)
        self.least_over_bytes = min(self.least_over_bytes, float(np.nanmin(over, initial=np.inf)))
        self.last_error = next((e for e in m.error if e), self.last_error)
        if np.isfinite(value[row]) and (self.best is None or value[row] < self.best.value_s):
            device, priority = placements.one(row)
            placement = self.problem.placement(device.copy(), None if priority is None else priority.copy())
            self._challenge(placement, m.rows(slice(row, row + 1)))
        mean = float(np.mean(self.scores(m))) if mean_s is None else mean_s
        best_s = self.best.value_s if self.best else math.nan
        self.history.append((self.evaluations, self.ledger.seconds, float(value[row]), mean, best_s))
        if self.on_row:
            with self.ledger.paused():
                self.on_row(dict(zip(HISTORY, self.history[-1], strict=True)))

    def _challenge(self, placement: Placement, m: Measurements) -> None:
        """Make a placement the best, whose value is below that of the best so far.

        Where values vary, the lowest of many is mostly luck. There the two are measured again in turns, for a machine has
        slow minutes, and the new one must be faster in each of TURNS. These measurements are not counted.
        """
        best = self.best
        if best is not None and not self.deterministic:
            if placement.same_as(best.placement):
                return
            held, new = list(best.again), list[Measurements]()
            while len(new) < TURNS:
                ours, theirs = (self.session.evaluate(each.batch()) for each in (best.placement, placement))
                value_s = float(ours.value_s[0])
                if ours.fits[0] and math.isfinite(value_s):
                    held.append(value_s)
                else:
                    value_s = math.inf
                new.append(theirs)
                if not (theirs.fits[0] and float(theirs.value_s[0]) < value_s):
                    value_s = float(np.median(held)) if held else best.value_s
                    self.best = replace(best, value_s=value_s, again=tuple(held))
                    return
            m = Measurements.join(new)
        spread = None if m.spread_s is None else float(m.spread_s.mean())
        again = () if best is None or self.deterministic else tuple(m.value_s.tolist())
        value_s = float(np.median(m.value_s))
        self.best = Best(placement, value_s, m.peak_bytes.max(axis=0), spread, self.evaluations, again)

    def state(self) -> dict[str, Any]:
        """What `restore` needs to go on from here."""
        best = self.best
        state: dict[str, Any] = {
            "evaluations": self.evaluations,
            "ledger": self.ledger.state(),
            "least_over_bytes": self.least_over_bytes,
            "proven_s": self.proven_s,
            "notes": list(self.notes),
            "history": np.asarray(self.history, np.float64).reshape(-1, len(HISTORY)),
        }
        if best is not None:
            state["best"] = {
                "device": best.placement.device,
                "value_s": best.value_s,
                "peak_bytes": best.peak_bytes,
                "evaluation": best.evaluation,
            }
            if best.placement.priority is not None:
                state["best"]["priority"] = best.placement.priority
            if best.spread_s is not None:
                state["best"]["spread_s"] = best.spread_s
            if best.again:
                state["best"]["again"] = np.array(best.again)
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`."""
        self.evaluations = int(state["evaluations"])
        self.ledger.restore(state["ledger"])
        self.least_over_bytes = float(state["least_over_bytes"])
        self.proven_s = state["proven_s"]
        self.notes = list(state["notes"])
        self.history = [tuple(row) for row in np.asarray(state["history"]).tolist()]
        best = state.get("best")
        if best is not None:
            placement = self.problem.placement(best["device"], best.get("priority"))
            again = tuple(np.asarray(best.get("again", ()), np.float64).tolist())
            value_s, evaluation = float(best["value_s"]), int(best["evaluation"])
            self.best = Best(placement, value_s, best["peak_bytes"], best.get("spread_s"), evaluation, again)


def default_failing_signal_s(problem: Problem) -> float:
    """Ten times the sum of all operations on their slowest device, plus a second: well above any sensible placement."""
    slowest = np.where(problem.op_allowed, problem.op_s, 0.0).max(axis=1).sum()
    return 10.0 * float(slowest) + 1.0


def _key(batch: Placements, row: int) -> bytes:
    digest = hashlib.blake2b(batch.device[row].tobytes(), digest_size=16)
    if batch.priority is not None:
        digest.update(batch.priority[row].tobytes())
    return digest.digest()
