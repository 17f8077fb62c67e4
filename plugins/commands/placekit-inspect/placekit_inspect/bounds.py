"""`placekit bounds`: what no placement can beat, and by which argument; makes and checks certificates of it."""

from __future__ import annotations

from collections.abc import Iterator
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

from placekit_core import ConfigError, Problem, Registry
from placekit_core.cli import console
from placekit_core.cli.completion import Completion
from placekit_core.cli.compose import assembled
from placekit_core.cli.parser import Parser
from placekit_core.contracts.files import read_json, write_atomically
from placekit_core.contracts.units import seconds


def main(argv: list[str], registry: Registry) -> int:
    """The entry of the command; see `placekit_core.Command`."""
    parser = Parser(
        "bounds", "The proven lower bounds of the makespan, by argument, for the groups of the default policy or of the one"
        " that is named.", options=True,
    )  # fmt: skip
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--certificate", metavar="FILE", type=Path, help="write a proof that can be checked step by step")
    how.add_argument("--check", metavar="FILE", type=Path, help="check such a proof: nothing of it is taken on trust")
    arguments = parser.read(argv)
    parts = assembled(arguments.options, registry)
    if parts.backend.objective != "makespan":
        raise ConfigError(
            f"backend {parts.backend.name!r} has the objective {parts.backend.objective}, and these are bounds of makespans",
            "`placekit run` says the bound of any objective",
        )
    if arguments.certificate is not None and arguments.certificate.exists():
        raise ConfigError(f"{arguments.certificate} exists already", "remove it, or choose another name")
    if arguments.certificate is None and arguments.check is None:
        for program in parts.programs:
            show(parts.problem(program), parts.backend.offloads)
        return 0
    problem = parts.problem(parts.one_program("a certificate"))
    if arguments.check is not None:
        _check(arguments.check, problem)
    else:
        _certify(arguments.certificate, problem)
    return 0


def complete(words: list[str], word: str, completion: Completion) -> Iterator[str]:
    """Candidates for the shell; see `placekit_core.Command`."""
    yield from (
        completion.paths(word) if words[-1:] in (["--check"], ["--certificate"]) else completion.options(words, word)
    )


def show(problem: Problem, offloads: bool = False) -> None:
    """A table of all bounds, and which of them binds."""
    found = all_bounds(problem)
    if offloads:
        found["offload"] = offload_bound(problem)
    title = f"{problem.graph.name} on {problem.cluster.name}: {problem.graph.n:,} operations in {problem.g:,} groups"
    console.table(
        ["argument", "no placement that fits is faster than"], [[k, seconds(v)] for k, v in found.items()], title
    )
    best = max(found.values())
    print(f"proven: {seconds(best * (1 - ROUNDING))}, by {binding_argument(found)}")


def _certify(path: Path, problem: Problem) -> None:
    certificate = certify(problem)
    proven_s(problem, certificate)
    write_atomically(path, certificate.model_dump_json().encode() + b"\n")
    best = max(all_bounds(problem).values())
    print(console.wrapped(
        f"{path} proves {seconds(certificate.bound_s)}, by {certificate.argument.by}; the highest bound of all arguments is"
        f" {seconds(best)}"
    ))  # fmt: skip


def _check(path: Path, problem: Problem) -> None:
    certificate = read_json(path, Certificate, error=CertificateError, what="certificate of a bound")
    try:
        proven = proven_s(problem, certificate)
    except CertificateError as e:
        raise CertificateError(f"{path} proves nothing of this program on this machine: {e.message}", e.hint) from None
    steps = sum(any(row) for level in (certificate.heads, certificate.tails) for row in level)
    print(console.wrapped(
        f"{path} proves that no placement of {problem.graph.name} on {problem.cluster.name} that fits is faster than"
        f" {seconds(proven)}: {certificate.argument.by}, {steps:,} heads and tails checked"
    ))  # fmt: skip
