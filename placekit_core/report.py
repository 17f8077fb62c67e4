"""What came out of a run: from the evaluators of its programs to a `Result` and the files of the run directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from placekit_core import results
from placekit_core.config import RunConfig
from placekit_core.errors import PlacekitError, RunError, unknown
from placekit_core.interfaces import Backend, Trainer
from placekit_core.measurement import Measurements, Schedule
from placekit_core.opening import OpenProgram
from placekit_core.placement import Placement, save_placement
from placekit_core.problem import Problem
from placekit_core.profile import FILE, profile, write_profile
from placekit_core.registry import installed
from placekit_core.results import ProgramSummary, Summary

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class ProgramResult:
    """What was found for one program.

    Attributes:
        summary: the numbers, as in result.json.
        problem: what was placed: graph, groups, cluster, costs.
        placement: the best placement that fits; None if there is none, and then neither of the next two.
        measurements: a batch of one: what was measured of it.
        schedule: its timed events.
        history: a row per evaluated batch, columns `placekit_core.evaluator.HISTORY`.
    """

    summary: ProgramSummary
    problem: Problem
    placement: Placement | None
    measurements: Measurements | None
    schedule: Schedule | None
    history: Sequence[tuple[float, ...]]


@dataclass(frozen=True, eq=False)
class Result:
    """What a run found; times in seconds, memory in bytes.

    `problem`, `placement`, `measurements` and `schedule` are those of its only program; a family has them in `programs`.

    Attributes:
        summary: the numbers, with seed, budget, versions and configuration: what result.json holds.
        programs: each program's placement and what was measured of it.
        run_dir: where the files are; None where none were asked for.
    """

    summary: Summary
    programs: tuple[ProgramResult, ...]
    run_dir: Path | None

    @property
    def _only(self) -> ProgramResult:
        if len(self.programs) != 1:
            raise PlacekitError(f"this result has {len(self.programs)} programs", "take one: result.programs[i]")
        return self.programs[0]

    @property
    def value_s(self) -> float | None:
        """The objective of the best placement (the mean over a family), seconds; None if none fits."""
        return self.summary.value_s

    @property
    def problem(self) -> Problem:
        return self._only.problem

    @property
    def placement(self) -> Placement | None:
        return self._only.placement

    @property
    def measurements(self) -> Measurements | None:
        return self._only.measurements

    @property
    def schedule(self) -> Schedule | None:
        return self._only.schedule

    def to_frame(self, what: str = "operations") -> pd.DataFrame:
        """A pandas table: `operations`, `transfers`, `devices`, `history` or `programs`; a family's begin with `program`.

        Raises PlacekitError for another name, or if pandas is not installed.
        """
        from placekit_core.frames import TABLES

        if what not in TABLES:
            raise unknown("table", what, TABLES, PlacekitError)
        try:
            import pandas as pd
        except ImportError:
            raise PlacekitError("to_frame needs pandas", "pip install 'placekit[notebook]'") from None
        parts = [pd.DataFrame(TABLES[what](p)) for p in self.programs]
        if len(parts) == 1:
            return parts[0]
        for part, p in zip(parts, self.programs, strict=True):
            if "program" not in part:
                part.insert(0, "program", p.summary.program)
        return pd.concat(parts, ignore_index=True)

    def __repr__(self) -> str:
        from placekit_core.frames import text

        return text(self)

    def _repr_html_(self) -> str:
        from placekit_core.frames import html

        return html(self)


def report(
    config: RunConfig,
    searches: list[OpenProgram],
    backend: Backend,
    trainer: Trainer | None,
    run_dir: Path,
    status: str,
) -> Result:
    """Write what was found for every program: its placement, its schedule, its profile. result.json comes last (`commit`)."""
    found = tuple(_report_program(s, run_dir) for s in searches)
    programs = [p.summary for p in found]
    single = len(programs) == 1
    values = [p.value_s for p in programs if p.value_s is not None]
    gaps = [p.gap for p in programs if p.gap is not None]
    bounds = [p.bound_s for p in programs if p.bound_s is not None]
    peak: dict[str, float] = {}
    for p in programs:
        for device, bytes_ in p.peak_bytes.items():
            peak[device] = max(peak.get(device, 0.0), bytes_)
    notes = list(dict.fromkeys(note for p in programs for note in p.notes))
    asked = config.budget.proxy_evaluations
    if asked and status == "finished" and not any(p.proxy_evaluations for p in programs):
        notes.append(f"budget.proxy_evaluations={asked} was not used: policy {config.policy['name']!r} asked no proxy")
    ledger, complete = searches[0].task.evaluate.ledger, len(values) == len(programs)
    summary = Summary(
        status=status,
        workload=config.workload or (searches[0].name if single else f"{len(programs)} programs"),
        objective=backend.objective,
        simulated=backend.simulated,
        value_s=float(np.mean(values)) if complete else None,
        bound_s=float(np.mean(bounds)) if len(bounds) == len(programs) else None,
        gap=float(np.mean(gaps)) if len(gaps) == len(programs) else None,
        spread_s=programs[0].spread_s if single else None,
        fits=complete and all(p.fits for p in programs),
        error=next((p.error for p in programs if p.error), None),
        evaluations=sum(p.evaluations for p in programs),
        proxy_evaluations=sum(p.proxy_evaluations for p in programs),
        seconds=sum({id(s.task.evaluate.ledger): s.task.evaluate.ledger.seconds for s in searches}.values()),
        seed=config.seed,
        importer=config.importer["name"],
        grouper=config.grouper["name"],
        policy=config.policy["name"],
        trainer=None if trainer is None else trainer.name,
        backend=config.backend["name"],
        cluster=searches[0].problem.cluster.name,
        cluster_fingerprint=searches[0].problem.cluster.fingerprint,
        peak_bytes=peak,
        notes=notes,
        budget={
            "evaluations": ledger.limit,
            "seconds": ledger.limit_s,
            "proxy_evaluations": asked,
        },
        programs=programs,
        torch_threads=results.torch_threads(),
        versions=results.versions([*config.distributions(), "torch", "numba"]),
        code=installed().code(config.distributions(importer=False)),  # what that one does is in the fingerprints
        config=config.model_dump(mode="json"),
    )
    return Result(summary, found, run_dir)


def commit(result: Result, run_dir: Path) -> None:
    """Write result.json, by which a run counts as written."""
    results.write_json(run_dir / results.RESULT, result.summary.model_dump(mode="json"))


def _report_program(s: OpenProgram, run_dir: Path) -> ProgramResult:
    evaluate, problem = s.task.evaluate, s.problem
    s.directory.mkdir(parents=True, exist_ok=True)
    best, schedule, measurements = evaluate.best, None, None
    if best is not None:
        schedule = s.session.schedule(best.placement)
        spread = None if best.spread_s is None else np.array([best.spread_s])
        measurements = Measurements(
            np.array([best.value_s]), best.peak_bytes[None, :], np.array([True]), (None,), spread
        )
        save_placement(best.placement, problem, s.directory / results.PLACEMENT)
        results.write_trace(s.directory / results.TRACE, schedule, problem)
        write_profile(s.directory / FILE, profile(problem, schedule, s.name))
    bounds = [b for b in (s.session.lower_bound(), evaluate.proven_s) if b is not None]
    bound = max(bounds, default=None)
    kernels = int(problem.graph.kernel.sum())
    measured = problem.costs.measured[problem.graph.kernel]
    summary = ProgramSummary(
        program=s.name,
        split=s.program.split,
        operations=problem.graph.n,
        kernels=kernels,
        groups=problem.g,
        graph_fingerprint=problem.graph.fingerprint,
        problem_fingerprint=problem.fingerprint,
        costs_fingerprint=problem.costs_fingerprint,
        value_s=best.value_s if best else None,
        bound_s=bound,
        gap=best.value_s / bound - 1 if best and bound else None,
        spread_s=best.spread_s if best else None,
        fits=best is not None,
        error=None if best else evaluate.last_error,
        evaluations=evaluate.evaluations,
        proxy_evaluations=s.task.opened_proxy.evaluations if s.task.opened_proxy else 0,
        seconds=evaluate.ledger.seconds,
        peak_bytes=dict(zip(problem.cluster.device_names, best.peak_bytes.tolist(), strict=True)) if best else {},
        notes=list(evaluate.notes),
        measured_costs=float(measured.mean()) if measured.size else 0.0,
        directory=str(s.directory.relative_to(run_dir)),
    )
    placement = best.placement if best else None
    return ProgramResult(summary, problem, placement, measurements, schedule, tuple(evaluate.history))


class BoundError(RunError):
    """A value is below its proven bound, so that one of the two is wrong; `result` has both."""

    result: Result


def bound_error(result: Result) -> BoundError | None:
    """The error if a value is below what was proven to be its bound."""
    for p in result.programs:
        value, bound = p.summary.value_s, p.summary.bound_s
        if value is not None and bound is not None and value < bound * (1 - 1e-9):
            return BoundError(
                f"{p.summary.program!r} has a value of {value:.9g} s, below its proven bound of {bound:.9g} s",
                f"this is a bug in backend {result.summary.backend!r} or in what policy {result.summary.policy!r} proved",
            )
    return None


def why_nothing_fits(searches: list[OpenProgram]) -> tuple[str, str]:
    """Message and hint for a run that found no placement that fits."""
    s = next(s for s in searches if s.task.evaluate.best is None)
    e = s.task.evaluate
    tried = f"{e.evaluations} evaluation{'' if e.evaluations == 1 else 's'}"
    if e.last_error:
        return f"no placement of {s.name!r} could be measured in {tried}", e.last_error
    over = f"; the closest is over by {e.least_over_bytes / 2**20:.0f} MiB on a device" if e.evaluations else ""
    return (
        f"no placement of {s.name!r} that fits on {s.problem.cluster.name!r} was found in {tried}{over}",
        ("give it a larger budget, " if e.progress >= 1 else "take ") + "another policy, or a cluster with more memory",
    )
