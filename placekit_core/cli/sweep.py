"""Sweeps: Hydra starts the jobs, in any process; files record which have finished, and which failed and why.

sweep.json     in the folder of the sweep: its command line, and the folders of its jobs if known beforehand
failed.json    in the folder of a job: why it failed; removed when it succeeds
"""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from placekit_core.cli.arguments import quoted
from placekit_core.cli.jobs import job_name, key_of
from placekit_core.contracts.errors import BusyError, ConfigError, PlacekitError, RunError
from placekit_core.contracts.files import FileModel, Folder, Model, read_json, write_json
from placekit_core.contracts.program import Program
from placekit_core.contracts.result import Summary
from placekit_core.run import run_directory as results, terminal
from placekit_core.run.assembly import Assembly, PythonObjects, distributions
from placekit_core.run.checkpoint import CHECKPOINT
from placekit_core.run.config import RunConfig
from placekit_core.run.failures import RunFailed, optional, reason, warn
from placekit_core.run.registry import Registry
from placekit_core.run.run_directory import FAILED, RESULT, SWEEP, resume_command

Job = Callable[[dict[str, Any], Path, Registry], float | None]
"""`job(configuration, folder, registry)` returns the value in seconds; the launcher may call it in another process."""


class SweepFile(FileModel):
    """`sweep.json`."""

    arguments: list[str]
    jobs: list[Folder] | None = None


class FailedFile(FileModel):
    """`failed.json`."""

    type: str
    message: str
    hint: str = ""
    traceback: str | None = None


def sweep(argv: list[str], config: Any, job: Job, registry: Registry) -> None:
    """Run `job` for each configuration that `argv` describes, then list failed and missing jobs. Raises PlacekitError.

    `config` is the result of `compose_all` for `argv`.
    """
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig

    from placekit_core.cli.compose import opened, to_dict

    directory = Path(str(config.hydra.sweep.dir))
    with opened(argv, registry) as found:
        for group, name in registry.duplicates():
            if any(name in o.partition("=")[2].split(",") for o in found if key_of(o) == group):
                registry.check_choices({group: name})  # raises
        _refuse_numbers(found, registry)
        shared, folders = _plan(found, config)
    if folders == []:
        raise ConfigError(
            "the sweep has no job", "a glob() in it matches no name; `placekit run --help` lists the names"
        )
    registry.programs.clear()  # files may have changed since the last sweep

    def task(config: Any) -> float:  # a launcher may pickle it, with the registry, for another process
        own = HydraConfig.get()
        folder = Path(str(own.runtime.output_dir))
        folder = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder  # as the user wrote it

        if terminal.is_terminal(sys.stderr) and not terminal.quiet():
            say(f"job {own.job.num + 1}{'' if folders is None else f' of {len(folders)}'}: {folder.name}", sys.stderr)

        def checked() -> float | None:
            registry.check_choices(own.runtime.choices)
            return job(to_dict(config), folder, registry)

        return run_job(folder.name, folder, checked, registry)

    stopped = None
    try:
        _write_sweep_file(directory, argv, folders)
        # the folder as composed above, so that a time in its name stays the same
        keys = ",".join(f"'{key}'" for key in shared)
        own = [f"++run_dir={quoted(str(directory))}", f"{_EXCLUDED}=[{keys}]", "hydra.mode=MULTIRUN"]
        with opened(argv, registry) as found:
            overrides = [*(o for o in found if key_of(o) != "run_dir"), *own]
            GlobalHydra.instance().hydra.multirun("config", task, overrides)  # type: ignore[union-attr]
    except KeyboardInterrupt:
        print(f"interrupted: continue with `{resume_command(directory)}`")
        raise
    except PlacekitError:  # before the first job
        raise
    except OSError as e:
        raise ConfigError(
            f"cannot write to {e.filename or directory}: {e.strerror}", "choose another: run_dir=PATH"
        ) from None
    except Exception as e:
        stopped = e
    with optional(warn, "a plugin failed at the end of the sweep"):
        registry.manager.hook.placekit_sweep_finished(directory=directory, registry=registry)
    _report_failures(directory, stopped)


_EXCLUDED = "hydra.job.config.override_dirname.exclude_keys"


