"""Policy `exact`: constraint programming with a proven bound; here for makespans, with device and order of every operation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_scheduling import ROUNDING, b_level, group_priority
from placekit_scheduling.loads import HasLoads
from pydantic import BaseModel

from placekit_core import (
    Checkpoint,
    Measurements,
    NotApplicable,
    PlacekitError,
    Placement,
    Placements,
    Problem,
    ResumablePolicy,
    State,
    Task,
    report_progress,
    units,
)
from placekit_search.exact_load import LoadSearch, check_size, load_start
from placekit_search.exact_machine import in_ticks
from placekit_search.exact_options import ExactOptions
from placekit_search.starts import is_makespan, list_schedules

if TYPE_CHECKING:
    from placekit_search.exact_machine import Timed
    from placekit_search.exact_model import Model, Solution

# Deterministic seconds. Every further slice is twice as long, so starting anew repeats at most half of the work.
FIRST_SLICE = 1.0
UNFIT = (
    "the best solution of policy exact's constraint program does not fit, because the program does not limit the memory of"
    " activations; policy=portfolio may find a better placement"
)
CLOSE = 1e-6  # a value that is less above the proven bound, relatively, is the optimum: ticks round down
OTHER = "policy exact proves no bound here: the backend's schedule of a placement is not possible on the machine model"


class Exact(ResumablePolicy):
    """Solves the machine model by CP-SAT of OR-tools (Perron and Furnon), from the best of several list schedules.

    That is for makespans, and what follows describes it. Objectives that are largest loads have a program of their own; see
    `exact_load`. Others are refused.

    Each solution is evaluated twice, with priorities in the order of its starts and with b-levels: the value of a placement
    is the backend's. The solver may let a device wait on purpose, which a work-conserving execution never does, so the best
    value can lie above the optimum that the solver proves. Its proof is a bound on the simulator's values (`exact_model`);
    the bound is recorded where the backend's objective is the makespan of the machine model.

    The solver works in slices, each from the best solution and the bound of those before, with a checkpoint after each.
    With one worker and a budget of evaluations, the same seed gives the same result to the last bit.
    """

    name = "exact"
    options_class = ExactOptions

    def __init__(self, options: BaseModel | None = None, **values: Any) -> None:
        super().__init__(options, **values)
        try:
            import ortools  # noqa: F401
        except ImportError:
            raise PlacekitError(
                "policy 'exact' needs OR-tools, which is not installed", 'pip install "placekit-search[exact]"'
            ) from None

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        """The best placement found. Resumes exactly from `state`.

        Raises NotApplicable, before any work, if the graph has more kernels than `max_operations`, if the problem has more
        groups than `max_groups` where the objective is a largest load, or if the objective is not modelled.
        """
        search = self._search(task, state, rng)
        while True:
            if checkpoint is not None:
                checkpoint(search.state())
            if search.done or task.evaluate.remaining <= 0:
                return search.placement()
            search.slice()

    def _search(self, task: Task, state: State | None, rng: Generator) -> _Search | LoadSearch:
        """The search for the objective of the backend, at its start or at `state`."""
        options, session = self.options, task.evaluate.session
        if is_makespan(task):
            self._check_size(task.problem)
            return _Search(task, options, _start(task, options, rng) if state is None else state)
        loads = session.loads() if isinstance(session, HasLoads) else None
        if loads is None:
            raise NotApplicable(
                f"policy 'exact' does not model the objective {task.evaluate.objective!r}; it models makespans, and the"
                " objectives max_load, throughput and step of backends max_load and pipeline",
                "use policy=portfolio, or policy=chain",
            )
        check_size(task, loads, options)
        return LoadSearch(task, loads, options, load_start(task, loads, options, rng) if state is None else state)

    def _check_size(self, problem: Problem) -> None:
        limit = self.options.max_operations
        kernels = int(problem.graph.kernel.sum())
        if kernels > limit:
            raise NotApplicable(
                f"policy 'exact' takes graphs of at most {limit} kernels, {problem.graph.name!r} has {kernels}",
                "use policy=portfolio; or raise policy.max_operations, if you have the memory and the time",
            )


def _start(task: Task, options: ExactOptions, rng: Generator) -> dict[str, Any]:
    """Evaluate list schedules in one batch, with at most a quarter of the budget left, and take the best."""
    starts = list_schedules(task.problem, int(max(1, min(options.starts, task.evaluate.remaining / 4))), rng)
    values = _values(task.evaluate(starts))
    device, priority = starts.one(int(np.argmin(values)))
    value_s, session = float(values.min()), task.evaluate.session
    bound_s = session.lower_bound() if task.evaluate.objective == "makespan" else None
    modelled = bound_s is not None  # neither measured nor noisy
    tick_s = _most_s(task.problem) / options.resolution
    if modelled and math.isfinite(value_s):
        tick_s = max(value_s, 1e-12) / options.resolution
    if modelled:
        spread = session.schedule(_spread(task.problem))
        modelled = in_ticks(task.problem, spread, tick_s, spread.value_s) is not None
        if not modelled:
            task.evaluate.note(OTHER)
    return {
        "device": device.copy(),
        "priority": np.zeros(0, np.float32) if priority is None else priority.copy(),
        "value_s": value_s,
        "modelled": modelled,
        "tick_s": tick_s,
        "random_seed": int(rng.integers(2**31)),
        "solution": np.zeros(0, np.int64),
        "makespan": -1,
        "bound": math.floor((bound_s or 0.0) / tick_s) if modelled else 0,
        "proven_before_s": task.evaluate.proven_s,
        "slices": 0,
        "spent": 0.0,
        "done": False,
        "unfit": False,
    }


def _spread(problem: Problem) -> Placement:
    """Groups in turn on the devices that may run them: only several devices show how a backend treats transfers."""
    rows = (np.flatnonzero(allowed) for allowed in problem.allowed)
    return problem.placement(np.asarray([row[i % len(row)] for i, row in enumerate(rows)], np.int16))


def _most_s(problem: Problem) -> float:
    """Seconds of everything one after another, on the slowest devices and routes."""
    graph, routes = problem.graph, problem.cluster.routes
    work = np.where(problem.op_allowed, problem.op_s, 0.0).max(axis=1).sum()
    sent = routes.latency_s.max() * graph.t + graph.tensor_bytes.sum() * routes.s_per_byte.max()
    return max(float(work + sent * (problem.cluster.size - 1)), 1e-12)


def _values(measured: Measurements) -> NDArray[np.float64]:
    """[b] the value where it fits, inf elsewhere."""
    return np.where(measured.fits & np.isfinite(measured.value_s), measured.value_s, np.inf)


class _Search:
    """The solver at work on one task. `state` is all that it needs to go on after a slice.

    Attributes:
        device, priority, value_s: the best placement evaluated; the value is inf if none fits.
        modelled: whether the backend's values are makespans of the machine model.
        solution, makespan: values of all variables of the solver's best solution, and its ticks; -1 if there is none.
        bound: lower bound on all solutions, in ticks.
        unfit: whether the solver's last solution does not fit with its activations.
        proven_before_s: bound that others had proven when this search began, None if there was none.
    """

    def __init__(self, task: Task, options: ExactOptions, state: State) -> None:
        self.task, self.problem, self.options = task, task.problem, options
        self.device: NDArray[np.int16] = np.array(state["device"], np.int16)
        self.priority: NDArray[np.float32] = np.array(state["priority"], np.float32)
        self.value_s, self.tick_s = float(state["value_s"]), float(state["tick_s"])
        self.modelled, self.random_seed = bool(state["modelled"]), int(state["random_seed"])
        self.solution: NDArray[np.int64] = np.array(state["solution"], np.int64)
        self.makespan, self.bound = int(state["makespan"]), int(state["bound"])
        self.proven_before_s: float | None = state["proven_before_s"]
        self.slices, self.spent, self.done = int(state["slices"]), float(state["spent"]), bool(state["done"])
        self.unfit = bool(state.get("unfit", False))  # runs from before there was this key go on
        self.level = group_priority(self.problem, b_level(self.problem))

    def state(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "priority": self.priority,
            "value_s": self.value_s,
            "modelled": self.modelled,
            "tick_s": self.tick_s,
            "random_seed": self.random_seed,
            "solution": self.solution,
            "makespan": self.makespan,
            "bound": self.bound,
            "proven_before_s": self.proven_before_s,
            "slices": self.slices,
            "spent": self.spent,
            "done": self.done,
            "unfit": self.unfit,
        }

    def placement(self) -> Placement:
        """The best placement evaluated."""
        return self.problem.placement(self.device, self.priority if len(self.priority) else None)

    def slice(self) -> None:
        """Solve once, from the best known solution. Raises BudgetExhausted if the budget ends meanwhile."""
        from placekit_search.exact_model import solve

        evaluate, o = self.task.evaluate, self.options
        limit_s, work = evaluate.ledger.limit_s, FIRST_SLICE * 2.0**self.slices
        parameters: dict[str, Any] = {"num_workers": o.workers, "random_seed": self.random_seed}
        model = self._model()
        if limit_s is None:
            work = min(work, o.deterministic_limit - self.spent)
        else:
            parameters["max_time_in_seconds"] = max(limit_s - evaluate.ledger.seconds, 0.0)
        outcome = solve(model, {**parameters, "max_deterministic_time": work}, self._improved, self._working)
        self.bound = max(self.bound, outcome.bound)
        self._timed()  # a better placement may show that the backend is no machine model
        if self.modelled:
            evaluate.prove(self.bound * self.tick_s * (1 - ROUNDING))
        if outcome.error is not None:
            raise outcome.error
        self.slices += 1
        self.spent += outcome.work
        ended = limit_s is None and self.spent >= o.deterministic_limit
        self.done = outcome.status != "open" or ended
        optimal = self.modelled and self.value_s <= self.bound * self.tick_s * (1 + CLOSE)
        if self.unfit and not optimal and (self.done or evaluate.remaining <= 0):
            evaluate.note(UNFIT)

    def _working(self, bound: int) -> None:
        """Say what is known while the solver works."""
        proven = f", proven bound {units.seconds(max(self.bound, bound) * self.tick_s)}" if self.modelled else ""
        timed = self.task.evaluate.ledger.limit_s is not None
        share = self.task.evaluate.progress if timed else self.spent / self.options.deterministic_limit
        report_progress(f"best {units.seconds(self.value_s)}{proven}", share)

    def _model(self) -> Model:
        """The constraint program between the proven bound and the best known makespan, with the best solution as a hint."""
        from placekit_search.exact_model import Model

        timed = self._timed()
        if timed is not None and (self.makespan < 0 or timed.makespan <= self.makespan):
            self.makespan, self.solution, self.unfit = timed.makespan, np.zeros(0, np.int64), False
        most = self.makespan if self.makespan >= 0 else self.options.resolution + 1
        model = Model(self.problem, self.tick_s, min(self.bound, most), most)
        if len(self.solution):
            model.hint_all(self.solution)
        elif timed is not None:
            model.hint(timed)
        return model

    def _timed(self) -> Timed | None:
        """The best placement in ticks; None if none fits, or if it does not follow the machine model: nothing is proven then."""
        if not self.modelled or not math.isfinite(self.value_s):
            return None
        evaluate = self.task.evaluate
        timed = in_ticks(self.problem, evaluate.session.schedule(self.placement()), self.tick_s, self.value_s)
        if timed is None:
            self.modelled, self.bound, evaluate.proven_s = False, 0, self.proven_before_s
            evaluate.note(OTHER)
        return timed

    def _improved(self, solution: Solution) -> None:
        """Evaluate a solution with two orders."""
        if 0 <= self.makespan <= solution.makespan:
            return
        self.makespan, self.solution = solution.makespan, solution.values
        rank = np.empty(self.problem.graph.n)
        rank[np.argsort(solution.start, kind="stable")] = np.arange(self.problem.graph.n)
        priority = np.stack([group_priority(self.problem, -rank), self.level])
        placements = Placements.of(np.stack([solution.device] * 2), priority)
        values = _values(self.task.evaluate(placements))
        row, self.unfit = int(np.argmin(values)), not np.isfinite(values).any()
        if values[row] < self.value_s:
            device, order = placements.one(row)
            self.device, self.value_s = device.copy(), float(values[row])
            self.priority = np.zeros(0, np.float32) if order is None else order.copy()
