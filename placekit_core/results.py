"""The run directory: what a run writes, atomically, and how to read it back.

result.json            what was found, of what, within which budget, by which versions (see `Summary`)
placement.json         operation name -> device name, priorities, fingerprints
history.csv            evaluations, seconds, value_s (best of the batch), mean_s, best_s (by the logger `csv`)
schedule.trace.json    the schedule of the placement; opens in Perfetto or chrome://tracing
profile.json           where the time of the schedule goes, by device and operation type (placekit_core/profile.py)
config.json            the complete configuration
policy.safetensors     what a learnable policy has learned, with policy.json (placekit_core/trained.py)
checkpoint.npz         from which `placekit run resume=DIR` continues; removed when the run has finished

A sweep has sweep.json in its folder, and failed.json in the folder of a job that failed (placekit_core/cli/sweep.py).
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from placekit_core import __version__
from placekit_core.config import CHANGES_NO_RESULT
from placekit_core.errors import BusyError, RunError
from placekit_core.graph_file import PARTIAL, write_atomically
from placekit_core.measurement import Schedule
from placekit_core.problem import Problem
from placekit_core.units import seconds

RESULT, PLACEMENT, TRACE = "result.json", "placement.json", "schedule.trace.json"
CONFIG, CHECKPOINT = "config.json", "checkpoint.npz"
SWEEP, FAILED = "sweep.json", "failed.json"


class Found(BaseModel):
    """What a search found. Times in seconds, memory in bytes; null where there is nothing to say.

    `error` says why the last measurement failed, if no placement has a value.
    """

    model_config = ConfigDict(extra="forbid")
    value_s: float | None
    bound_s: float | None
    gap: float | None
    spread_s: float | None = None
    fits: bool
    error: str | None = None
    evaluations: int
    proxy_evaluations: int = 0
    seconds: float
    peak_bytes: dict[str, float]
    notes: list[str] = []

    @property
    def outcome(self) -> str:
        """The value, or why there is none, in a few words."""
        if self.fits:
            return seconds(self.value_s)
        return "failed" if self.error else "does not fit" if self.evaluations else "not evaluated"


class ProgramSummary(Found):
    """What was found for one program."""

    program: str
    split: str | None = None
    operations: int
    kernels: int
    groups: int
    graph_fingerprint: str
    problem_fingerprint: str
    costs_fingerprint: str = ""
    measured_costs: float = 0.0
    directory: str = "."


class Summary(Found):
    """`result.json`.

    `value_s` is the objective of the best placement (null if none fits); `bound_s` a proven lower bound, `gap` =
    value/bound - 1 or null where nothing is proven. Over several programs these are means, `peak_bytes` maxima, the
    others sums; `programs` has each.
    """

    status: str
    workload: str
    objective: str
    simulated: bool
    seed: int
    importer: str
    grouper: str
    policy: str
    trainer: str | None
    backend: str
    cluster: str
    cluster_fingerprint: str
    budget: dict[str, float | None]
    programs: list[ProgramSummary]
    torch_threads: int | None = None
    versions: dict[str, str]
    code: dict[str, str] = {}
    config: dict[str, Any]


def versions(distributions: Sequence[str]) -> dict[str, str]:
    """Versions of Python, placekit, numpy and these distributions."""
    found = {"python": platform.python_version(), "placekit": __version__}
    for name in sorted({"numpy", *distributions} - {"placekit"}):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def holds_run(run_dir: Path) -> bool:
    """Whether a run, finished or not, has left something in `run_dir` that is worth keeping."""
    return (run_dir / RESULT).exists() or (run_dir / CHECKPOINT).exists()


def refuse_used(run_dir: Path, resume: bool) -> None:
    """Raise RunError if there is something in `run_dir` that a run would overwrite."""
    if (run_dir / SWEEP).exists() or (not resume and holds_run(run_dir)):
        unfinished = (run_dir / CHECKPOINT).exists() or (run_dir / SWEEP).exists()
        raise RunError(
            f"{run_dir} holds a {'sweep' if (run_dir / SWEEP).exists() else 'run'} already",
            (f"continue it with `placekit run resume={run_dir}`, or " if unfinished else "") + "choose another run_dir",
        )


def prepare(run_dir: Path, resume: bool = False) -> Path:
    """Create the run directory. Raises RunError, before anything is computed, if it cannot be written or holds a run."""
    refuse_used(run_dir, resume)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_atomically(run_dir / ".write-test", b"")
        (run_dir / ".write-test").unlink()
    except OSError as e:
        raise RunError(
            f"cannot write to run directory {run_dir}: {e.strerror or e}", "choose another: run_dir=PATH"
        ) from None
    return run_dir


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[None]:
    """Make a folder before the work that fills it; it goes again if it is left empty. Raises RunError if it cannot be made."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise RunError(f"{path} exists already", "remove it, or choose another folder") from None
    except OSError as e:
        raise RunError(f"cannot write {path}: {e.strerror or e}", "choose another folder") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.rmdir()


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Keep other processes and threads out of a run directory. Raises RunError if one is there already."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock: two runs in one folder are the user's to avoid
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


