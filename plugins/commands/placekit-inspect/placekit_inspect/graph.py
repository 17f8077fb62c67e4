"""`placekit graph show` and `graph export`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from placekit_core import ConfigError, Graph, GraphError, Importer, Problem, Program, Registry
from placekit_core.cli import console
from placekit_core.cli.compose import assembled, jobs
from placekit_core.cli.parser import Parser
from placekit_core.contracts.units import count, seconds
from placekit_core.run.assembly import Assembly
from placekit_core.run.entries import plugin_output
from placekit_inspect.graph_facts import Facts, Imported, as_json, peak_bytes, show_table


def show_command(argv: list[str], registry: Registry) -> int:
    """`placekit graph show`: the numbers of one import, or with `-m` a table of several."""
    what = "A program's graph in numbers: sizes, work, critical path, the heaviest types."
    parser = Parser("graph show", what, options="FILE|OPTION=VALUE")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print JSON, with the seconds and memory of the import")
    how.add_argument("-m", "--multirun", action="store_true", help="a table: a row per FILE and job of a sweep")
    arguments = parser.read(argv)
    files = [o for o in arguments.options if "=" not in o and o[:1] not in "~+"]
    options = [o for o in arguments.options if o not in files]
    if arguments.multirun:
        own = [[file] for file in files] or [[]]
        folders = [o for o in options if o.startswith("--config-dir=")]
        every = [[*file, *job, *folders] for file in own for job in jobs(options, registry)]
        return show_table(every, shared=options)
    if len(files) > 1:
        raise ConfigError(
            f"{len(files)} files are given: {', '.join(files)}", "give one, or -m for a table with a row per file"
        )
    parts, (import_s, peak) = _imported(arguments.options, registry)
    problems = [parts.problem(program) for program in parts.programs]
    facts = [Facts.of(p) for p in problems]
    if arguments.json:
        print(as_json(Imported(facts, import_s, peak)))
        return 0
    for problem, numbers in zip(problems, facts, strict=True):
        show(problem, numbers)
    return 0


def _imported(words: list[str], registry: Registry) -> tuple[Assembly, tuple[float, int]]:
    """Import the programs of a run; returns also the seconds and peak bytes of the import."""
    parts = assembled(words, registry)
    start = time.perf_counter()
    with plugin_output():  # a user's file may print
        _ = parts.programs
    return parts, (time.perf_counter() - start, peak_bytes())


def export_command(argv: list[str], registry: Registry) -> int:
    """`placekit graph export`: write the program of a run to a file."""
    parser = Parser(
        "graph export",
        "Write a program's graph to a file, in the format of the file's ending.",
        options="FILE|OPTION=VALUE",
    )
    parser.add_argument("out", metavar="OUT", type=Path, help=f"the file; {_writes(registry)}")
    arguments = parser.read(argv)
    if "=" in str(arguments.out):
        raise ConfigError(f"{arguments.out} is an option, not a file", "write `placekit graph export OUT OPTION=VALUE`")
    writer = writer_of(arguments.out, registry)
    programs = _imported(arguments.options, registry)[0].programs
    for target, program in zip(_targets(arguments.out, programs), programs, strict=True):
        graph = _write(writer, program, target)
        print(f"{target}: {graph.n} operations, fingerprint {graph.fingerprint}")
    return 0


def _writes(registry: Registry) -> str:
    """The formats that importers can write."""
    files = {c.name: c.written for c in registry.importers() if c.written}
    return ", ".join(f"{ending} ({name})" for name, own in sorted(files.items()) for ending in own)


def writer_of(path: Path, registry: Registry) -> type[Importer]:
    """The importer class that writes files with this ending; the longest ending wins. Raises GraphError."""
    fitting = [(ending, c.name) for c in registry.importers() for ending in c.written if path.name.endswith(ending)]
    longest = max((len(ending) for ending, _ in fitting), default=0)
    names = [name for ending, name in fitting if len(ending) == longest]
    if len(names) != 1:
        raise GraphError(
            f"{' and '.join(names) or 'no importer'} would write {path}", f"endings that work: {_writes(registry)}"
        )
    cls: type[Importer] = registry.get("importer", names[0]).load()
    return cls


def _targets(out: Path, programs: Sequence[Program]) -> list[Path]:
    """A file for each program. Raises GraphError if one exists."""
    targets = [out] if len(programs) == 1 else [out.with_name(f"{i:03d}-{out.name}") for i in range(len(programs))]
    for target in targets:
        if target.exists():
            raise GraphError(f"{target} exists already", "remove it, or choose another name")
    return targets


def _write(writer: type[Importer], program: Program, target: Path) -> Graph:
    """Write a program, and print the parts that the file lacks. Returns the graph as read from the file."""
    writer.write(program, target)
    [again] = writer(path=str(target)).load()
    parts = {"seconds": "costs", "machine": "cluster", "split": "split"}
    lost = [text for text, key in parts.items() if getattr(program, key) is not None and getattr(again, key) is None]
    lost += [f"column {c}" for c in sorted(set(program.graph.columns) - set(again.graph.columns))]
    if lost:
        print(f"{target} has no {', no '.join(lost)}")
    return again.graph


def _plain(text: str) -> str:
    """The text, with control characters escaped."""
    return text if text.isprintable() else repr(text)[1:-1]


def show(problem: Problem, facts: Facts) -> None:
    """Print sizes, work, critical path and the heaviest operation types."""
    g = problem.graph
    rows = facts.rows()
    hidden = {"kernels", "unsplit", "stateless"}  # counted above, and lists of modules for runtimes
    rows += [(_plain(k.replace("_", " ")), _plain(str(v))) for k, v in g.attributes.items() if k not in hidden]
    print(_plain(g.name))
    console.facts(rows)
    _heaviest(g, np.where(problem.op_allowed, problem.op_s, np.inf).min(axis=1))


def _heaviest(g: Graph, fastest: np.ndarray) -> None:
    total = np.bincount(g.op_type.codes, fastest, minlength=len(g.op_type.vocabulary))
    number = np.bincount(g.op_type.codes, minlength=len(g.op_type.vocabulary))
    flops = np.bincount(g.op_type.codes, g.flops, minlength=len(g.op_type.vocabulary))
    rows = [
        [_plain(g.op_type.vocabulary[i]), f"{number[i]}", seconds(float(total[i])),
         f"{100 * total[i] / max(total.sum(), 1e-300):.1f}%", f"{count(float(flops[i]))}FLOP"]
        for i in np.argsort(-total, kind="stable")[:8] if total[i] > 0
    ]  # fmt: skip
    print()
    console.table(["operation type", "number", "time", "share", "arithmetic"], rows)