def _refuse_numbers(found: Sequence[str], registry: Registry) -> None:
    """Raise ConfigError for `policy=1,2`: Hydra would stop with an error of its own that names neither."""
    groups = {choice.group for choice in registry.choices()}
    for override in found:
        number = next((v for v in override.partition("=")[2].split(",") if v.strip().isdecimal()), None)
        if number is not None and key_of(override).partition("@")[0] in groups:  # backend@proxy takes names, too
            what = f"{override}: {key_of(override)} takes names, and {number.strip()} is a number"
            raise ConfigError(what, "`placekit run --help` lists them")


def _plan(found: Sequence[str], config: Any) -> tuple[list[str], list[str] | None]:
    """Keys of the options that all jobs share, and the folders of the jobs; None if the sweeper chooses jobs during the sweep."""
    from placekit_core.cli.compose import parse, split

    params = [f"{k}={v}" for k, v in (config.hydra.sweeper.params or {}).items()]
    own = [o for o in found if not key_of(o).startswith("hydra")]
    last = {key_of(o): o for o in [*params, *own]}  # if two overrides have the same key, the later one counts
    basic = str(config.hydra.sweeper._target_).endswith(".BasicSweeper")
    varying = {key for key, override in last.items() if parse([override])[0].is_sweep_override()}
    varying |= set() if basic else {key_of(p) for p in params}  # in whatever form its values are given
    varying |= {key for key in last if key.partition(".")[0] in varying}  # options of a component that varies
    known = list[str](config.hydra.job.config.override_dirname.exclude_keys)
    shared = sorted({*known, *(key for key in last if key not in varying)})
    return shared, [job_name(job, shared) for job in split([*params, *own])] if basic else None


def _write_sweep_file(directory: Path, arguments: Sequence[str], jobs: Sequence[str] | None) -> None:
    """Write sweep.json. `jobs` are the folders of the jobs; None if they are not known beforehand.

    Raises RunError in the folder of a single run, whose result the sweep's table would count as one of its own.
    """
    if results.holds_run(directory):
        raise RunError(f"{directory} holds a run already", "choose another run_dir")
    directory.mkdir(parents=True, exist_ok=True)
    before = _read(directory / SWEEP, SweepFile)
    if before and before.jobs and jobs is not None:  # a larger sweep, or a shared folder: keep known jobs
        jobs = list(dict.fromkeys([*before.jobs, *jobs]))
    write_json(directory / SWEEP, {"arguments": arguments, "jobs": jobs})


def _report_failures(directory: Path, stopped: Exception | None) -> None:
    """List failed and missing jobs. Raises RunError if there are any, or if an exception stopped the sweep."""
    failed, missing = troubles(directory)
    show_troubles(failed, missing)
    sys.stdout.flush()  # before the error, which goes to standard error
    counts = [
        f"{n} {'job' if n == 1 else 'jobs'} of the sweep {what}"
        for n, what in ((len(failed), "failed"), (len(missing), "did not finish")) if n
    ]  # fmt: skip
    counts = [*([f"the sweep stopped: {reason(stopped)}"] if stopped is not None else []), *counts]
    if counts:
        hint = f"the finished jobs are written; `{resume_command(directory)}` runs the others again"
        raise RunError("; ".join(counts), hint)


def arguments(directory: Path) -> list[str]:
    """The command line that a sweep was started with. Raises RunError."""
    hint = "give the sweep's command line again"
    return read_json(directory / SWEEP, SweepFile, error=RunError, hint=hint).arguments


def say(text: str, stream: TextIO | None = None) -> None:
    """Print in one piece, because jobs in several processes share the terminal."""
    stream = stream or sys.stdout
    stream.write(f"{text}\n")
    stream.flush()


