"""The run directory: what a run writes, atomically, and how to read it back.

result.json            what was found, for which program, within which budget, by which versions (see `Summary`)
placement.json         operation name -> device name, priorities, fingerprints
config.json            the complete configuration
policy.safetensors     the parameters of a trained policy, with policy.json (trained.py)
checkpoint.npz         `placekit run resume=DIR` continues from it; removed when the run has finished (checkpoint.py)

Loggers add their own files: `csv` adds history.csv. A sweep has sweep.json in its folder, and failed.json in the folder of
a job that failed (cli/sweep.py).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from placekit_core.contracts.errors import BusyError, RunError
from placekit_core.contracts.files import PARTIAL, finite, read_json
from placekit_core.contracts.placement_file import PLACEMENT_FILE
from placekit_core.contracts.result import Summary
from placekit_core.run.checkpoint import CHECKPOINT
from placekit_core.run.config import RunConfig

RESULT, PLACEMENT, CONFIG = "result.json", PLACEMENT_FILE, "config.json"
SWEEP, FAILED = "sweep.json", "failed.json"


def holds_run(run_dir: Path) -> bool:
    """Whether a run, finished or not, has left something in `run_dir` that is worth keeping."""
    return any(os.path.exists(run_dir / name) for name in (RESULT, CHECKPOINT))  # also for a name that is too long


def refuse_used(run_dir: Path, resume: bool) -> None:
    """Raise RunError if `run_dir` holds something that a run would overwrite, or nothing that it could continue."""
    sweep = os.path.exists(run_dir / SWEEP)
    if sweep or (not resume and holds_run(run_dir)):
        unfinished = (run_dir / CHECKPOINT).exists() or sweep or not has_finished(run_dir)
        raise RunError(
            f"{run_dir} holds a {'sweep' if sweep else 'run'} already",
            f"continue it with `{resume_command(run_dir)}`, or choose another run_dir"
            if unfinished
            else "choose another run_dir",
        )
    if resume:
        check_begun(run_dir)
    elif others := _other_files(run_dir):
        raise RunError(
            f"run_dir {run_dir} is a folder with other files ({others[0]}{', ...' if others[1:] else ''})",
            "choose a new folder, or an empty one",
        )


def _other_files(run_dir: Path) -> list[str]:
    """The files in a folder in which neither a run nor a job of a sweep has begun; otherwise empty."""
    if not os.path.isdir(run_dir) or any(os.path.exists(run_dir / name) for name in (CONFIG, FAILED)):
        return []
    return sorted(name for name in os.listdir(run_dir) if not name.startswith("."))


def has_finished(run_dir: Path) -> bool:
    """Whether the run in `run_dir` ended by itself. A damaged result counts: a run must not write over it."""
    if not os.path.isfile(run_dir / RESULT):
        return False
    try:
        return load_summary(run_dir).status == "finished"
    except RunError:  # damaged
        return True


def resume_command(run_dir: str | Path) -> str:
    """The command that continues a run or sweep, quoted for a shell."""
    return f"placekit run {shlex.quote(f'resume={run_dir}')}"


def check_begun(run_dir: Path) -> None:
    """Raise RunError unless a run has begun in `run_dir`."""
    if not os.path.isfile(run_dir / CONFIG):
        raise RunError(f"cannot resume {run_dir}: it has no {CONFIG}", "give the run_dir of a run or a sweep")


def prepare(run_dir: Path, resume: bool = False) -> Path:
    """Create the run directory. Raises RunError, before anything is computed, if it cannot be written or holds a run."""
    refuse_used(run_dir, resume)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=run_dir):  # two runs that start here at once must not share this file
            pass
    except (OSError, ValueError) as e:  # ValueError: a name that no folder can have
        raise RunError(
            f"cannot write to run directory {run_dir}: {getattr(e, 'strerror', None) or e}",
            "choose another: run_dir=PATH",
        ) from None
    return run_dir


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Keep other processes and threads out of a run directory. Raises RunError if one is there already."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock: the user must avoid two runs in one folder
        yield
        return
    folder = os.open(run_dir, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            own = True
        except BlockingIOError:
            raise BusyError(f"another run is writing in {run_dir}", "wait for it, or choose another run_dir") from None
        except OSError:  # a file system without locks
            own = False
        for place in [run_dir, *run_dir.glob("programs/*")] if own else []:
            for begun in place.glob(".*.part"):  # a file that a killed process was writing
                if PARTIAL.fullmatch(begun.name):
                    begun.unlink(missing_ok=True)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(folder, fcntl.LOCK_UN)  # a process that was forked meanwhile has the folder open, too
    finally:
        os.close(folder)


def load_config(run_dir: Path) -> RunConfig:
    """The configuration of the run in `run_dir`. Raises RunError."""
    hint = "remove this folder to start its run again"
    return read_json(run_dir / CONFIG, RunConfig, error=RunError, hint=hint)


def check_same(run_dir: Path, config: RunConfig) -> None:
    """Raise RunError that names the options, unless the run in `run_dir` was started with this configuration."""
    data, asked = (finite(c.model_dump(mode="json", exclude=c.without_effect)) for c in (load_config(run_dir), config))
    keys = sorted(k for k in data if data[k] != asked[k])
    if keys:
        raise RunError(
            f"{run_dir} holds a run of another configuration: {', '.join(keys)} differ",
            "choose another run_dir, or remove this folder to start it again",
        )


def load_summary(run_dir: str | Path) -> Summary:
    """Summary of a finished or interrupted run. Raises RunError if there is none, or if it is damaged."""
    path = Path(run_dir) / RESULT
    if not os.path.isfile(path):
        raise RunError(f"no {RESULT} in {run_dir}", "give directories that `placekit run` wrote")
    return read_json(path, Summary, error=RunError)


def find_runs(folders: Sequence[str | Path]) -> list[Path]:
    """Run directories at or below `folders`, sorted. Raises RunError for a folder without one."""
    found: list[Path] = []
    for folder in folders:
        if not os.path.isdir(folder):
            raise RunError(f"no folder {folder}", "give folders that `placekit run` wrote, such as outputs")
        paths = sorted(p.parent.resolve() for p in Path(folder).rglob(RESULT))
        if not paths:
            raise RunError(f"no run directory at or below {folder}", f"a run directory holds {RESULT}")
        found += [p for p in paths if p not in found]
    return found
