"""Ends a run: measures and writes what it found, then returns it, or raises the error that ended the run."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from placekit_core.contracts.errors import PlacekitError, PluginError, RunError
from placekit_core.contracts.files import WriteError, write_json
from placekit_core.contracts.interfaces import LearnablePolicy
from placekit_core.contracts.measurement import Measurements
from placekit_core.contracts.placement_file import save_placement
from placekit_core.contracts.problem import Problem
from placekit_core.contracts.progress import report_progress
from placekit_core.contracts.result import LEAST_GAIN, Baseline, ProgramResult, ProgramSummary, Result, Summary
from placekit_core.contracts.task import Best
from placekit_core.contracts.units import format_value, mebibytes
from placekit_core.run.assembly import Assembly, OpenProgram, distributions
from placekit_core.run.baselines import add_baselines, chosen_baselines, compared_programs
from placekit_core.run.checkpoint import CHECKPOINT
from placekit_core.run.failures import BoundError, Interrupted, NothingFits, RunFailed, optional, reason, warn
from placekit_core.run.layers import layers_of
from placekit_core.run.lifecycle import facts, result_methods
from placekit_core.run.run_directory import PLACEMENT, RESULT, resume_command
from placekit_core.run.trained import save_policy

if TYPE_CHECKING:
    from placekit_core.run.current_run import Run

LAUNCHING = 0.9
"""A step is bound by launches if a host launches during at least this share of it."""


def end(run: Run, error: BaseException | None = None) -> Result:
    """Write what a run found, and return it. `error` is what ended the run early, if anything did.

    Raises `error` itself if nothing was evaluated before it; else RunFailed or Interrupted, with the result so far. A
    complete run raises BoundError, NothingFits, or RunFailed if its results cannot be written.
    """
    interrupted = isinstance(error, KeyboardInterrupt)
    if error is not None and not (run.programs and (interrupted or any(p.evaluate.evaluations for p in run.programs))):
        if isinstance(error, WriteError):
            raise cannot_write(error, run.run_dir, "") from None
        if isinstance(error, Exception | KeyboardInterrupt):
            raise error
        raise PluginError(
            f"{run.who} raised {reason(error)}", "a component must raise an Exception, and never end Python"
        ) from error
    run.stop.writing = True  # from here on, a second Ctrl-C must not lose what was found
    for program in run.programs if error is None else ():
        record(program)
    stopped = error is None and _add_baselines(run)
    status = "finished" if error is None else "interrupted" if interrupted else "failed"
    _keep_policy(run)
    if error is not None and not interrupted:
        why = error.message if isinstance(error, PlacekitError) else f"{reason(error)}, while {run.who} worked"
        run.programs[0].evaluate.note(f"the run failed: {why}")
    run.observer.stage(f"writing to {run.run_dir}")
    try:
        result = report(run, status)
    except Exception:
        if error is None:
            raise
        raise error from None  # it came first
    wrong = bound_error(result)
    result = result if wrong is None else wrong.result
    unwritten = _write(run, result)
    if error is not None and not interrupted:
        if unwritten is not None:
            warn(f"{unwritten.message}; {unwritten.hint}")
        raise RunFailed(error, result, run.who, run.run_dir if unwritten is None else None) from error
    if unwritten is not None:
        raise RunFailed(unwritten, result) from None
    if wrong is not None:
        raise wrong
    if error is None:
        (run.run_dir / CHECKPOINT).unlink(missing_ok=True)
    if interrupted or stopped or run.stop.asked:
        raise Interrupted(result)
    if not result.summary.fits:
        raise NothingFits(*why_nothing_fits(run.programs, run.assembly.backend.unit), result)
    return result


def _add_baselines(run: Run) -> bool:
    """Measure the baselines. Returns whether Ctrl-C ended that."""
    if chosen_baselines(run.config, run.assembly.registry) and compared_programs(run.programs):
        run.observer.stage("evaluating the baselines")
    return add_baselines(run.assembly, run.programs, run.stop)


def _keep_policy(run: Run) -> None:
    """Write the parameters of a policy that was trained."""
    policy, trainer = run.assembly.policy, run.assembly.trainer
    if (
        trainer is None
        or not isinstance(policy, LearnablePolicy)
        or not any(p.evaluate.evaluations for p in run.programs)
    ):
        return
    first = run.programs[0]
    about = {
        "workload": run.config.workload,
        "cluster": first.problem.cluster.name,
        "programs": [p.name for p in run.programs if p.program.split != "test"],
        "trainer": {"name": trainer.name, **trainer.options.model_dump(mode="json")},
        "seed": run.config.seed,
        "evaluations": first.evaluate.ledger.evaluations,
    }
    with optional(first.evaluate.note, "the trained policy is not written"):
        save_policy(policy, run.run_dir, about)


def _write(run: Run, result: Result) -> RunError | None:
    """Call the loggers, then write result.json: once it exists, all other files are complete.

    Returns the error if the run directory cannot be written; then the placements are elsewhere.
    """
    run.lifecycle.call("placekit_run_finished", result=result)
    try:
        for program in run.programs:
            if program.unwritten is not None:
                raise program.unwritten
        write_json(run.run_dir / RESULT, result.summary.model_dump(mode="json"))
    except OSError as e:
        return cannot_write(e, run.run_dir, kept_elsewhere(run.programs))
    return None


def report(run: Run, status: str) -> Result:
    """The result for every program; writes the placements."""
    assembly, searches, run_dir = run.assembly, run.programs, run.run_dir
    config, registry, backend, trainer = assembly.config, assembly.registry, assembly.backend, assembly.trainer
    found = tuple(_report_program(s, run_dir, len(searches) > 1, assembly) for s in searches)
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
        notes.append(f"budget.proxy_evaluations={asked} was not used: policy {config.policy['name']!r} used no proxy")
    ledger, complete = searches[0].evaluate.ledger, len(values) == len(programs)
    summary = Summary(
        status=status,
        workload=config.workload or (searches[0].name if single else f"{len(programs)} programs"),
        objective=backend.objective,
        unit=backend.unit,
        simulated=backend.simulated,
        value_s=float(np.mean(values)) if complete else None,
        bound_s=float(np.mean(bounds)) if len(bounds) == len(programs) else None,
        gap=float(np.mean(gaps)) if len(gaps) == len(programs) else None,
        spread_s=programs[0].spread_s if single else None,
        fits=complete and all(p.fits for p in programs),
        error=next((p.error for p in programs if p.error), None),
        evaluations=sum(p.evaluations for p in programs),
        proxy_evaluations=sum(p.proxy_evaluations for p in programs),
        seconds=sum({id(s.evaluate.ledger): s.evaluate.ledger.seconds for s in searches}.values()),
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
        facts=facts(registry),
        versions=registry.versions(distributions(config, registry)),
        # the fingerprints already cover the importer
        code=registry.code(distributions(config, registry, importer=False)),
        config=config.model_dump(mode="json"),
    )
    return Result(summary, found, run_dir, result_methods(registry))


def cannot_write(error: OSError, run_dir: Path, kept: str) -> RunError:
    """The error for a file of the run directory that cannot be written; `kept` names what was saved elsewhere."""
    resume = f"`{resume_command(run_dir)}` continues from the last checkpoint, once it can be written to"
    hint = resume if (run_dir / CHECKPOINT).is_file() else "choose another place: run_dir=PATH"
    return RunError(f"cannot write {error.filename}: {error.strerror}", "; ".join(filter(None, [kept, hint])))


def kept_elsewhere(programs: Sequence[OpenProgram]) -> str:
    """Write the best placements to a new temporary folder, because the run directory cannot be written. Returns a note."""
    found = [(p, p.evaluate.best) for p in programs if p.evaluate.best is not None]
    if not found:
        return ""
    kept = 0
    with contextlib.suppress(OSError):
        folder = Path(tempfile.mkdtemp(prefix="placekit-"))
        for p, best in found:
            with contextlib.suppress(OSError):
                save_placement(best.placement, p.problem, folder / f"{p.directory.name}.{PLACEMENT}")
                kept += 1
        if kept:
            return f"what was found is in {folder}"
        folder.rmdir()
    return "what was found could not be written elsewhere, either"


def record(p: OpenProgram) -> None:
    """Write the best placement, and get its schedule from the backend.

    This happens before the baselines, which may end the process of a backend that measures.
    """
    best, p.recorded = p.evaluate.best, True
    try:
        p.directory.mkdir(parents=True, exist_ok=True)
        if best is not None:
            save_placement(best.placement, p.problem, p.directory / PLACEMENT)
    except OSError as e:  # the result in memory is complete without it
        p.unwritten = e
    if best is not None:
        with optional(p.evaluate.note, f"there is no schedule of {p.name!r}"):
            p.schedule = p.session.schedule(best.placement)  # a backend that measures executes the program for it


def _report_program(s: OpenProgram, run_dir: Path, family: bool, assembly: Assembly) -> ProgramResult:
    evaluate, problem, backend = s.evaluate, s.problem, assembly.backend
    unit, band = backend.unit, None
    best, measurements = evaluate.best, None
    if not s.recorded:
        record(s)
    notes = list(evaluate.notes)
    if best is not None:
        spread = None if best.spread_s is None else np.array([best.spread_s])
        measurements = Measurements(
            np.array([best.value_s]), best.peak_bytes[None, :], np.array([True]), (None,), spread
        )
    bound = evaluate.proven_s
    report_progress(f"proving a bound of {s.name}")
    with optional(notes.append, f"the backend failed to prove a bound of {s.name!r}"):
        proven = s.session.lower_bound()
        bound = proven if bound is None else bound if proven is None else max(bound, proven)
    notes += beaten(s, family, unit)
    if backend.simulated and backend.objective == "makespan" and best is not None:
        notes += bound_by_launches(problem, best)
    if best is not None:
        with optional(notes.append, "the error band is unknown"):
            used = np.unique(problem.expand(best.placement.device)[problem.graph.kernel])
            band = assembly.error_band(problem, used.tolist())
    kernels = int(problem.graph.kernel.sum())
    measured = problem.costs.measured[problem.graph.kernel]
    summary = ProgramSummary(
        program=s.name,
        unit=unit,
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
        proxy_evaluations=s.proxy.evaluations if s.proxy else 0,
        seconds=evaluate.ledger.seconds,
        peak_bytes=dict(zip(problem.cluster.device_names, best.peak_bytes.tolist(), strict=True)) if best else {},
        notes=notes,
        measured_costs=float(measured.mean()) if measured.size else 0.0,
        layers=layers_of(problem, best.placement) if best else {},
        error_band=band,
        baselines=list(s.baselines),
        directory=str(s.directory.relative_to(run_dir)),
    )
    placement = best.placement if best else None
    return ProgramResult(
        summary, problem, placement, measurements, s.schedule, tuple(evaluate.history), evaluate.logged
    )


def bound_by_launches(problem: Problem, best: Best) -> list[str]:
    """A note if a host takes most of the step to launch its operations."""
    last_s, launchers = problem.launched_s(problem.expand(best.placement.device)), problem.cluster.launchers
    if not launchers.any or last_s.max(initial=0.0) < LAUNCHING * best.value_s:
        return []
    alone = (launchers.host == launchers.host[0]).all()
    whose = "the operations, whatever device they run on" if alone else "the operations of its devices"
    return [
        f"bound by launches: {'the' if alone else 'a'} host takes {format_value(float(last_s.max()), 's')} to launch {whose};"
        " launching=graph runs the same step as a recorded graph"
    ]


def beaten(s: OpenProgram, family: bool, unit: str) -> list[str]:
    """A note if a baseline is faster than the best placement; in a family, it names the program."""
    best, fastest = s.evaluate.best, fastest_of(s)
    if best is None or fastest is None or not fastest.value_s:
        return []
    value_s, deviation_s = fastest.against(best.value_s, best.spread_s)
    if value_s / fastest.value_s - 1 < LEAST_GAIN or value_s - fastest.value_s < 2 * (deviation_s or 0.0):
        return []  # equal, or within the noise
    which = f" for {s.name!r}" if family else ""
    return [f"{fastest.label} is {'faster' if unit == 's' else 'better'}{which}: {format_value(fastest.value_s, unit)}"]


def fastest_of(s: OpenProgram) -> Baseline | None:
    """The fastest baseline that fits, if any."""
    return min((b for b in s.baselines if b.value_s is not None), key=lambda b: b.value_s or 0.0, default=None)


def bound_error(result: Result) -> BoundError | None:
    """An error if a value is below its proven bound, else None; its result has the status `failed`."""
    for p in result.programs:
        if p.summary.below_bound:
            return BoundError(
                f"{p.summary.program!r} has a value of {p.summary.value_s:.9g} {p.summary.unit}, below its proven bound of"
                f" {p.summary.bound_s:.9g} {p.summary.unit}",
                f"this is a bug in backend {result.summary.backend!r} or in the bound from policy {result.summary.policy!r}",
                replace(result, summary=result.summary.model_copy(update={"status": "failed"})),
            )
    return None


def why_nothing_fits(searches: Sequence[OpenProgram], unit: str) -> tuple[str, str]:
    """Message and hint for a run that found no placement that fits."""
    s = next(s for s in searches if s.evaluate.best is None)
    e = s.evaluate
    tried = f"{e.evaluations} evaluation{'' if e.evaluations == 1 else 's'}"
    fitting = fastest_of(s)
    known = f"policy={fitting.policy} finds one: {format_value(fitting.value_s, unit)}" if fitting is not None else ""
    notes = [note for note in e.notes if not note.startswith("baseline ")]
    if e.last_error and not math.isfinite(e.least_over_bytes):
        reasons = [e.last_error, *notes, known]
        return f"no placement of {s.name!r} has a value after {tried}", "; ".join(filter(None, reasons))
    over = ""
    if e.evaluations:
        over = f"; the closest needs {mebibytes(e.least_over_bytes)} more on a device"
        over += " (its reserve and headroom stay free)" if s.problem.cluster.withheld_bytes else ""
    found = f"no placement of {s.name!r} that fits on {s.problem.cluster.name!r} was found in {tried}{over}"
    if notes:  # the policy says more, perhaps that no other finds one either
        return found, "; ".join([*notes, known or "use a cluster with more memory"])
    more = "give it a larger budget, " if e.progress >= 1 else "use "
    return found, known or f"{more}another policy, or a cluster with more memory"
