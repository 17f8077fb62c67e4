"""`placekit graph show | export | import`."""

from __future__ import annotations

import time
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from placekit_core.cli.arguments import quoted
from placekit_core.cli.console import table
from placekit_core.cli.graph_facts import Facts, Imported, as_json, peak_bytes, show_table
from placekit_core.detection import importer_of, writer_of
from placekit_core.errors import ConfigError, GraphError
from placekit_core.graph import Column, Graph, Labels
from placekit_core.problem import Problem, Program
from placekit_core.registry import installed
from placekit_core.units import count, seconds

if TYPE_CHECKING:
    from placekit_core.config import RunConfig
    from placekit_core.interfaces import Importer

_USAGE = (
    "usage: placekit graph show [FILE] [OPTION=VALUE ...] [--json] | show -m [FILE ...] [OPTION=VALUE,VALUE ...]"
    " | export OUT [OPTION=VALUE ...] | import FILE [OUT]"
)


def main(argv: list[str]) -> int:
    """Dispatch on the sub-command."""
    if argv[:1] == ["show"]:
        return _show(argv[1:])
    if argv[:1] == ["export"] and len(argv) > 1 and "=" not in argv[1] and not argv[1].startswith("-"):
        return _export(Path(argv[1]), argv[2:])
    if argv[:1] == ["import"] and len(argv) in (2, 3):
        return _import(Path(argv[1]), Path(argv[2]) if len(argv) == 3 else None)
    raise ConfigError(_USAGE)


def _show(options: list[str]) -> int:
    """The numbers of one import, or with `-m` a table of several."""
    flags = {o for o in options if o.startswith("-")}
    options = [o for o in options if o not in flags]
    if flags - {"-m", "--json"} or len(flags) > 1:
        raise ConfigError(_USAGE)
    files = list(takewhile(lambda o: "=" not in o, options))
    options = options[len(files) :]
    if "-m" in flags:
        from placekit_core.cli.hydra_app import jobs

        own = [[file] for file in files] or [[]]
        return show_table([[*file, *job] for file in own for job in jobs(options)], shared=options)
    if len(files) > 1:
        raise ConfigError(f"{len(files)} files: {', '.join(files)}", "give one, or -m for a table with a row per file")
    config, programs, taken = _imported(options, *files)
    problems = _problems(config, programs)
    facts = [Facts.of(p) for p in problems]
    if "--json" in flags:
        print(as_json(Imported(facts, *taken)))
        return 0
    for problem, numbers in zip(problems, facts, strict=True):
        show(problem, numbers)
    return 0


def _imported(options: list[str], file: str | None = None) -> tuple[RunConfig, list[Program], tuple[float, int]]:
    """The programs that `placekit run` would place with these options, or of a file; seconds and peak bytes."""
    from placekit_core.cli.hydra_app import compose
    from placekit_core.config import validate

    if file is not None:
        options = [f"importer={importer_of(file)}", f"importer.path={quoted(file)}", *options]
    config = validate(compose(options))
    start = time.perf_counter()
    programs = config.build("importer").load()
    return config, programs, (time.perf_counter() - start, peak_bytes())


def _problems(config: RunConfig, programs: list[Program]) -> list[Problem]:
    """The programs grouped, on their machines."""
    from placekit_core.config import Streams
    from placekit_core.opening import choose_cluster, make_problem

    grouper, backend = config.build("grouper"), config.build("backend")
    level = config.component("policy")[0].load().level
    streams = Streams(config.seed)
    return [make_problem(config, p, choose_cluster(config, p, backend), grouper, level, streams) for p in programs]


def _export(out: Path, options: list[str]) -> int:
    writer = writer_of(out)
    programs = _imported(options)[1]
    for target, program in zip(_targets(out, programs), programs, strict=True):
        graph = _write(writer, program, target).graph
        print(f"{target}: {graph.n} operations, fingerprint {graph.fingerprint}")
    return 0


def _import(path: Path, out: Path | None) -> int:
    name = importer_of(path)
    entry = installed().get("importer", name)
    writer = None if out is None else writer_of(out)
    programs = entry.build(entry.component.config.model_validate({"path": str(path)})).load()
    targets = [] if out is None else _targets(out, programs)
    for i, program in enumerate(programs):
        brings = [f"seconds for {', '.join(program.costs.kinds)}"] if program.costs is not None else []
        brings += [f"machine {program.cluster.name!r}"] if program.cluster is not None else []
        print(f"{path} is valid ({name}): {', '.join([repr(program.graph), *brings])}")
        if writer is not None:
            _write(writer, program, targets[i])
            command = f"placekit run importer={writer.name} importer.path={quoted(str(targets[i]))}"
            print(f"written to {targets[i]}; place it with `{command}`")
    return 0


def _targets(out: Path, programs: list[Program]) -> list[Path]:
    """Where each program of a family is written. Raises GraphError for a file that exists."""
    targets = [out] if len(programs) == 1 else [out.with_name(f"{i:03d}-{out.name}") for i in range(len(programs))]
    for target in targets:
        if target.exists():
            raise GraphError(f"{target} exists already", "remove it, or choose another name")
    return targets


def _write(writer: type[Importer], program: Program, target: Path) -> Program:
    """Write a program, and say what its file lacks. Returns the program of the file."""
    writer.write(program, target)
    [again] = writer(path=str(target)).load()
    missing, other = _lost(program, again)
    if missing:
        print(f"{target} holds no {', no '.join(missing)}")
    if other:
        print(f"{target} has another {', another '.join(other)}")
    return again


def _lost(program: Program, again: Program) -> tuple[list[str], list[str]]:
    """What the program of a file lacks of that which was written to it, and what it has in another form."""
    graph, costs = program.graph, program.costs
    missing = ["seconds"] if costs is not None and again.costs is None else []
    missing += ["machine"] if program.cluster is not None and again.cluster is None else []
    missing += ["split"] if program.split is not None and again.split is None else []
    missing += [f"column {c}" for c in sorted(set(graph.columns) - set(again.graph.columns))]
    found = again.graph.all_columns()
    other = [key for key in ("name", "op_name", "attributes") if getattr(again.graph, key) != getattr(graph, key)]
    other += [key for key, column in graph.all_columns().items() if key in found and not _equal(column, found[key])]
    if costs is not None and again.costs is not None:
        kernel = graph.kernel
        other += ["seconds"] if not np.array_equal(costs.op_s, again.costs.op_s) else []
        other += ["measured"] if not np.array_equal(costs.measured[kernel], again.costs.measured[kernel]) else []
    other += ["machine"] if again.cluster is not None and again.cluster != program.cluster else []
    return missing, other


def _equal(a: Column, b: Column) -> bool:
    """Whether two columns have the same values."""
    one, other = (np.asarray(c.tolist() if isinstance(c, Labels) else c) for c in (a, b))
    return np.array_equal(one, other)


def _plain(text: str) -> str:
    """The text, escaped where a terminal would take it for a command."""
    return text if text.isprintable() else repr(text)[1:-1]


def show(problem: Problem, facts: Facts) -> None:
    """The graph in numbers: sizes, work, critical path, the heaviest operation types."""
    g = problem.graph
    rows = facts.rows()
    rows += [[_plain(k.replace("_", " ")), _plain(str(v))] for k, v in g.attributes.items() if k != "kernels"]
    print(_plain(g.name))
    width = max(len(r[0]) for r in rows)
    for key, value in rows:
        print(f"  {key:{width}}  {value}")
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
    table(["operation type", "number", "time", "share", "arithmetic"], rows)
