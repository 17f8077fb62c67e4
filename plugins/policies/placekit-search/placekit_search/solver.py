"""Solves constraint programs whose solutions are placements, with CP-SAT of OR-tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, TimeoutError as StillRunning
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from placekit_search.exact_model import LoadModel

POLL_S = 0.05  # interval between checks for signals while the solver works

Devices = NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a solve.

    Attributes:
        status: `optimal`: the last solution is optimal; `infeasible`; or `open`.
        bound: proven bound in ticks.
        work: deterministic seconds used.
        error: the error from `improved`, if it ended the solve.
    """

    status: Literal["optimal", "infeasible", "open"]
    bound: int
    work: float
    error: BaseException | None


class _Listener(cp_model.CpSolverSolutionCallback):
    """Passes on every solution; after an error, stops the solver and keeps the error."""

    def __init__(self, model: LoadModel, improved: Callable[[Devices], None]) -> None:
        super().__init__()
        self.model, self.improved = model, improved
        self.error: BaseException | None = None

    def on_solution_callback(self) -> None:
        if self.error is None:
            try:
                self.improved(self.model.solution(self))
            except BaseException as e:
                self.error = e
                self.stop_search()


def solve(
    model: LoadModel,
    parameters: Mapping[str, Any],
    improved: Callable[[Devices], None],
    working: Callable[[int], None] = lambda bound: None,
) -> Outcome:
    """Solve. Calls `improved` in another thread with the devices of each solution, and `working` now and then with the bound.

    The strategies of CP-SAT take turns (`interleave_search`), so that the search does not depend on the clock.
    """
    solver, listener = cp_model.CpSolver(), _Listener(model, improved)
    solver.parameters.interleave_search = True
    solver.parameters.catch_sigint_signal = False  # the run handles signals itself
    for name, value in parameters.items():
        setattr(solver.parameters, name, value)
    bounds = [0.0]
    solver.best_bound_callback = bounds.append
    with ThreadPoolExecutor(1) as pool:  # in a thread, so that signals are handled while it works
        solving = pool.submit(solver.solve, model.cp, listener)
        try:
            while True:
                try:
                    status = solving.result(POLL_S)
                    break
                except StillRunning:
                    working(int(np.floor(bounds[-1])))
        except BaseException:
            solver.stop_search()
            raise
    if status == cp_model.MODEL_INVALID:
        raise RuntimeError(f"CP-SAT finds the model invalid: {model.cp.validate()}")
    ended: Literal["optimal", "infeasible", "open"] = "open"
    if status in (cp_model.OPTIMAL, cp_model.INFEASIBLE):
        ended = "optimal" if status == cp_model.OPTIMAL else "infeasible"
    bound = 0 if ended == "infeasible" else int(np.floor(solver.best_objective_bound))
    return Outcome(ended, bound, float(solver.deterministic_time), listener.error)
