"""`placekit evaluate MAP.json`: the value, memory, bound and gap of a device map or placement of the user's own."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placekit_core import (
    Backend,
    ConfigError,
    PlacekitError,
    Placement,
    PlacementError,
    Placements,
    Problem,
    Registry,
    Session,
    Task,
)
from placekit_core.cli import console
from placekit_core.cli.arguments import take
from placekit_core.cli.compose import assembled
from placekit_core.cli.parser import Parser
from placekit_core.contracts.units import percent, seconds
from placekit_core.run.evaluator import BudgetedEvaluator
from placekit_torch.beside import Run, by_accelerate, run_lines
from placekit_torch.export import device_map
from placekit_torch.given import OwnMap, from_file
from placekit_torch.simulated import full, memory_text

OWN = "accelerate's own map"
POLICY = "accelerate_auto"  # of placekit-runtimes


def main(argv: list[str], registry: Registry) -> int:
    """Print what a map or placement costs, beside accelerate's own map. Raises PlacekitError if it does not fit."""
    parser = Parser(
        "evaluate", "What a device map or placement of your own costs, beside accelerate's own map.", options=True
    )
    parser.add_argument("path", metavar="MAP.json", type=Path, help="a device map, or the placement.json of a run")
    arguments = parser.read(argv)
    if take(arguments.options, "policy")[0] is not None:
        raise ConfigError("evaluate takes no policy: the placement is given", "`placekit run` places with a policy")
    parts = assembled(arguments.options, registry)
    program, backend = parts.one_program("an evaluation"), parts.backend
    problem = parts.problem(program, grouped=False)
    given = from_file(problem, arguments.path)
    session = backend.open(problem, program.executable)
    try:
        show(arguments.path.name, problem, backend, session, given, registry)
    finally:
        session.close()
    return 0


def show(
    name: str, problem: Problem, backend: Backend, session: Session, given: OwnMap | Placement, registry: Registry
) -> None:
    """Evaluate and print. Raises PlacementError, with bytes, for what does not fit, on the backend or under accelerate."""
    placement = given if isinstance(given, Placement) else given.placement
    run = by_accelerate(problem, given.located) if isinstance(given, OwnMap) else None
    value_s, peak_bytes = _measured(name, problem, session, placement)
    if run is not None and run.found is not None and run.why:
        raise PlacementError(f"{name}: {run.why}", _SMALLER)
    bound_s, own = session.lower_bound(), own_map(problem, backend, session, registry)
    rows = [_row(name, value_s, bound_s, run)]
    if own.placement is not None:
        try:
            own_s = _measured(OWN, problem, session, own.placement)[0]
            rows.append(_row(OWN, own_s, bound_s, own.run))
        except PlacementError:
            rows.append([OWN, "does not fit", "", own.run.text if own.run is not None else ""])
    kind = "simulated" if backend.simulated else "measured"
    bound = "" if bound_s is None else f", proven bound {seconds(bound_s)}"
    title = f"{problem.graph.name} on {problem.cluster.name}, {kind}{bound}"
    console.table(["placement", backend.objective, "gap", "run by accelerate"], rows, title=title)
    print(console.wrapped(f"peak memory: {memory_text(problem, peak_bytes)}"))
    if run is not None and run.found is not None:
        for line in run_lines(problem, run.found):
            print(console.wrapped(line))
    if run is not None and run.found is None:
        warnings.warn(run.why, stacklevel=1)
    if own.placement is None:
        print(console.wrapped(own.line))
    for note in given.notes if isinstance(given, OwnMap) else ():
        print(console.wrapped(f"note: {note}"), file=sys.stderr)


_SMALLER = "move modules to devices with more memory, or to 'cpu'"


def _measured(name: str, problem: Problem, session: Session, placement: Placement) -> tuple[float, NDArray[np.float64]]:
    measured = session.evaluate(Placements.of(placement.device, placement.priority))
    if measured.error[0] is not None:
        raise PlacementError(f"{name} cannot be evaluated: {measured.error[0]}")
    over = full(problem, measured.peak_bytes[0])
    if over:
        raise PlacementError(f"{name} does not fit: {over}", _SMALLER)
    return float(measured.value_s[0]), measured.peak_bytes[0]


def _row(name: str, value_s: float, bound_s: float | None, run: Run | None) -> list[str]:
    gap = percent(None if bound_s is None or bound_s <= 0 else value_s / bound_s - 1)
    return [name, seconds(value_s), gap, "" if run is None else run.text]


@dataclass(frozen=True, eq=False)
class AcceleratesMap:
    """The map that accelerate itself would choose; `why` says why there is none."""

    placement: Placement | None
    run: Run | None
    why: str

    @property
    def line(self) -> str:
        """One line for the user."""
        if self.run is None:
            return f"{OWN} is not compared: {self.why}"
        return f"{OWN}: {self.run.text} run by accelerate" + (f" ({self.run.why})" if self.run.why else "")


def own_map(problem: Problem, backend: Backend, session: Session, registry: Registry) -> AcceleratesMap:
    """`device_map="auto"` for the problem, by the policy of that name, if it is installed and applies."""
    try:
        entry = registry.get("policy", POLICY)
        evaluate = BudgetedEvaluator(problem, session, objective=backend.objective)
        task = Task(problem, evaluate)
        placement = entry.build(entry.options({}, "policy.")).place(task, np.random.default_rng(0))
        return AcceleratesMap(placement, by_accelerate(problem, device_map(problem, placement).located), "")
    except PlacekitError as e:
        return AcceleratesMap(None, None, e.message)
