"""The lines that a run shows about its stages."""

from __future__ import annotations

from collections.abc import Sequence

from placekit_core.contracts.graph import Graph
from placekit_core.contracts.ledger import Ledger
from placekit_core.contracts.program import Program
from placekit_core.contracts.units import count, mebibytes
from placekit_core.run.assembly import OpenProgram
from placekit_core.run.config import PYTHON, RunConfig

_DEVICES = 4  # devices that are named one by one


def source(config: RunConfig) -> str:
    """The name of the program (workload, file, model or module) and its importer."""
    name, options = config.importer["name"], config.importer
    if name == PYTHON:
        return "the program that was passed in"
    own = next((str(options[key]) for key in ("path", "model", "module") if options.get(key)), "")
    what = config.workload or own
    return f"{what} (importer {name})" if what and what != name else name


def imported(programs: Sequence[Program]) -> str:
    """The size of what was imported; of a family, the sums."""
    graphs = [program.graph for program in programs]
    parts = [
        f"{sum(int(g.kernel.sum()) for g in graphs):,} kernels",
        f"{count(sum(float(g.flops.sum()) for g in graphs))}FLOP",
    ]
    if parameters := sum(map(_parameter_bytes, graphs)):
        parts.append(f"{mebibytes(parameters)} of parameters")
    head = f"{len(graphs)} graphs, " if len(graphs) > 1 else ""
    return f"{head}{sum(g.n for g in graphs):,} operations: {', '.join(parts)}"


def _parameter_bytes(graph: Graph) -> float:
    return float(graph.persistent_bytes[graph.op_type.is_value("parameter")].sum())


def opened(searches: Sequence[OpenProgram]) -> str:
    """The number of groups, and the machine of the first program."""
    cluster = searches[0].problem.cluster
    groups = sum(s.problem.g for s in searches)
    sizes = [
        f"{name} ({mebibytes(size)})"
        for name, size in zip(cluster.device_names, cluster.memory_bytes.tolist(), strict=True)
    ]
    more = f" and {cluster.size - _DEVICES} more devices" if cluster.size > _DEVICES else ""
    return f"{groups:,} groups; machine {cluster.name}: {', '.join(sizes[:_DEVICES])}{more}"


def search(config: RunConfig, searches: Sequence[OpenProgram]) -> str:
    """The method and its budget."""
    return f"placing with {config.policy['name']}: {_budget(searches[0].evaluate.ledger)}"


def _budget(ledger: Ledger) -> str:
    limits = [] if ledger.limit is None else [f"{ledger.limit:,} evaluation{'' if ledger.limit == 1 else 's'}"]
    limits += [] if ledger.limit_s is None else [f"{ledger.limit_s:g} s"]
    return f"at most {' or '.join(limits)}"
