"""`placekit bounds`: proven lower bounds of a program's makespan on a machine, one for each argument that proves one."""

from __future__ import annotations

import contextlib

from placekit_scheduling import ROUNDING, all_bounds, binding_argument, offload_bound

from placekit_core import ConfigError, Problem, Program, Registry
from placekit_core.cli import console
from placekit_core.cli.compose import assembled
from placekit_core.cli.parser import Parser
from placekit_core.contracts.units import seconds
from placekit_core.run.assembly import Assembly


def main(argv: list[str], registry: Registry) -> int:
    """The entry of the command; see `placekit_core.Command`."""
    parser = Parser(
        "bounds", "Proven lower bounds of the makespan, by argument, for the groups that a run would place: a table for each"
        " program.", options=True,
    )  # fmt: skip
    parts = assembled(parser.read(argv).options, registry)
    for i, program in enumerate(parts.programs):
        print("\n" if i else "", end="")
        show(_problem(parts, program), parts.backend.offloads)
    return 0


def _problem(parts: Assembly, program: Program) -> Problem:
    """The problem of a run. Raises ConfigError if its backend has no proven bound of the makespan."""
    backend, problem = parts.backend, parts.problem(program)
    if not backend.simulated:
        raise ConfigError(
            f"backend {backend.name!r} measures, but bounds are proven for simulated makespans", "use backend=simulator"
        )
    if backend.objective != "makespan":
        raise ConfigError(
            f"backend {backend.name!r} minimizes the {backend.objective}, but this command bounds makespans",
            "use `placekit run`, which prints the bound of any objective",
        )
    with contextlib.closing(backend.open(problem, program.executable)) as session:
        if session.lower_bound() is None:
            raise ConfigError(
                f"backend {backend.name!r} proves no bound with these options", "leave out noise, for example"
            )
    return problem


def show(problem: Problem, offloads: bool = False) -> None:
    """Print a table of all bounds, and the argument that proves the highest one."""
    found = all_bounds(problem)
    if offloads:
        found["offload"] = offload_bound(problem)
    title = f"{problem.graph.name} on {problem.cluster.name}: {problem.graph.n:,} operations in {problem.g:,} groups"
    rows = [[name, seconds(bound or None)] for name, bound in found.items()]
    console.table(["argument", "no placement that fits is faster than"], rows, title)
    print(f"proven: {seconds(max(found.values()) * (1 - ROUNDING))}, by {binding_argument(found)} (to 0.01%)")
