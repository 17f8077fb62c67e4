"""Executes a program in the simplest way, to compare other ways with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from placekit_core import Program


def run_sequential(
    program: Program, values: Mapping[int, Any], step: int = 0, device: Any = None
) -> tuple[dict[int, Any], dict[str, Any]]:
    """Run one step on one device, in the order of the graph: the reference for every other way to run it.

    Returns the values of the sources after the step, and the results by name.
    """
    graph, executable = program.graph, program.executable
    assert executable is not None, f"the importer of {graph.name!r} gives a graph only"
    views = executable.views
    keep = set(executable.updates.values()) | {views.get(t, t) for t in executable.results.values()}
    run = executable.compile([op for op in range(graph.n) if graph.kernel[op]], device, keep)
    after = {**values, **run(values, step)}
    results = {name: executable.result(name, after) for name in executable.results}
    new = {old: after[executable.updates.get(old, old)] for old in values}
    return new, results
