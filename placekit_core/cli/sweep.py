"""Sweeps: which jobs are done, which failed and why; all of it is read from files, so that any process may have run them.

sweep.json     in the folder of the sweep: its command line, and the folders of its jobs if they are known beforehand
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
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

from placekit_core import results
from placekit_core.config import RunConfig
from placekit_core.errors import BusyError, PlacekitError, RunError
from placekit_core.opening import fingerprints
from placekit_core.problem import Program
from placekit_core.registry import installed, where
from placekit_core.results import FAILED, RESULT, SWEEP, Summary


def begin(directory: Path, arguments: Sequence[str], jobs: Sequence[str] | None) -> None:
    """Note how the sweep in `directory` was started. `jobs` are its folders; None if a sweeper chooses as it goes."""
    directory.mkdir(parents=True, exist_ok=True)
    before = _read(directory / SWEEP).get("jobs")
    if (
        before and jobs is not None
    ):  # the sweep has grown, or another one shares its folder: what is missing stays known
        jobs = list(dict.fromkeys([*before, *jobs]))
    results.write_json(directory / SWEEP, {"arguments": arguments, "jobs": jobs})


def arguments(directory: Path) -> list[str]:
    """The command line that a sweep was started with. Raises RunError."""
    try:
        return [str(a) for a in json.loads((directory / SWEEP).read_text())["arguments"]]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise RunError(f"cannot resume {directory}: {SWEEP}: {e}", "give the sweep's command line again") from None


def shown(directory: str) -> Path:
    """A folder that Hydra made absolute, as it was asked for."""
    path = Path(directory)
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def end_with_parent() -> None:
    """End this process of joblib's when the one that started it is gone; its job goes on when the sweep does."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    if multiprocessing.current_process().name.startswith("Loky") and not _watched:
        _watched.append(parent)
        threading.Thread(target=watch, daemon=True).start()


_watched: list[int] = []


def say(text: str, stream: TextIO | None = None) -> None:
    """Print in one piece: jobs in several processes share the terminal."""
    stream = stream or sys.stdout
    stream.write(f"{text}\n")
    stream.flush()


def run_job(name: str, run_dir: Path, job: Callable[[], float | None]) -> float:
    """Run one job, and return its value in seconds; infinity if it fails, which is shown and written, never raised."""
    try:
        value = job()
    except (Exception, SystemExit) as e:  # a model's file may call sys.exit
        reason = {"type": type(e).__name__, "message": str(e), "hint": ""}
        if isinstance(e, PlacekitError):
            reason |= {"message": e.message, "hint": e.hint}
            say(f"placekit: {name}: {e}", sys.stderr)
            if isinstance(e, BusyError):
                return math.inf  # the folder is another run's, which writes there what becomes of it
        else:
            reason["traceback"] = traceback.format_exc()
            bug = f"{type(e).__name__}: {e}\n  this is a bug in {where(e) or 'placekit'}; its traceback is in {run_dir / FAILED}"
            say(f"placekit: {name}: {bug}", sys.stderr)
        results.write_json(run_dir / FAILED, reason)
        return math.inf
    (run_dir / FAILED).unlink(missing_ok=True)
    return math.inf if value is None else value


def held(run_dir: Path, config: RunConfig) -> Summary | None:
    """The finished run of this configuration that `run_dir` holds; None if it holds none, or an unfinished one of it.

    Raises RunError if what it holds is damaged, or a run of something else: of another configuration, of a program,
    machine or costs that have changed since, or made by other code of a plugin.
    """
    if not results.holds_run(run_dir):
        return None
    results.check_same(run_dir, config.model_dump(mode="json"))
    if not (run_dir / RESULT).is_file():
        return None
    summary = results.load_summary(run_dir)
    if summary.status != "finished":
        return None
    hint = "choose another run_dir, or remove this folder to run it again"
    now = installed().code(config.distributions(importer=False))
    edited = sorted(name for name, code in summary.code.items() if now.get(name) != code)
    if edited:
        raise RunError(f"{run_dir} holds a run made by other code of {', '.join(edited)}", hint)
    if fingerprints(config, programs(config)) != [p.problem_fingerprint for p in summary.programs]:
        raise RunError(f"{run_dir} holds a run of another program, machine or costs: a file has changed since", hint)
    return summary


def programs(config: RunConfig) -> list[Program]:
    """What the importer of `config` gives, which jobs of a sweep share that follow one another: the last four are kept."""
    return _programs(json.dumps(config.importer, sort_keys=True))


@lru_cache(maxsize=4)
def _programs(importer: str) -> list[Program]:
    section = json.loads(importer)
    entry = installed().get("importer", section.pop("name"))
    found: list[Program] = entry.build(entry.component.config.model_validate(section)).load()
    return found


def forget_programs() -> None:
    """Import them again when next asked for: files may have changed."""
    _programs.cache_clear()


def other_versions(summary: Summary) -> str:
    """What placekit and its plugins have become since this run; empty if nothing."""
    own = {k: v for k, v in summary.versions.items() if k not in ("python", "numpy", "numba", "torch")}
    now = results.versions(list(own))
    changed = [f"{k} {v}, now {now[k]}" for k, v in own.items() if now[k] != v]
    return f" (made with {'; '.join(changed)})" if changed else ""


def reason(run_dir: Path) -> RunError:
    """Why the finished job in `run_dir`, which found nothing that fits, failed."""
    failed = _read(run_dir / FAILED)
    message = str(failed.get("message") or f"no placement that fits was found; {run_dir} has what was tried")
    return RunError(message, str(failed.get("hint", "")))


def troubles(folder: Path) -> tuple[list[tuple[Path, str]], list[tuple[Path, str]]]:
    """(folder, reason) of the jobs at or below `folder` that failed, and of those that are missing."""
    failed = []
    for path in sorted(folder.rglob(FAILED)):
        data = _read(path)
        kind = f"{data.get('type')}: " if "traceback" in data else ""
        failed.append((path.parent, kind + str(data.get("message", f"{path} is damaged"))))
    known = {path for path, _ in failed}
    missing = []
    for path in sorted(folder.rglob(SWEEP)):
        for name in _read(path).get("jobs") or []:
            job = path.parent / name
            if job not in known and (why := _unfinished(job)):
                missing.append((job, why))
    return failed, missing


def _unfinished(job: Path) -> str:
    if (job / RESULT).is_file() and _read(job / RESULT).get("status") in (None, "finished"):
        return ""  # or damaged, which is told elsewhere
    if (job / results.CHECKPOINT).is_file():
        return "not finished; it has a checkpoint"
    return "not finished" if (job / results.CONFIG).is_file() else "not started"


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is none that can be read."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
