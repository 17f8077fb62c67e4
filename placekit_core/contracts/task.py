"""The input of a policy or trainer: a problem, and evaluators, its only access to backends."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placekit_core.contracts.ledger import Ledger
from placekit_core.contracts.measurement import Measurements, Schedule
from placekit_core.contracts.placement import Placement, Placements
from placekit_core.contracts.problem import Problem
from placekit_core.contracts.program import Executable
from placekit_core.contracts.result import Baseline, ErrorBand


@dataclass(frozen=True, eq=False)
class Best:
    """The best placement that fits, and its measurements."""

    placement: Placement
    value_s: float
    peak_bytes: NDArray[np.float64]
    spread_s: float | None
    evaluation: int
    compared_s: tuple[float, ...] = ()
    """If measurements vary: its values when it was compared with other placements; `value_s` is their median."""


class Session(ABC):
    """One problem, opened on a backend.

    Attributes:
        repeats: how often the program runs in one evaluation (micro-batches of a step).
        prefetch: how many readers ahead parameters and inputs are copied from other devices; a copy is freed after it was
            read ("Streaming" in docs/machine-model.md). None: they are copied at the start, and stay.
        priorities: whether a placement's priorities may change its value; if not, searches need not change them.
        at_once: how many placements it evaluates in parallel; batches of at least this size use it fully.
    """

    repeats: int = 1
    at_once: int = 1
    prefetch: int | None = None
    priorities: bool = True

    @abstractmethod
    def evaluate(self, placements: Placements) -> Measurements:
        """Measure a batch. A placement that does not fit or fails is marked in the measurements, not raised.

        Sessions do not check placements: evaluators do (`Problem.check`), and so does `Problem.placement`.
        """

    @abstractmethod
    def schedule(self, placement: Placement) -> Schedule:
        """The timed events of one run."""

    def lower_bound(self) -> float | None:
        """A proven lower bound on this objective over all placements, in seconds; None if nothing is proven."""
        return None

    def baselines(self) -> Sequence[Baseline]:
        """Common ways to run the program on this backend that no policy provides, to compare results with."""
        return ()

    def kernel(self) -> Any:
        """A compiled evaluation for compiled searches (see `Evaluator.kernel`), or None."""
        return None

    def close(self) -> None:
        """Release the resources of the session."""
        return None


class Evaluator(ABC):
    """Evaluates placements of one problem on one backend, within a budget.

    The engine implements it (`placekit_core.run.evaluator`); policies and trainers use it.

    Attributes:
        problem: what is placed.
        session: the backend, open on the problem.
        ledger: the budget, and how much of it is used.
        objective: the backend's `Backend.objective`; None if not given.
        failing_signal_s: the score of a placement that does not fit, seconds.
        evaluations: number of placements evaluated.
        best: the best placement so far that fits, or None.
        proven_s: the highest lower bound that was proven, seconds, or None.
        notes: sentences for the user, shown with the result.
    """

    problem: Problem
    session: Session
    ledger: Ledger
    objective: str | None
    failing_signal_s: float
    evaluations: int
    best: Best | None
    proven_s: float | None
    notes: list[str]

    @property
    def remaining(self) -> float:
        """Evaluations left in the budget, maybe infinite; 0 once its seconds are used up.

        At least 1 before the first evaluation, even if the seconds are used up, so that every run finds a placement. A loop that
        may not evaluate anything must check `progress` instead, which is 1 once the seconds are used up.
        """
        left, ledger = self.ledger.remaining, self.ledger
        if left <= 0 and not self.evaluations and (ledger.limit is None or ledger.evaluations < ledger.limit):
            return 1
        return left

    @property
    def progress(self) -> float:
        """Share of the budget that is used, in [0, 1]."""
        return self.ledger.progress

    @abstractmethod
    def __call__(self, placements: Placements) -> Measurements:
        """Evaluate a batch of b placements, in order.

        Raises BudgetExhausted if the budget ends within the batch; the evaluations until then are recorded.
        Raises PlacementError if a placement is not one of this problem.
        """

    def scores(self, measurements: Measurements) -> NDArray[np.float64]:
        """[b] the objective in seconds, or the failing signal where a placement does not fit or failed.

        The failing signal is a large constant (Mirhoseini et al. 2017, §3.1): option `failing_signal_s`.
        """
        return np.where(measurements.fits, measurements.value_s, self.failing_signal_s)

    @abstractmethod
    def kernel(self) -> Any:
        """The backend's compiled evaluation, or None. After using it, call `charge`.

        Searches and backends agree about its type; the core only passes it on.
        """

    @abstractmethod
    def charge(self, evaluations: int, best: Placements, mean_s: float = math.nan) -> None:
        """Count `evaluations` that a search made through `kernel()`, and record the `best` placements among them.

        The session evaluates `best` once more; this is not counted.
        """

    @abstractmethod
    def record(self, placements: Placements, measurements: Measurements) -> None:
        """Count and record evaluations of this problem that the same backend made in another process.

        Raises ValueError if they are more than the budget has left.
        """

    @abstractmethod
    def log(self, **values: float) -> None:
        """Add numbers to the next row of the history, as columns of these names: `loss`, `entropy`, `kl`, `gradient_norm`.

        A trainer calls it after an update. Loggers get the columns; nothing in a run depends on them.
        """

    def prove(self, bound_s: float) -> None:
        """Record a lower bound on the objective, seconds, that a policy has proven; the run reports the highest."""
        self.proven_s = bound_s if self.proven_s is None else max(self.proven_s, bound_s)

    @abstractmethod
    def prefer(self, placement: Placement, within: float) -> bool:
        """Make `placement` the best if it fits and is at most the share `within` slower than the best so far, if any.

        For a search that ends by choosing a placement for another reason than its value. Returns whether it is now the best.
        """

    def note(self, text: str) -> None:
        """Tell the user, in one plain sentence, about something that they did not ask for. A sentence is shown once."""
        if text not in self.notes:
            self.notes.append(text)


@dataclass(eq=False)
class Task:
    """A problem with its evaluators, for a policy or trainer to work on.

    Attributes:
        problem: what to place.
        evaluate: evaluator of the run's backend; counts against `budget.evaluations` and `budget.seconds`.
        open_proxy: opens `proxy` at first use; None if there is no other backend.
        executable: how to run the program for real, if its importer knows.
        proxy_evaluations: `budget.proxy_evaluations`.
        measures: whether the run's backend measures (and does not simulate).
        error_band: how far predictions on these devices are from published measurements; None if the value is measured.
        backend: `{"name": ..., OPTION: ...}`, from which another process can build the run's backend; empty if it cannot.
    """

    problem: Problem
    evaluate: Evaluator
    open_proxy: Callable[[], Evaluator] | None = None
    executable: Executable | None = None
    proxy_evaluations: int | None = None
    measures: bool = False
    error_band: Callable[[Sequence[int]], ErrorBand | None] = lambda devices: None
    backend: Mapping[str, Any] = field(default_factory=dict)
    _proxy: Evaluator | None = field(default=None, init=False, repr=False)

    @property
    def pretraining(self) -> Evaluator | None:
        """The proxy, if it is another backend and the run gives it evaluations; a learner trains there first."""
        return self.proxy if self.open_proxy is not None and self.proxy_evaluations else None

    @property
    def opened_proxy(self) -> Evaluator | None:
        """The proxy's evaluator if it is another backend and was used; never opens it."""
        return self._proxy if self._proxy is not self.evaluate else None

    @property
    def proxy(self) -> Evaluator:
        """Evaluator of a cheaper backend (config group `backend@proxy`, the simulator by default).

        For screening and pretraining; counts against `budget.proxy_evaluations`. It is the same object as `evaluate` if
        the run's backend is the proxy.
        """
        if self._proxy is None:
            self._proxy = self.open_proxy() if self.open_proxy else self.evaluate
        return self._proxy

    def log(self, **values: float) -> None:
        """Add columns to the history of this task, such as `loss` and `entropy`; see `Evaluator.log`."""
        self.evaluate.log(**values)
