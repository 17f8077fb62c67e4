"""`placekit evaluate MAP.json`: shows the value, memory, bound and gap of your own device map or placement.

`placekit evaluate "llama-server ..." MACHINE` does so for a command line, see `evaluate_line`.
"""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placekit_core import (
    Backend,
    ConfigError,
    Placement,
    PlacementError,
    Placements,
    Problem,
    Registry,
    Session,
)
from placekit_core.cli import console
from placekit_core.cli.arguments import take
from placekit_core.cli.compose import assembled
from placekit_core.cli.parser import Parser
from placekit_core.contracts.units import format_value, percent
from placekit_runtimes.accelerate import RUNTIME as ACCELERATE
from placekit_runtimes.accelerate.device_map import DeviceMap
from placekit_runtimes.apply import OWN_MAP, own_map_line
from placekit_runtimes.given import from_file
from placekit_runtimes.interface import RuntimeCost, lacking_memory, memory_text
from placekit_runtimes.planning.read_lines import is_line


def main(argv: list[str], registry: Registry) -> int:
    """Print the cost of a map or placement beside that of accelerate's own map. Raises PlacekitError if it does not fit."""
    first = next((word for word in argv if not _OPTION.match(word)), "")
    if is_line(first):
        from placekit_runtimes.evaluate_line import main as of_line

        return of_line(argv, registry)
    if not first and not {"-h", "--help"} & {*argv}:
        raise ConfigError(
            "nothing to evaluate is named",
            "give a MAP.json or a command line in quotes; `placekit evaluate --help` has examples",
        )
    parser = Parser("evaluate", "", options=True, usage=USAGE)
    parser.description = ABOUT
    how = "a device map, or the placement.json of a run"
    parser.add_argument("path", metavar="MAP.json", type=Path, help=how)
    arguments = parser.read(argv)
    if take(arguments.options, "policy")[0] is not None:
        raise ConfigError("evaluate takes no policy: the placement is given", "`placekit run` places with a policy")
    parts = assembled(arguments.options, registry)
    program, backend = parts.one_program("an evaluation"), parts.backend
    problem = parts.problem(program, grouped=False)
    given = from_file(problem, arguments.path)
    session = backend.open(problem, program.executable)
    try:
        show(arguments.path.name, problem, backend, session, given)
    finally:
        session.close()
    return 0


USAGE = """placekit evaluate MAP.json [OPTION=VALUE ...]
       placekit evaluate COMMAND [MACHINE] [OPTION=VALUE ...] [--html FILE]"""
ABOUT = """examples:
  placekit evaluate map.json model=hf:gpt2
  placekit evaluate "llama-server -m Qwen3-14B-Q8_0.gguf -ngl 30"
      "rtx3060 + 64GB ddr5-5600" prompt=2000

MAP.json: what a device map or placement costs, beside accelerate's own map.
  Its options are those of `placekit run`.

COMMAND: what a command line of llama.cpp or vLLM, in quotes, costs on a
  machine, and what would be better. MACHINE is in words, a preset or a YAML
  file; left out: this computer. The options are those of `placekit plan`."""
_OPTION = re.compile(r"-|[+~]*[a-z_][\w./@:-]*=")


def show(name: str, problem: Problem, backend: Backend, session: Session, given: DeviceMap | Placement) -> None:
    """Evaluate and print. Raises PlacementError, with bytes, if it does not fit on the backend or under accelerate."""
    placement = given if isinstance(given, Placement) else given.placement
    cost = ACCELERATE.cost(problem, given) if isinstance(given, DeviceMap) else None
    value_s, peak_bytes = _measured(name, problem, session, placement)
    if cost is not None and cost.value_s is not None and cost.error:
        raise PlacementError(f"{name}: {cost.error}", _SMALLER)
    bound_s, (own, own_cost) = session.lower_bound(), ACCELERATE.own_cost(problem)
    unit = backend.unit
    rows = [_row(name, value_s, bound_s, cost, unit)]
    if own is not None:
        try:
            rows.append(_row(OWN_MAP, _measured(OWN_MAP, problem, session, own)[0], bound_s, own_cost, unit))
        except PlacementError:
            rows.append([OWN_MAP, "does not fit", "", own_cost.text])
    kind = "simulated" if backend.simulated else "measured"
    bound = "" if bound_s is None else f", proven bound {format_value(bound_s, unit)} for the whole graph"
    title = f"{problem.graph.name} on {problem.cluster.name}, {kind}{bound}"
    console.table(["placement", backend.objective, "gap", "run by accelerate"], rows, title=title)
    print(console.wrapped(f"peak memory: {memory_text(problem, peak_bytes)}"))
    for line in () if cost is None else cost.details:
        print(console.wrapped(line))
    if cost is not None and cost.value_s is None:
        warnings.warn(cost.error, stacklevel=1)
    if own is None:
        print(console.wrapped(own_map_line(own, own_cost)))
    for note in given.notes if isinstance(given, DeviceMap) else ():
        print(console.wrapped(f"note: {note}"), file=sys.stderr)


_SMALLER = "move modules to devices with more memory, or to 'cpu'"


def _measured(name: str, problem: Problem, session: Session, placement: Placement) -> tuple[float, NDArray[np.float64]]:
    measured = session.evaluate(Placements.of(placement.device, placement.priority))
    if measured.error[0] is not None:
        raise PlacementError(f"{name} cannot be evaluated: {measured.error[0]}")
    if lacking := lacking_memory(problem, measured.peak_bytes[0]):
        raise PlacementError(f"{name} does not fit: {lacking}", _SMALLER)
    return float(measured.value_s[0]), measured.peak_bytes[0]


def _row(name: str, value_s: float, bound_s: float | None, cost: RuntimeCost | None, unit: str) -> list[str]:
    gap = percent(None if bound_s is None or bound_s <= 0 else value_s / bound_s - 1)
    return [name, format_value(value_s, unit), gap, "" if cost is None else cost.text]
