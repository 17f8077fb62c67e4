"""Sweeps: which jobs are done, which failed and why; all read from files, so any process may have run the jobs.

sweep.json     in the folder of the sweep: its command line, and the folders of its jobs if known beforehand
failed.json    in the folder of a job: why it failed; removed when it succeeds
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from placekit_core.contracts.errors import BusyError, PlacekitError, RunError
from placekit_core.contracts.files import FileModel, Folder, Model, read_json, write_json
from placekit_core.contracts.program import Program
from placekit_core.contracts.result import Summary
from placekit_core.run import run_directory as results
from placekit_core.run.assembly import Assembly, PythonObjects, distributions
from placekit_core.run.checkpoint import CHECKPOINT
from placekit_core.run.config import RunConfig
from placekit_core.run.failures import RunFailed
from placekit_core.run.registry import CORE, Registry
from placekit_core.run.run_directory import FAILED, RESULT, SWEEP


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


def begin(directory: Path, arguments: Sequence[str], jobs: Sequence[str] | None) -> None:
    """Note how the sweep in `directory` was started. `jobs` are its folders; None if a sweeper chooses jobs as it goes."""
    directory.mkdir(parents=True, exist_ok=True)
    before = _read(directory / SWEEP, SweepFile)
    if before and before.jobs and jobs is not None:  # a larger sweep, or a shared folder: keep known jobs
        jobs = list(dict.fromkeys([*before.jobs, *jobs]))
    write_json(directory / SWEEP, {"arguments": arguments, "jobs": jobs})


def arguments(directory: Path) -> list[str]:
    """The command line that a sweep was started with. Raises RunError."""
    hint = "give the sweep's command line again"
    return read_json(directory / SWEEP, SweepFile, error=RunError, hint=hint).arguments


def shown(directory: str) -> Path:
    """A folder that Hydra made absolute, as the user wrote it."""
    path = Path(directory)
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def end_with_parent() -> None:
    """End this process of joblib's when its parent is gone; its job continues when the sweep is resumed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    watched = any(thread.name == _WATCH for thread in threading.enumerate())
    if multiprocessing.current_process().name.startswith("Loky") and not watched:
        threading.Thread(target=watch, name=_WATCH, daemon=True).start()


_WATCH = "placekit: end with the parent"


def say(text: str, stream: TextIO | None = None) -> None:
    """Print in one piece, because jobs in several processes share the terminal."""
    stream = stream or sys.stdout
    stream.write(f"{text}\n")
    stream.flush()


def run_job(name: str, run_dir: Path, job: Callable[[], float | None], registry: Registry) -> float:
    """Run one job and return its value in seconds. A failure is shown and written, not raised; the value is infinity."""
    try:
        value = job()
    except (Exception, SystemExit) as found:  # a model's file may call sys.exit
        e = found.__cause__ if isinstance(found, RunFailed) and found.__cause__ else found
        reason = FailedFile(type=type(e).__name__, message=str(e))
        if isinstance(e, PlacekitError):
            reason.message, reason.hint = e.message, e.hint
            say(f"placekit: {name}: {e}", sys.stderr)
            if isinstance(e, BusyError):
                return math.inf  # another run uses the folder, and writes its own outcome there
        else:
            reason.traceback = "".join(traceback.format_exception(e))
            bug = f"this is a bug in {registry.where(e) or 'placekit'}; its traceback is in {run_dir / FAILED}"
            say(f"placekit: {name}: {type(e).__name__}: {e}\n  {bug}", sys.stderr)
        write_json(run_dir / FAILED, reason.model_dump(exclude_none=True))
        return math.inf
    (run_dir / FAILED).unlink(missing_ok=True)
    return math.inf if value is None else value


