"""The files that logger `report` writes when a run ends."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placekit_core import Backend, Export, PlacekitError, Problem, ProgramResult, Registry, Result, write_atomically
from placekit_core.run.failures import optional, warn
from placekit_report.document import TIMELINES, Part, Run, Simulation, document, shown
from placekit_report.page import render
from placekit_report.trace import TRACE, write_trace

PAGE = "report.html"


def write_files(run_dir: Path, result: Result, registry: Registry) -> None:
    """Write `schedule.trace.json` of each program that was placed, and the page of the run."""
    for program in result.programs:
        if program.schedule is not None:
            folder = run_dir / program.summary.directory
            write_trace(folder / TRACE, program.schedule, program.problem)
    write_page(run_dir / PAGE, result, registry)


def write_page(path: Path, result: Result, registry: Registry) -> Path:
    """Write the page of a run. Returns its path."""
    with contextlib.ExitStack() as stack:
        run = run_of(result.run_dir or path.parent, result, registry, stack)
        page = render(document(run))
    write_atomically(path, page.encode())
    return path


def run_of(run_dir: Path, result: Result, registry: Registry, stack: contextlib.ExitStack) -> Run:
    """Collect the data of a result. Its placements are simulated again, in sessions that `stack` closes."""
    summary = result.summary
    config, parts, drawn = summary.config, list[Part](), 0
    backend = build_simulator(config, summary.simulated, registry)
    for p in result.programs:
        simulation, exports = None, list[Export]()
        if p.schedule is not None and drawn < TIMELINES:
            drawn += 1
            simulation = open_simulation(backend, p.problem, stack)
            exports = exports_of(p, registry)
        measured = not summary.simulated and p.schedule is not None
        parts.append(Part(p, simulation, measured, exports))
    return Run(shown(run_dir), summary, parts)


def exports_of(program: ProgramResult, registry: Registry) -> list[Export]:
    """The placement in the forms that other programs take; a plugin that fails is a warning."""
    found = list[Export]()
    with optional(warn, "the page shows no exports of the placement"):
        hook = registry.manager.hook.placekit_exports
        found += [e for own in hook(problem=program.problem, placement=program.placement) for e in own]
    return found


def build_simulator(config: Mapping[str, Any], simulated: bool, registry: Registry) -> Backend | None:
    """The simulator of a run: its backend, or else its proxy; None if neither simulates, or it was a Python object."""
    section = "backend" if simulated else "proxy"
    if section in config["python_objects"]:
        return None
    values = dict(config[section])
    with contextlib.suppress(PlacekitError):
        backend: Backend = registry.build("backend", str(values.pop("name")), values)
        return backend if backend.simulated else None
    return None


def open_simulation(backend: Backend | None, problem: Problem, stack: contextlib.ExitStack) -> Simulation | None:
    """Open a session on `problem`, which `stack` closes; None if that fails."""
    if backend is None:
        return None
    try:
        session = backend.open(problem)
    except PlacekitError:
        return None
    stack.callback(session.close)
    return Simulation(backend, session)
