"""`placekit bounds`: what no placement can beat, and by which argument; makes and checks certificates of it."""

from __future__ import annotations

import contextlib
from pathlib import Path

from placekit_scheduling import (
    ROUNDING,
    Certificate,
    CertificateError,
    all_bounds,
    binding_argument,
    certify,
    offload_bound,
    proven_s,
)

from placekit_core import ConfigError, Problem, Program, Registry
from placekit_core.cli import console
from placekit_core.cli.compose import assembled
from placekit_core.cli.parser import Parser
from placekit_core.contracts.files import WriteError, read_json, write_atomically
from placekit_core.contracts.units import seconds
from placekit_core.run.assembly import Assembly

FILE_VALUES, FILE_BYTES = 10_000_000, 256 * 2**20
"""Limits of a certificate: one of the largest graphs has a few million values."""


def main(argv: list[str], registry: Registry) -> int:
    """The entry of the command; see `placekit_core.Command`."""
    parser = Parser(
        "bounds", "Proven lower bounds of the makespan, by argument, for the groups that a run would place: a table for each"
        " program; or the proof for one program.", options=True,
    )  # fmt: skip
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--certificate", metavar="FILE", type=Path, help="write a proof that can be checked step by step")
    how.add_argument("--check", metavar="FILE", type=Path, help="check such a proof: nothing of it is taken on trust")
    arguments = parser.read(argv)
    parts = assembled(arguments.options, registry)
    out = arguments.certificate
    if out is not None and out.exists():
        raise ConfigError(f"{out} exists already", "choose another name")
    if out is not None and not out.parent.is_dir():
        raise ConfigError(f"{out} cannot be written: there is no folder {out.parent}", "make the folder first")
    alone = out is not None or arguments.check is not None
    programs = [parts.one_program("a certificate")] if alone else parts.programs
    problems = [_problem(parts, program) for program in programs]
    if out is not None:
        _certify(out, problems[0])
    elif arguments.check is not None:
        _check(arguments.check, problems[0])
    else:
        for i, problem in enumerate(problems):
            print("\n" if i else "", end="")
            show(problem, parts.backend.offloads)
    return 0


def _problem(parts: Assembly, program: Program) -> Problem:
    """The problem of a run. Raises ConfigError if its backend claims no bound of its makespans."""
    backend, problem = parts.backend, parts.problem(program)
    if not backend.simulated:
        raise ConfigError(f"backend {backend.name!r} measures, and these are bounds of simulated makespans")
    if backend.objective != "makespan":
        raise ConfigError(
            f"backend {backend.name!r} has the objective {backend.objective}, and these are bounds of makespans",
            "`placekit run` says the bound of any objective",
        )
    with contextlib.closing(backend.open(problem, program.executable)) as session:
        if session.lower_bound() is None:
            raise ConfigError(
                f"backend {backend.name!r} claims no bound with these options", "with noise, nothing is proven"
            )
    return problem


def show(problem: Problem, offloads: bool = False) -> None:
    """A table of all bounds, and which of them binds."""
    found = all_bounds(problem)
    if offloads:
        found["offload"] = offload_bound(problem)
    title = f"{problem.graph.name} on {problem.cluster.name}: {problem.graph.n:,} operations in {problem.g:,} groups"
    rows = [[name, seconds(bound or None)] for name, bound in found.items()]
    console.table(["argument", "no placement that fits is faster than"], rows, title)
    print(f"proven: {seconds(max(found.values()) * (1 - ROUNDING))}, by {binding_argument(found)} (to 0.01%)")


def _certify(path: Path, problem: Problem) -> None:
    try:
        write_atomically(path, certify(problem).model_dump_json().encode() + b"\n")
    except WriteError as e:
        raise ConfigError(f"cannot write {path}: {e.strerror}") from None
    certificate = _read(path)
    proven = proven_s(problem, certificate)
    best = max(all_bounds(problem).values())
    print(console.wrapped(
        f"{path} proves {seconds(proven)}, by {certificate.argument.by}; the highest bound of all arguments is {seconds(best)}"
    ))  # fmt: skip


def _read(path: Path) -> Certificate:
    return read_json(
        path, Certificate, error=CertificateError, what="certificate of a bound", values=FILE_VALUES, limit=FILE_BYTES
    )


def _check(path: Path, problem: Problem) -> None:
    certificate = _read(path)
    here, said = f"{problem.graph.name} on {problem.cluster.name}", f"{certificate.program} on {certificate.machine}"
    other = "" if here == said else f" (the file says that it is of {said})"
    try:
        proven = proven_s(problem, certificate)
    except CertificateError as e:
        raise CertificateError(f"{path} proves nothing of {here}{other}: {e.message}", e.hint) from None
    if not proven:
        raise CertificateError(f"{path} proves nothing of {here}{other}: its bound is 0 s")
    steps = sum(x > 0 for level in (certificate.heads, certificate.tails) for row in level for x in row)
    checked = f"; {steps:,} heads and tails were checked" if steps else ""
    print(console.wrapped(
        f"{path} proves that no placement of {here} that fits is faster than {seconds(proven)}, by {certificate.argument.by}"
        f"{other}{checked}"
    ))  # fmt: skip