def held(run_dir: Path, config: RunConfig, registry: Registry) -> Summary | None:
    """The finished run of this configuration in `run_dir`; None if there is no run, or an unfinished one.

    Raises RunError if the run there is damaged, or is another one: of another configuration, of a program, machine or
    costs that have changed since, or made by other code of a plugin.
    """
    if not results.holds_run(run_dir):
        return None
    results.check_same(run_dir, config)
    if not (run_dir / RESULT).is_file():
        return None
    summary = results.load_summary(run_dir)
    if summary.status != "finished":
        return None
    hint = "choose another run_dir, or remove this folder to run it again"
    now = registry.code(distributions(config, registry, importer=False))
    edited = sorted(name for name, code in summary.code.items() if now.get(name) != code)
    if edited:
        raise RunError(f"{run_dir} holds a run made by other code of {', '.join(edited)}", hint)
    parts = Assembly(config, registry, PythonObjects(programs(config, registry)))
    if [parts.problem(p).fingerprint for p in parts.programs] != [p.problem_fingerprint for p in summary.programs]:
        raise RunError(f"{run_dir} holds a run of another program, machine or costs: a file has changed since", hint)
    return summary


def programs(config: RunConfig, registry: Registry) -> list[Program]:
    """The programs of the importer of `config`; jobs of one process share them, as `registry` keeps the last four."""
    kept, key = registry.programs, json.dumps(config.importer, sort_keys=True)
    if key not in kept:
        section = dict(config.importer)
        kept[key] = registry.build("importer", section.pop("name"), section).load()
    kept[key] = kept.pop(key)  # the last one used is the last one dropped
    while len(kept) > 4:
        del kept[next(iter(kept))]
    return kept[key]


def other_versions(summary: Summary, registry: Registry) -> str:
    """The versions of the core and the plugins that changed since this run, as text; empty if none did."""
    now = registry.versions(summary.code)
    own = {k: v for k, v in summary.versions.items() if k in {CORE, *summary.code}}
    changed = [f"{k} {v}, now {now.get(k, 'not installed')}" for k, v in own.items() if now.get(k) != v]
    return f" (made with {'; '.join(changed)})" if changed else ""


def reason(run_dir: Path) -> RunError:
    """Why the finished job in `run_dir` failed; it found nothing that fits."""
    failed = _read(run_dir / FAILED, FailedFile)
    if failed is None:
        return RunError(f"no placement that fits was found; {run_dir} has what was tried")
    return RunError(failed.message, failed.hint)


def troubles(folder: Path) -> tuple[list[tuple[Path, str]], list[tuple[Path, str]]]:
    """(folder, reason) of the failed jobs at or below `folder`, and of the missing ones."""
    failed = []
    if not os.path.isdir(folder):  # a name may be too long for `rglob`
        return [], []
    for path in sorted(folder.rglob(FAILED)):
        data = _read(path, FailedFile)
        kind = f"{data.type}: " if data and data.traceback else ""
        failed.append((path.parent, kind + (data.message if data else f"{path} is damaged")))
    known = {path for path, _ in failed}
    missing = []
    for path in sorted(folder.rglob(SWEEP)):
        sweep = _read(path, SweepFile)
        for name in (sweep and sweep.jobs) or []:
            job = path.parent / name
            if job not in known and (why := _unfinished(job)):
                missing.append((job, why))
    return failed, missing


def show_troubles(
    failed: Sequence[tuple[Path, str]], missing: Sequence[tuple[Path, str]], stream: TextIO | None = None
) -> None:
    """Print the failed and the missing jobs, one per line."""
    for what, jobs in (("failed", failed), ("missing", missing)):
        for path, why in jobs:
            say(f"{what}: {path}: {why}", stream)


def damaged(folder: Path) -> list[str]:
    """For each result at or below `folder` that cannot be read, what is wrong with it."""
    found = []
    for path in sorted(folder.rglob(RESULT)):
        try:
            results.load_summary(path.parent)
        except RunError as e:
            found.append(e.message)
    return found


def _unfinished(job: Path) -> str:
    if (job / RESULT).is_file():
        found = _read(job / RESULT, Summary)
        if found is None or found.status == "finished":
            return ""  # damage is reported elsewhere
    if (job / CHECKPOINT).is_file():
        return "not finished; it has a checkpoint"
    return "not finished" if (job / results.CONFIG).is_file() else "not started"


def _read(path: Path, model: type[Model]) -> Model | None:
    """The content of a file; None if it cannot be read."""
    try:
        return read_json(path, model, error=RunError)
    except RunError:
        return None
