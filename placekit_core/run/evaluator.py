"""The evaluator of a run: the only way from a policy or trainer to a backend.

It counts against the budget, and keeps the history and the best placement that fits (measured again where values vary).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from placekit_core.contracts.errors import BudgetExhausted, PlacementError, PluginError
from placekit_core.contracts.ledger import HISTORY, Ledger
from placekit_core.contracts.measurement import Measurements
from placekit_core.contracts.placement import Placement, Placements
from placekit_core.contracts.problem import Problem
from placekit_core.contracts.task import Best, Evaluator, Session

TURNS = 4
"""Where values vary, a placement must be faster than the best this many times in a row to become the best."""
_CHUNK_S = 0.25  # how long one call to the backend should take, so that budget and progress are checked in between


class BudgetedEvaluator(Evaluator):
    """Evaluates placements of one problem on one backend session, within a budget."""

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
        backend: str = "",
    ) -> None:
        self.problem, self.session = problem, session
        self.ledger = ledger or Ledger()
        self.deterministic, self.objective, self.backend = deterministic, objective, backend
        default_s = default_failing_signal_s(problem, session.repeats)
        self.failing_signal_s = default_s if failing_signal_s is None else failing_signal_s
        self.on_row = on_row
        self.evaluations = 0
        self.best: Best | None = None
        self.proven_s: float | None = None
        self.notes: list[str] = []
        self.least_over_bytes = math.inf
        self.last_error: str | None = None
        self._rows, self._made = np.zeros((64, len(HISTORY))), 0
        self._logged: dict[str, list[float]] = {}  # each column that `log` named, with a number for each row
        self._waiting: dict[str, float] = {}  # what `log` got since the last row
        self._rate = 0.0  # evaluations per second of the last call; sets the size of the next call to the backend

    def __call__(self, placements: Placements) -> Measurements:
        given: Any = placements
        if not isinstance(given, Placements):
            what = f"evaluate takes a batch, Placements, and was given a {type(given).__name__}"
            raise PlacementError(
                what, "placement.batch() is a batch of one; Placements.of([...]) one of rows of devices"
            )
        self.problem.check(placements)
        if len(placements) == 0:
            raise PlacementError("there is nothing to evaluate in an empty batch")
        parts: list[Measurements] = []
        done = 0
        while done < len(placements):
            left = self.remaining
            if left <= 0:
                self._record(placements, parts)
                raise BudgetExhausted(self)
            size = max(self.session.at_once, int(self._rate * _CHUNK_S))
            chunk = placements[done : done + int(min(left, size, len(placements) - done))]
            start = time.perf_counter()
            parts.append(found := self.session.evaluate(chunk))
            if len(found) != len(chunk):
                raise PluginError(
                    f"backend {self.backend!r} returned {len(found)} measurements for {len(chunk)} placements"
                )
            # at most double: the first evaluations of a measuring backend may each take seconds
            self._rate = min(len(chunk) / max(time.perf_counter() - start, 1e-9), 2 * len(chunk) / _CHUNK_S)
            done += len(chunk)
            self._count(len(chunk))
        self._record(placements, parts)
        return Measurements.join(parts)

    def kernel(self) -> Any:
        return self.session.kernel()

    def charge(self, evaluations: int, best: Placements, mean_s: float = math.nan) -> None:
        self._count_within(evaluations)
        self._record(self.problem.check(best), [self.session.evaluate(best)], mean_s)

    def record(self, placements: Placements, measurements: Measurements) -> None:
        self._count_within(len(self.problem.check(placements)))
        self._record(placements, [measurements])

    def prefer(self, placement: Placement, within: float) -> bool:
        m = self.session.evaluate(self.problem.check(placement.batch()))
        value_s = float(m.value_s[0])
        if not (m.fits[0] and math.isfinite(value_s)):
            return False
        if self.best is not None and not value_s <= self.best.value_s * (1 + within):
            return False
        spread = None if m.spread_s is None else float(m.spread_s[0])
        self.best = Best(placement, value_s, m.peak_bytes[0], spread, self.evaluations)
        return True

    def log(self, **values: float) -> None:
        self._waiting.update({name: float(value) for name, value in values.items()})

    def _count_within(self, evaluations: int) -> None:
        """Count evaluations that were made elsewhere. Raises ValueError if they are more than the budget has left."""
        if self.ledger.limit is not None and self.ledger.evaluations + evaluations > self.ledger.limit:
            raise ValueError(f"{evaluations} evaluations charged with {self.remaining} left")
        self._count(evaluations)

    def _count(self, evaluations: int) -> None:
        self.evaluations += evaluations
        self.ledger.evaluations += evaluations

    def _record(self, placements: Placements, parts: list[Measurements], mean_s: float | None = None) -> None:
        if not parts:
            return
        m = Measurements.join(parts)
        value = np.where(m.fits & np.isfinite(m.value_s), m.value_s, np.inf)
        row = int(np.argmin(value))
        over = np.maximum(m.peak_bytes - self.problem.cluster.memory_bytes, 0).max(axis=1)
        over = over[np.array([e is None for e in m.error], bool)]  # errors have other reasons than memory
        self.least_over_bytes = min(self.least_over_bytes, float(np.nanmin(over, initial=np.inf)))
        self.last_error = next((e for e in m.error if e), self.last_error)
        if np.isfinite(value[row]) and (self.best is None or value[row] < self.best.value_s):
            self._challenge(self.problem.row(placements, row), m.rows(slice(row, row + 1)))
        mean = float(np.mean(self.scores(m))) if mean_s is None else mean_s
        best_s = self.best.value_s if self.best else math.nan
        new = (self.evaluations, self.ledger.seconds, float(value[row]), mean, best_s)
        if self._made == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._rows[self._made] = new
        self._made += 1
        for name in self._waiting.keys() - self._logged.keys():
            self._logged[name] = [math.nan] * (self._made - 1)
        for name, column in self._logged.items():
            column.append(self._waiting.get(name, math.nan))
        self._waiting = {}
        if self.on_row:
            with self.ledger.paused():
                logged = {name: column[-1] for name, column in sorted(self._logged.items())}
                self.on_row({**logged, **dict(zip(HISTORY, new, strict=True))})

    def _challenge(self, placement: Placement, m: Measurements) -> None:
        """Make `placement`, which has a lower value than the best so far, the new best.

        Where values vary, the lowest of many is mostly luck. The two are then measured again in turns, because the speed of a
        machine drifts, and the new one must be faster in each of `TURNS` turns. These measurements are not counted.
        """
        best = self.best
        if best is not None and not self.deterministic:
            if placement.same_as(best.placement):
                return
            held, new = list(best.compared_s), list[Measurements]()
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
                    self.best = replace(best, value_s=value_s, compared_s=tuple(held))
                    return
            m = Measurements.join(new)
        spread = None if m.spread_s is None else float(m.spread_s.mean())
        compared_s = () if best is None or self.deterministic else tuple(m.value_s.tolist())
        value_s = float(np.median(m.value_s))
        self.best = Best(placement, value_s, m.peak_bytes.max(axis=0), spread, self.evaluations, compared_s)

    @property
    def history(self) -> list[tuple[float, ...]]:
        """A row for each evaluated batch, with the columns `HISTORY`."""
        return [tuple(row) for row in self._rows[: self._made].tolist()]

    @property
    def logged(self) -> dict[str, list[float]]:
        """The columns that `log` added, by name: a number for each row of the history, NaN where none was logged."""
        return {name: list(column) for name, column in sorted(self._logged.items())}

    def state(self) -> dict[str, Any]:
        """The state that `restore` takes."""
        best = self.best
        return {
            "evaluations": self.evaluations,
            "ledger": self.ledger.state(),
            "least_over_bytes": self.least_over_bytes,
            "proven_s": self.proven_s,
            "notes": list(self.notes),
            "last_error": self.last_error,
            "history": self._rows[: self._made],  # no copy: one for each checkpoint, each a little longer, shreds memory
            "logged": {name: np.array(column) for name, column in self._logged.items()},
            "waiting": self._waiting,
            "best": best and {
                "device": best.placement.device,
                "priority": best.placement.priority,
                "value_s": best.value_s,
                "peak_bytes": best.peak_bytes,
                "evaluation": best.evaluation,
                "spread_s": best.spread_s,
                "compared_s": np.array(best.compared_s),
            },
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a value of `state`."""
        for name in ("evaluations", "least_over_bytes", "proven_s", "last_error"):
            setattr(self, name, state[name])
        self.ledger.restore(state["ledger"])
        self.notes = list(dict.fromkeys([*state["notes"], *self.notes]))  # this session may have notes already
        history = state["history"]
        self._rows, self._made = np.concatenate([history, np.zeros((64, len(HISTORY)))]), len(history)
        self._logged = {name: column.tolist() for name, column in state["logged"].items()}
        self._waiting = dict(state["waiting"])
        if best := state["best"]:
            placement = self.problem.placement(best["device"], best["priority"])
            numbers = {name: best[name] for name in ("value_s", "peak_bytes", "evaluation", "spread_s")}
            self.best = Best(placement, **numbers, compared_s=tuple(best["compared_s"].tolist()))


def default_failing_signal_s(problem: Problem, repeats: int = 1) -> float:
    """Ten times the sum of all operations on their slowest device, plus a second: well above any sensible placement.

    `repeats` is `Session.repeats`.
    """
    slowest = np.where(problem.op_allowed, problem.op_s, 0.0).max(axis=1).sum()
    return 10.0 * float(slowest) * repeats + 1.0