def check_same(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Raise RunError, naming the options, unless the run in `run_dir` was started with this configuration."""
    try:
        data = dict(json.loads((run_dir / CONFIG).read_text()))
    except (OSError, ValueError, TypeError):
        raise RunError(
            f"{run_dir} holds a run, but its {CONFIG} cannot be read", "remove this folder to start it again"
        ) from None
    asked = json.loads(json.dumps(finite(config)))
    keys = sorted(k for k in {*data, *asked} - CHANGES_NO_RESULT if data.get(k) != asked.get(k))
    if keys:
        raise RunError(
            f"{run_dir} holds a run of another configuration: {', '.join(keys)} differ",
            "choose another run_dir, or remove this folder to start it again",
        )


def write_json(path: Path, data: Any) -> None:
    """Write JSON, atomically; NaN and infinities become null."""
    write_atomically(path, (json.dumps(finite(data), indent=1) + "\n").encode())


def finite(data: Any) -> Any:
    """`data` as JSON has it: NaN and infinities are null."""
    if isinstance(data, Mapping):
        return {str(k): finite(v) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [finite(v) for v in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data


def write_trace(path: Path, schedule: Schedule, problem: Problem) -> None:
    """Write a schedule in the Chrome trace event format: a track per device and stream, and per pair of devices and lane.

    Events that overlap on one pair of devices go on lanes of their own: viewers reject overlap within a track.
    """
    devices, graph = problem.cluster.device_names, problem.graph
    tracks: dict[str, int] = {}
    events: list[dict[str, Any]] = []

    def emit(track: str, category: str, name: str, start: float, end: float, args: dict[str, Any]) -> None:
        tid = tracks.setdefault(track, len(tracks))
        us, duration = start * 1e6, (end - start) * 1e6
        events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": tid, "ts": us, "dur": duration, "args": args}
        )

    for d, name in enumerate(devices):  # device tracks first, in the order of the cluster
        for s in sorted(set(schedule.op_stream[(schedule.op_device == d) & graph.kernel].tolist())):
            tracks.setdefault(name if s == 0 else f"{name} stream {s}", len(tracks))
    for v in np.flatnonzero(graph.kernel):
        d, s = devices[schedule.op_device[v]], int(schedule.op_stream[v])
        args = {"type": graph.op_type[v], "module": graph.module[v]}
        start, end = float(schedule.op_start_s[v]), float(schedule.op_end_s[v])
        emit(d if s == 0 else f"{d} stream {s}", graph.op_class[v], graph.op_name[v], start, end, args)
    lanes: dict[tuple[int, int], list[float]] = {}
    for x in np.argsort(schedule.transfer_start_s, kind="stable"):
        src, dst = int(schedule.transfer_src[x]), int(schedule.transfer_dst[x])
        start, end = float(schedule.transfer_start_s[x]), float(schedule.transfer_end_s[x])
        free = lanes.setdefault((src, dst), [])
        lane = next((i for i, until in enumerate(free) if until <= start), len(free))
        free[lane : lane + 1] = [end]
        t = int(schedule.transfer_tensor[x])
        track = f"{devices[src]} -> {devices[dst]}" + (f" ({lane})" if lane else "")
        emit(
            track,
            "transfer",
            graph.op_name[graph.tensor_producer[t]],
            start,
            end,
            {"bytes": int(graph.tensor_bytes[t])},
        )
    heads: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": f"{graph.name} on {problem.cluster.name}"}}
    ]
    for track, tid in tracks.items():
        heads.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": tid, "args": {"name": track}})
        heads.append({"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": tid, "args": {"sort_index": tid}})
    write_atomically(path, json.dumps({"traceEvents": heads + events, "displayTimeUnit": "ms"}).encode())


def load_summary(run_dir: str | Path) -> Summary:
    """Summary of a finished or interrupted run. Raises RunError that says what is there instead."""
    path = Path(run_dir) / RESULT
    try:
        return Summary.model_validate(json.loads(path.read_text()))
    except OSError:
        raise RunError(f"no {RESULT} in {run_dir}", "give directories that `placekit run` wrote") from None
    except (UnicodeDecodeError, json.JSONDecodeError, ValidationError) as e:
        raise RunError(f"{path} is damaged: {' '.join(str(e).split())[:200]}") from None


def find_runs(folders: Sequence[str | Path]) -> list[Path]:
    """Run directories at or below `folders`, sorted. Raises RunError where there is none."""
    found: list[Path] = []
    for folder in folders:
        paths = sorted(p.parent.resolve() for p in Path(folder).rglob(RESULT))
        if not paths:
            raise RunError(f"no run directory at or below {folder}", f"a run directory holds {RESULT}")
        found += [p for p in paths if p not in found]
    return found


def save_checkpoint(run_dir: Path, state: Mapping[str, Any]) -> None:
    """Write the nested `state` as checkpoint.npz: arrays as members, everything else in one JSON member. Atomic."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}

    def strip(value: Any, path: str) -> Any:
        if isinstance(value, np.ndarray) and value.dtype.kind != "O":
            arrays[f"array{len(arrays)}"] = value
            return {"array": f"array{len(arrays) - 1}"}
        if isinstance(value, Mapping) and all(isinstance(k, str | int) for k in value):
            return {"items": [[k, strip(v, f"{path}.{k}")] for k, v in value.items()]}
        if isinstance(value, list | tuple):
            return [strip(v, f"{path}[{i}]") for i, v in enumerate(value)]
        if isinstance(value, np.generic):
            return value.item()
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise TypeError(
            f"{path} of a checkpoint is a {type(value).__name__}: it holds arrays, numbers, strings, lists, dicts"
        )

    tree = strip(state, "state")
    buffer = io.BytesIO()
    arrays["tree.json"] = np.frombuffer(json.dumps(tree).encode(), np.uint8)
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    write_atomically(run_dir / CHECKPOINT, buffer.getvalue())


def load_checkpoint(run_dir: Path) -> dict[str, Any] | None:
    """The state that `save_checkpoint` wrote, or None if there is none. Raises RunError if it is damaged."""
    path = run_dir / CHECKPOINT
    if not path.is_file():
        return None

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            return arrays[value["array"]] if "array" in value else {k: fill(v) for k, v in value["items"]}
        return [fill(v) for v in value] if isinstance(value, list) else value

    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        state: dict[str, Any] = fill(json.loads(arrays["tree.json"].tobytes()))
        return state
    except Exception as e:  # zip, numpy and JSON each have their own ways to fail on damaged bytes
        raise RunError(f"{path} is damaged: {e}", "remove it to start this run again") from None


def torch_threads() -> int | None:
    """Threads that torch computes with, where the run has imported torch."""
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())
