"""`placekit report RUN_DIR [RUN_DIR]`: the page of a run, made from its folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from placekit_core import (
    Measurements,
    PlacekitError,
    Placement,
    PlacementError,
    Problem,
    Program,
    ProgramResult,
    ProgramSummary,
    Registry,
    RunError,
    Schedule,
    Summary,
    load_placement,
    units,
    write_atomically,
)
from placekit_core.cli.console import wrapped
from placekit_core.cli.parser import Parser
from placekit_core.contracts.files import checked, reading
from placekit_core.run.assembly import Assembly
from placekit_core.run.config import RunConfig
from placekit_core.run.run_directory import CONFIG, PLACEMENT, RESULT, load_summary
from placekit_report.curves import Rows, other_seeds, read_history
from placekit_report.document import Part, Run, Simulation, document, shown
from placekit_report.logger import PAGE, simulated, simulating
from placekit_report.page import render
from placekit_report.page_data import written
from placekit_report.rerun_command import command
from placekit_report.trace import TRACE
from placekit_report.trace_reader import read_schedule

BOTH = "comparison.html"
_SAME = 1e-9  # relative; what the simulation of an unchanged run may differ by


def main(argv: list[str], registry: Registry) -> int:
    """Write the page of one run, or one that compares two."""
    parser = Parser("report", "A page about a run, or about two of them: one HTML file that needs no network.")
    parser.add_argument("folders", nargs="+", metavar="RUN_DIR", type=Path, help="the run_dir of a run, or of two")
    parser.add_argument(
        "--out", type=Path, metavar="FILE",
        help=f"write it here; without it, RUN_DIR/{PAGE}, and of two runs {BOTH} in the first RUN_DIR",
    )  # fmt: skip
    arguments = parser.read(argv)
    folders: list[Path] = arguments.folders
    if len(folders) > 2:
        raise RunError(
            f"a page compares two runs, not {len(folders)}", "`placekit compare --html DIR ...` has any number of runs"
        )
    out = arguments.out or folders[0] / (PAGE if len(folders) == 1 else BOTH)
    with contextlib.ExitStack() as stack:
        runs = [reopened(folder, registry, stack) for folder in folders]
        data = render(document(runs)).encode()
    try:
        write_atomically(out, data)
    except OSError as e:
        raise RunError(f"cannot write {out}: {e.strerror or e}", "choose another: --out FILE") from None
    for run in runs:
        for note in run.notes:
            print(wrapped(f"note: {note}" if len(runs) == 1 else f"note: {run.name}: {note}"))
    print(f"written to {out}")
    return 0


def reopened(folder: Path, registry: Registry, stack: contextlib.ExitStack) -> Run:
    """The run in `folder` with its programs, as far as they can be opened again; `stack` closes the sessions.

    Raises RunError if there is no result.
    """
    summary = _summary(folder)
    with reading(folder / RESULT, RunError):
        config = checked(summary.config, RunConfig)
    notes: list[str] = []
    histories = [_history(folder / p.directory, notes) for p in summary.programs]
    others = [(seed, path) for seed, path in other_seeds(folder, summary.config)]
    parts = []
    opened = _Opened(folder, summary, config, registry, stack, notes)
    for i, own in enumerate(summary.programs):
        parts.append(opened.part(i, histories[i], list(_others(others, own.directory))))
    page = None
    if not any(part.found for part in parts) and os.path.isfile(folder / PAGE):
        page = written(folder / PAGE, summary)
        told = f"what {PAGE} of the run says is shown"
        if page is None:
            told = f"{PAGE} of the run cannot stand in: another version of placekit made it, or it was changed"
        lacks = f"{opened.lacks}; {told}"
        notes = [lacks] if page is not None else [lacks, *(note for note in notes if note != opened.lacks)]
    return Run(shown(folder), summary, parts, command(summary.config, registry), tuple(dict.fromkeys(notes)), page)


def _summary(folder: Path) -> Summary:
    """result.json of a run. Raises RunError that says what is there instead."""
    if os.path.isfile(folder / RESULT):
        return load_summary(folder)
    above = folder.absolute().parent.parent
    if folder.absolute().parent.name == "programs" and os.path.isfile(above / RESULT):
        raise RunError(
            f"{folder} is one program of a family", f"a page has all of them: placekit report {shown(above)}"
        )
    if os.path.isfile(folder / CONFIG):
        raise RunError(f"the run in {folder} has not finished", f"continue it: placekit run resume={folder}")
    runs = sorted(p.parent for p in folder.rglob(RESULT)) if os.path.isdir(folder) else []
    hint = f"give one of the {len(runs)} below it, e.g. {runs[0]}" if runs else "give the run_dir of a run"
    raise RunError(f"{folder} is no directory of a run: it has no {RESULT}", hint)


def _history(folder: Path, notes: list[str]) -> Rows:
    try:
        return read_history(folder)
    except RunError as e:
        notes.append(f"the search has no curve: {e.message}")
        return []


def _others(folders: Sequence[tuple[int, Path]], directory: str) -> Iterator[tuple[int, Rows]]:
    """Histories of other seeds; those that have none that can be read are left out."""
    for seed, path in folders:
        with contextlib.suppress(RunError):
            yield seed, read_history(path / directory)


class _Opened:
    """The programs of a run, imported again. What cannot be opened is left out, and `notes` says why."""

    def __init__(
        self,
        folder: Path,
        summary: Summary,
        config: RunConfig,
        registry: Registry,
        stack: contextlib.ExitStack,
        notes: list[str],
    ) -> None:
        self.folder, self.summary, self.config = folder, summary, config
        self.stack, self.notes, self.lacks = stack, notes, ""
        self.parts = Assembly(config, registry)
        self.backend = simulating(summary.config, summary.simulated, registry)
        self.programs = self._programs()

    def _programs(self) -> list[Program]:
        """The programs, in the order of the summary; none if they cannot be imported."""
        objects = self.config.python_objects
        if "programs" in objects:
            self._missing("its programs were objects of a Python program")
            return []
        try:
            found = list(self.parts.programs)
        except PlacekitError as e:
            self._missing(e.message)
            return []
        if len(found) != len(self.summary.programs):
            self._missing(f"its importer gives {len(found)} programs now, not {len(self.summary.programs)}")
            return []
        return found

    def _missing(self, why: str) -> None:
        self.lacks = f"the program could not be opened again: {why}"
        self.notes.append(self.lacks)

    def part(self, i: int, history: Rows, others: list[tuple[int, Rows]]) -> Part:
        """The i-th program."""
        own = self.summary.programs[i]
        if not self.programs:
            return Part(own, history, others=others)
        program = self.programs[i]
        try:
            problem = self._problem(program, own)
            placement = self._placement(problem, own)
            simulation = None if placement is None else simulated(self.backend, problem, self.stack)
            schedule, recorded = (
                (None, False) if placement is None else self._schedule(own, problem, placement, simulation)
            )
        except PlacekitError as e:
            self._missing(e.message)
            return Part(own, history, others=others)
        names = problem.cluster.device_names
        measurements = None
        if placement is not None:
            peaks = np.array([[own.peak_bytes.get(name, np.nan) for name in names]])
            value = np.array([np.nan if own.value_s is None else own.value_s])
            measurements = Measurements(value, peaks, np.array([own.fits]), (None,))
        found = ProgramResult(own, problem, placement, measurements, schedule, history)
        return Part(own, history, found, simulation, recorded, others)

    def _problem(self, program: Program, own: ProgramSummary) -> Problem:
        """The problem that was placed; with other groups if these have changed. Raises PlacekitError if it is another one."""
        try:
            problem = self.parts.problem(program)
        except PlacekitError:  # the grouper may not be installed
            problem = self.parts.problem(program, grouped=False)
        else:
            if problem.fingerprint != own.problem_fingerprint:
                problem = self.parts.problem(program, grouped=False)  # any grouping's placement fits the finest one
        for what, now, then in (
            ("program", problem.graph.fingerprint, own.graph_fingerprint),
            ("machine", problem.cluster.fingerprint, self.summary.cluster_fingerprint),
        ):
            if now != then:
                raise RunError(f"the {what} has changed since: fingerprint {now}, it was {then}")
        if own.costs_fingerprint and problem.costs_fingerprint != own.costs_fingerprint:
            self.notes.append(
                f"the costs of {own.program!r} have changed since the run: what is simulated again has the new ones"
            )
        return problem

    def _placement(self, problem: Problem, own: ProgramSummary) -> Placement | None:
        """The placement that the run found; None if it found none."""
        path = self.folder / own.directory / PLACEMENT
        if own.value_s is None:
            return None
        try:
            return load_placement(path, problem)
        except PlacementError as e:
            raise RunError(e.message) from None

    def _schedule(
        self, own: ProgramSummary, problem: Problem, placement: Placement, simulation: Simulation | None
    ) -> tuple[Schedule | None, bool]:
        """The schedule, and whether it is the recorded one of a run that measured. Nothing is measured again."""
        folder, device = self.folder / own.directory, problem.expand(placement.device)
        measured = not self.summary.simulated
        if (measured or simulation is None) and os.path.isfile(folder / TRACE):
            try:
                return read_schedule(folder, problem, device, own.value_s or 0.0), measured
            except RunError as e:
                self.notes.append(e.message)
        if simulation is None:
            self.notes.append(
                f"{own.program!r} has no timeline: its backend {self.summary.backend!r} is not here to simulate it"
            )
            return None, False
        then, now = own.value_s or 0.0, float(simulation.session.evaluate(placement.batch()).value_s[0])
        if not measured and not abs(now - then) <= _SAME * then:
            self.notes.append(
                f"simulated again, {own.program!r} takes {units.seconds(now)}; the run found {units.seconds(then)}"
            )
        return simulation.session.schedule(placement), False
