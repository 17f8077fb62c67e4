"""The budget of a search: its limits, and how much of it is used."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

HISTORY = ("evaluations", "seconds", "value_s", "mean_s", "best_s")
"""The columns of a history: a row per evaluated batch, with its best value and its mean, and the best so far."""


class Ledger:
    """A budget and the used part of it; None is unlimited. Evaluators of one family of programs share a ledger."""

    def __init__(self, evaluations: int | None = None, seconds: float | None = None) -> None:
        self.limit, self.limit_s = evaluations, seconds
        self.evaluations = 0
        self._used_s = 0.0
        self._since: float | None = None  # None while the clock is stopped
        self._autostart = True  # asking for what remains starts the clock

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of searching; the clock runs from `start` to `stop`."""
        return self._used_s + (0.0 if self._since is None else time.perf_counter() - self._since)

    def start(self) -> None:
        """Start the clock; seconds used before still count."""
        self._autostart = False
        if self._since is None:
            self._since = time.perf_counter()

    def stop(self) -> None:
        """Stop the clock."""
        self._used_s, self._since, self._autostart = self.seconds, None, False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock inside the block, for work that is not searching, such as logging."""
        ran = self._since is not None
        if ran:
            self.stop()
        try:
            yield
        finally:
            if ran:
                self.start()

    @contextlib.contextmanager
    def reserved(self, evaluations: int) -> Iterator[None]:
        """Hold back this many evaluations inside the block."""
        limit = self.limit
        if limit is not None:
            self.limit = max(limit - evaluations, 0)
        try:
            yield
        finally:
            self.limit = limit

    @property
    def remaining(self) -> float:
        """Evaluations left; infinite without a limit; 0 once the seconds are used up. The first call starts the clock."""
        if self._autostart:
            self.start()
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
        """The state that `restore` takes."""
        return {"evaluations": self.evaluations, "seconds": self.seconds}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a value of `state`."""
        self.evaluations, self._used_s = state["evaluations"], state["seconds"]
        self._since, self._autostart = None, True
