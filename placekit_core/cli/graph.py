"""`placekit graph show | export | import`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from placekit_core.cli.arguments import quoted
from placekit_core.cli.console import table
from placekit_core.errors import ConfigError, GraphError
from placekit_core.graph import PHASES, Graph
from placekit_core.graph_file import load_graph, save_graph
from placekit_core.problem import Problem
from placekit_core.registry import installed
from placekit_core.units import count, mebibytes, seconds

_USAGE = "usage: placekit graph show [OPTION=VALUE ...] | export OUT.graph.npz [OPTION=VALUE ...] | import FILE [OUT]"


def main(argv: list[str]) -> int:
    """Dispatch on the sub-command."""
    if argv[:1] == ["show"]:
        for problem in _problems(argv[1:]):
            show(problem)
        return 0
    if argv[:1] == ["export"] and len(argv) > 1 and "=" not in argv[1] and not argv[1].startswith("-"):
        return _export(Path(argv[1]), argv[2:])
    if argv[:1] == ["import"] and len(argv) in (2, 3):
        return _import(Path(argv[1]), Path(argv[2]) if len(argv) == 3 else None)
    raise ConfigError(_USAGE)


def _problems(options: list[str]) -> list[Problem]:
    """The problems that `placekit run` would place with these options; a graph file alone will do."""
    from placekit_core.cli.hydra_app import compose
    from placekit_core.config import Streams, validate
    from placekit_core.opening import choose_cluster, make_problem

    if options and "=" not in options[0] and not options[0].startswith("-"):
        options = [f"importer={_importer_of(options[0])}", f"importer.path={quoted(options[0])}", *options[1:]]
    config = validate(compose(options))
    grouper, backend, level = (
        config.build("grouper"),
        config.build("backend"),
        config.component("policy")[0].load().level,
    )
    programs = config.build("importer").load()
    streams = Streams(config.seed)
    return [make_problem(config, p, choose_cluster(config, p, backend), grouper, level, streams) for p in programs]


def _importer_of(path: str) -> str:
    """Name of the importer that reads files named like this."""
    readers = [e for e in installed().all() if e.kind == "importer" and path.endswith(e.component.files or ("\0",))]
    if not readers:
        endings = sorted(f for e in installed().all() for f in e.component.files)
        raise GraphError(f"no importer reads {path}", f"known endings: {', '.join(endings)}")
    return readers[0].component.name


def _export(out: Path, options: list[str]) -> int:
    problems = _problems(options)
    for i, problem in enumerate(problems):
        target = out if len(problems) == 1 else out.with_name(f"{i:03d}-{out.name}")
        if target.exists():
            raise GraphError(f"{target} exists already", "remove it, or choose another name")
        save_graph(problem.graph, target)
        print(f"{target}: {problem.graph.n} operations, fingerprint {problem.graph.fingerprint}")
    return 0


def _import(path: Path, out: Path | None) -> int:
    name = _importer_of(str(path))
    entry = installed().get("importer", name)
    programs = entry.build(entry.component.config.model_validate({"path": str(path)})).load()
    for i, program in enumerate(programs):
        print(f"{path} is valid ({name}): {program.graph}")
        if out is not None:
            target = out if len(programs) == 1 else out.with_name(f"{i:03d}-{out.name}")
            save_graph(program.graph, target)
            print(
                f"written to {target}; place it with `placekit run importer=file importer.path={quoted(str(target))}`"
            )
            load_graph(target)
    return 0


def show(problem: Problem) -> None:
    """The graph in numbers: sizes, work, critical path, the heaviest operation types."""
    from placekit_core.bounds import critical_path_bound

    g = problem.graph
    fastest = np.where(problem.op_allowed, problem.op_s, np.inf).min(axis=1)
    work, path = float(fastest.sum()), critical_path_bound(problem)
    sources = ~g.kernel
    persistent = {
        kind: float(g.persistent_bytes[sources & g.op_type.is_value(kind)].sum()) for kind in g.op_type.vocabulary
    }
    held = ", ".join(f"{kind} {mebibytes(b)}" for kind, b in persistent.items() if b)
    own = g.tensor_storage == np.arange(g.t)
    activations = float(g.tensor_bytes[own & g.kernel[g.tensor_producer]].sum())
    rows = [
        ["operations", f"{g.n} ({int(g.kernel.sum())} kernels, {int(sources.sum())} sources)"],
        ["tensors, edges", f"{g.t}, {g.e}"],
        ["groups", f"{problem.g}"],
        ["phases", ", ".join(f"{p} {int((g.kernel & (g.phase == i)).sum())}" for i, p in enumerate(PHASES))],
        ["arithmetic", f"{count(float(g.flops.sum()))}FLOP"],
        ["memory traffic", f"{count(float(g.bytes_accessed.sum()))}B"],
        ["persistent", held or "nothing"],
        ["outputs of kernels", mebibytes(activations)],
        ["depth", f"{int(g.depth.max(initial=0)) + 1} levels"],
        ["work", f"{seconds(work)}, every operation on its fastest device of {problem.cluster.name}"],
        ["critical path", seconds(path)],
        ["parallelism", f"{work / path:.2f} (work / critical path)" if path else "-"],
        ["fingerprint", g.fingerprint],
    ]
    rows += [[k.replace("_", " "), str(v)] for k, v in g.attributes.items() if k != "kernels"]
    print(g.name)
    width = max(len(r[0]) for r in rows)
    for key, value in rows:
        print(f"  {key:{width}}  {value}")
    _heaviest(g, fastest)


def _heaviest(g: Graph, fastest: np.ndarray) -> None:
    total = np.bincount(g.op_type.codes, fastest, minlength=len(g.op_type.vocabulary))
    number = np.bincount(g.op_type.codes, minlength=len(g.op_type.vocabulary))
    flops = np.bincount(g.op_type.codes, g.flops, minlength=len(g.op_type.vocabulary))
    rows = [
        [g.op_type.vocabulary[i], f"{number[i]}", seconds(float(total[i])), f"{100 * total[i] / max(total.sum(), 1e-300):.1f}%",
         f"{count(float(flops[i]))}FLOP"]
        for i in np.argsort(-total, kind="stable")[:8] if total[i] > 0
    ]  # fmt: skip
    print()
    table(["operation type", "number", "time", "share", "arithmetic"], rows)