def run_job(name: str, run_dir: Path, job: Callable[[], float | None], registry: Registry) -> float:
    """Run one job and return its value in seconds. A failure is shown and written, not raised; the value is infinity."""
    try:
        value = job()
    except KeyboardInterrupt:
        raise
    except BaseException as found:  # a model's file may call sys.exit
        e = found.__cause__ if isinstance(found, RunFailed) and found.__cause__ else found
        failed = FailedFile(type=type(e).__name__, message=str(e))
        if isinstance(e, PlacekitError):
            failed.message, failed.hint = e.message, e.hint
            say(f"placekit: {name}: {e}", sys.stderr)
            if isinstance(e, BusyError):
                return math.inf  # another run uses the folder, and writes its own outcome there
        else:
            failed.traceback = "".join(traceback.format_exception(e))
            bug = f"this is a bug in {registry.where(e) or 'placekit'}; its traceback is in {run_dir / FAILED}"
            say(f"placekit: {name}: {reason(e)}\n  {bug}", sys.stderr)
        write_json(run_dir / FAILED, failed.model_dump(exclude_none=True))
        return math.inf
    (run_dir / FAILED).unlink(missing_ok=True)
    return math.inf if value is None else value


def finished(run_dir: Path, config: RunConfig, registry: Registry) -> Summary | None:
    """The finished run of this configuration in `run_dir`; None if there is no run, or an unfinished one.

    Raises RunError if the run there is damaged, or is another one: of another configuration, of a program, machine or
    costs that have changed since, or made by other code of a plugin.
    """
    if not results.holds_run(run_dir):
        return None
    results.check_same(run_dir, config)
    summary = results.load_summary(run_dir) if (run_dir / RESULT).is_file() else None
    if summary is None or summary.status != "finished":
        return None
    hint = "choose another run_dir, or remove this folder to run it again"
    now = registry.code(distributions(config, registry, importer=False))
    if edited := sorted(name for name, code in summary.code.items() if now.get(name) != code):
        raise RunError(f"{run_dir} holds a run made by other code of {', '.join(edited)}", hint)
    parts = Assembly(config, registry, PythonObjects(programs(config, registry)))
    if [parts.problem(p).fingerprint for p in parts.programs] != [p.problem_fingerprint for p in summary.programs]:
        raise RunError(f"{run_dir} holds a run of another program, machine or costs: a file has changed since", hint)
    return summary


def programs(config: RunConfig, registry: Registry) -> list[Program]:
    """The programs of the importer of `config`; jobs of one process share them, as `registry` keeps the last four."""
    kept, key = registry.programs, json.dumps(config.importer, sort_keys=True)
    if key not in kept:
        kept[key] = registry.imported(config.importer)
    kept[key] = kept.pop(key)  # the last one used is the last one dropped
    while len(kept) > 4:
        del kept[next(iter(kept))]
    return kept[key]


def why_failed(run_dir: Path) -> RunError:
    """The error of a job that finished without a placement that fits."""
    failed = _read(run_dir / FAILED, FailedFile)
    if failed is None:
        return RunError(f"no placement that fits was found; {run_dir} has what was tried")
    return RunError(failed.message, failed.hint)


def troubles(folder: Path) -> tuple[list[tuple[Path, str]], list[tuple[Path, str]]]:
    """(folder, reason) of the failed jobs at or below `folder`, and of the missing ones."""
    failed = []
    if not os.path.isdir(folder):
        return [], []
    for path in sorted(folder.rglob(FAILED)):
        data = _read(path, FailedFile)
        kind = f"{data.type}: " if data and data.traceback else ""
        failed.append((path.parent, kind + (data.message if data else f"{path} is damaged")))
    known = {path for path, _ in failed}
    missing = []
    for path in sorted(folder.rglob(SWEEP)):
        file = _read(path, SweepFile)
        for job in (path.parent / name for name in (file and file.jobs) or []):
            if job not in known and not results.has_finished(job):
                checkpoint = "; it has a checkpoint" if (job / CHECKPOINT).is_file() else ""
                missing.append(
                    (job, f"not finished{checkpoint}" if (job / results.CONFIG).is_file() else "not started")
                )
    return failed, missing


def show_troubles(
    failed: Sequence[tuple[Path, str]], missing: Sequence[tuple[Path, str]], stream: TextIO | None = None
) -> None:
    """Print the failed and the missing jobs, one per line."""
    for what, jobs in (("failed", failed), ("missing", missing)):
        for path, why in jobs:
            say(f"{what}: {path}: {why}", stream)


def _read(path: Path, model: type[Model]) -> Model | None:
    """The content of a file; None if it cannot be read."""
    try:
        return read_json(path, model, error=RunError)
    except RunError:
        return None
