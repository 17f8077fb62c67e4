"""Policy `exact`: minimizes the largest load by the constraint program of `exact_model`, and proves a bound."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_layers import sequence
from placekit_layers.splits import even_splits
from placekit_scheduling import ROUNDING
from placekit_scheduling.loads import HasLoads, Loads
from pydantic import BaseModel

from placekit_core import (
    Checkpoint,
    Measurements,
    NotApplicable,
    PlacekitError,
    Placement,
    Placements,
    ResumablePolicy,
    State,
    Task,
    installed,
    report_progress,
    units,
)
from placekit_search.options import ExactOptions
from placekit_search.starts import list_schedules

if TYPE_CHECKING:
    from placekit_search.exact_model import LoadModel
    from placekit_search.solver import Outcome

STARTS = 16  # list schedules and contiguous splits to choose the start from
FIRST_SLICE = 1.0  # deterministic seconds; every further slice is twice as long
CHAIN_SHARE = 0.1  # share of the budget for the best contiguous split as a start
MANY = 20  # evaluations that must remain to search for this split
RESOLUTION = 10_000_000  # ticks in the best value, in the end
FEW_TICKS = 100_000  # ticks in the best value in the first program: the solver proves more with small numbers
MOST_EXCLUDED = 1000  # most placements that a program excludes one by one
PARTLY = (
    "policy exact minimizes the largest load of a device or channel, and proves a bound on it; with this backend, the value of"
    " a placement can be higher than its load"
)
IN_FLIGHT = (
    "policy exact counts the activations of one micro-batch; a placement without memory for all that are in flight is excluded,"
    " one placement at a time; policy chain counts them all"
)
NONE_FITS = "policy exact proves that no placement fits the memory and the allowed devices"


class Exact(ResumablePolicy):
    """Minimizes the largest load and proves a bound, with CP-SAT of OR-tools (Perron and Furnon).

    The objective must be the largest load of a device or channel: `max_load`, or `throughput` or `step` of backend
    `pipeline`. Others are refused. It starts from list schedules, contiguous splits and the split of policy `chain`.

    The solver works in slices. Each begins with the best placement and bound so far, and ends with a checkpoint. With a
    budget of evaluations, the same seed gives the same result to the last bit.
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

        Raises NotApplicable, before any work, if the objective is not a largest load, or if the problem has more groups than
        `max_groups`.
        """
        loads = self._loads(task)
        search = LoadSearch(task, loads, self.options, _start(task, loads, rng) if state is None else state)
        while True:
            if checkpoint is not None:
                checkpoint(search.state())
            if search.done or task.evaluate.remaining <= 0:
                return search.placement()
            search.slice()

    def _loads(self, task: Task) -> Loads:
        """The loads whose largest is the objective. Raises NotApplicable."""
        session, limit = task.evaluate.session, self.options.max_groups
        loads = session.loads() if isinstance(session, HasLoads) else None
        if loads is None:
            raise NotApplicable(
                f"policy 'exact' does not model the objective {task.evaluate.objective!r}. It models the objectives max_load,"
                " throughput and step of backends max_load and pipeline",
                "use policy=portfolio, or policy=chain",
            )
        if task.problem.g > limit:
            raise NotApplicable(
                f"policy 'exact' takes at most {limit} groups, {task.problem.graph.name!r} has {task.problem.g}",
                "use grouper=module for fewer groups; or policy=chain or policy=portfolio; or raise policy.max_groups",
            )
        return loads


def _start(task: Task, loads: Loads, rng: Generator) -> dict[str, Any]:
    """Evaluate contiguous splits and list schedules, with at most a quarter of the budget, and begin with the best."""
    limit = int(max(1, min(STARTS, task.evaluate.remaining / 4)))
    split = even_splits(sequence(task.problem), max(1, limit // 2))
    starts = Placements.of(np.concatenate([split, list_schedules(task.problem, limit, rng).device])[:limit])
    starts = Placements.of(np.concatenate([starts.device, _chain(task, rng)]))
    values = fitting(task.evaluate(starts))
    row = int(np.argmin(values))
    floor_s = float(task.evaluate.session.lower_bound() or 0.0)
    return {
        "device": starts.device[row].copy(),
        "value_s": float(values[row]),
        "bound_s": floor_s,
        "floor_s": floor_s,
        "tick_s": _scale(float(values[row]), loads) / FEW_TICKS,
        "excluded_s": math.inf,
        "without": np.zeros((0, task.problem.g), np.int16),
        "random_seed": int(rng.integers(2**31)),
        "slices": 0,
        "spent": 0.0,
        "done": bool(values[row] == 0.0),  # nothing is faster, and there is no time to divide into ticks
    }


def _chain(task: Task, rng: Generator) -> NDArray[np.int16]:
    """[1, g] the best contiguous split by policy `chain`, with at most `CHAIN_SHARE` of the budget; [0, g] if there is none."""
    none, notes = np.zeros((0, task.problem.g), np.int16), list(task.evaluate.notes)
    if "chain" not in installed().names("policy") or task.evaluate.remaining < MANY:
        return none
    entry = installed().get("policy", "chain")
    try:
        found = entry.build(entry.options({"share": CHAIN_SHARE}, "policy")).place(task, copy.deepcopy(rng))
    except NotApplicable:
        return none
    finally:
        task.evaluate.notes[:] = notes  # drop the notes of `chain`: they are about contiguous splits
    return np.asarray(found.device[None], np.int16)


def _scale(value_s: float, loads: Loads) -> float:
    """The seconds to divide into ticks."""
    return max(value_s if math.isfinite(value_s) else loads.most_s, 1e-12)


def fitting(measured: Measurements) -> NDArray[np.float64]:
    """[b] values; inf for placements that do not fit."""
    return np.where(measured.fits & np.isfinite(measured.value_s), measured.value_s, np.inf)


class LoadSearch:
    """The solver's search on one task. `state` holds everything to continue after a slice.

    Attributes:
        device, value_s: the best placement evaluated; the value is inf if none fits.
        bound_s: lower bound on the values of all placements.
        floor_s: the bound at the beginning.
        tick_s: seconds of a tick; finer ticks follow once a proof with coarse ones is complete.
        without: [r, g] placements that the program excludes: they were evaluated, and their value is higher than their load.
        excluded_s: the least of these loads; no higher bound can be proven. An excluded placement could have a lower value with
            identical devices renamed, because a simulation of events breaks ties by device numbers.
    """

    def __init__(self, task: Task, loads: Loads, options: ExactOptions, state: State) -> None:
        self.task, self.problem, self.loads, self.options = task, task.problem, loads, options
        self.device: NDArray[np.int16] = np.array(state["device"], np.int16)
        self.value_s, self.bound_s = float(state["value_s"]), float(state["bound_s"])
        self.floor_s, self.tick_s = float(state["floor_s"]), float(state["tick_s"])
        self.excluded_s = float(state["excluded_s"])
        self.without: NDArray[np.int16] = np.array(state["without"], np.int16).reshape(-1, task.problem.g)
        self.random_seed = int(state["random_seed"])
        self.slices, self.spent, self.done = int(state["slices"]), float(state["spent"]), bool(state["done"])
        self.found, self.found_s = self.device, self.value_s  # the last solution, and its value
        self._saved = tuple(state)

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._saved}

    def placement(self) -> Placement:
        """The best placement evaluated."""
        return self.problem.placement(self.device, None)

    def slice(self) -> None:
        """Solve once, from the best known solution. Raises BudgetExhausted if the budget ends."""
        from placekit_search.solver import solve

        evaluate, o = self.task.evaluate, self.options
        limit_s, work = evaluate.ledger.limit_s, FIRST_SLICE * 2.0**self.slices
        parameters: dict[str, Any] = {"num_workers": 1, "random_seed": self.random_seed}
        if limit_s is None:
            work = min(work, o.deterministic_limit - self.spent)
        else:
            parameters["max_time_in_seconds"] = max(limit_s - evaluate.ledger.seconds, 0.0)
        model = self._model()
        outcome = solve(model, {**parameters, "max_deterministic_time": work}, self._improved, self._working)
        self._prove(outcome)
        if outcome.error is not None:
            raise outcome.error
        self.slices += 1
        self.spent += outcome.work
        if outcome.status != "open":
            self._closed(outcome.status == "infeasible")
        if limit_s is None and self.spent >= o.deterministic_limit:
            self.done = True

    def _working(self, bound: int) -> None:
        """Report progress while the solver works."""
        timed = self.task.evaluate.ledger.limit_s is not None
        share = self.task.evaluate.progress if timed else self.spent / self.options.deterministic_limit
        bound_s = max(self.bound_s, bound * self.tick_s)
        report_progress(f"best {units.seconds(self.value_s)}, proven bound {units.seconds(bound_s)}", share)

    def _model(self) -> LoadModel:
        """The constraint program between the proven bound and the best value, with the best placement as a hint."""
        from placekit_search.exact_model import LoadModel

        known_s = self.value_s if math.isfinite(self.value_s) else self.loads.most_s
        most = math.floor(known_s / self.tick_s) + 1  # 1 more, because the division is rounded
        least = min(math.floor(self.bound_s / self.tick_s), most)
        model = LoadModel(self.problem, self.loads, self.tick_s, least, most, self.floor_s, self.without)
        if math.isfinite(self.value_s):
            self.device = model.named(self.device)
            ticks = math.floor(self.loads.largest_s(self.device) / self.tick_s)
            model.hint(self.device, min(max(ticks, least), most))
        self.found, self.found_s = self.device, self.value_s
        return model

    def _improved(self, device: NDArray[np.int16]) -> None:
        """Evaluate a solution. The solver's first solution is the hint, whose value is known."""
        if np.array_equal(device, self.device):
            self.found, self.found_s = self.device, self.value_s
            return
        [value_s] = fitting(self.task.evaluate(Placements.of(device[None])))
        self.found, self.found_s = device, float(value_s)
        if value_s < self.value_s:
            self.device, self.value_s = device, float(value_s)

    def _prove(self, outcome: Outcome) -> None:
        """Prove the least of the solver's bound, the loads of excluded placements and the best value."""
        open_s = math.inf if outcome.status == "infeasible" else outcome.bound * self.tick_s * (1 - ROUNDING)
        bound_s = min(open_s, self.excluded_s, self.value_s)
        if not math.isfinite(bound_s):  # and nothing is excluded
            self.task.evaluate.note(NONE_FITS)
            return
        self.bound_s = max(self.bound_s, bound_s)
        self.task.evaluate.prove(self.bound_s)

    def _closed(self, infeasible: bool) -> None:
        """After a proof: exclude a solution whose value is higher than its load, or continue with finer ticks, or end."""
        load_s = self.loads.largest_s(self.found)
        if infeasible or self.bound_s >= self.value_s * (1 - ROUNDING):
            self.done = True
        elif self.found_s > load_s * (1 + 1e-9):
            self.task.evaluate.note(PARTLY if math.isfinite(self.found_s) else IN_FLIGHT)
            self.excluded_s = min(self.excluded_s, load_s * (1 - ROUNDING))
            self.without = np.concatenate([self.without, self.found[None]])
            self.done = len(self.without) >= MOST_EXCLUDED
        else:
            finest_s = _scale(self.value_s, self.loads) / RESOLUTION
            self.done = self.tick_s <= finest_s * 2
            self.tick_s = finest_s
