"""Reads the schedule of a measured run back from its trace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from placekit_core import FileModel, Problem, RunError, Schedule, read_json
from placekit_report.trace import TRACE

_MAX_BYTES, _MAX_VALUES = 2**30, 2**26
_LANE = re.compile(r" \(\d+\)$")
_STREAM = re.compile(r" stream (\d+)$")


class _Event(FileModel):
    """An event of a trace: `X` happened, `M` names a track."""

    ph: str
    name: str
    pid: int = 0
    tid: int = 0
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0
    args: dict[str, Any] = Field(default={})


class _Trace(FileModel):
    traceEvents: list[_Event]
    displayTimeUnit: str = "ms"


def read_schedule(folder: Path, problem: Problem, device: NDArray[np.int16], value_s: float) -> Schedule:
    """The schedule that `write_trace` wrote of a placement, with the device of each operation [n]; `value_s` is the run's value.

    Raises RunError if the trace cannot be read, or is not of this placement.
    """
    path = folder / TRACE
    events = read_json(path, _Trace, error=RunError, values=_MAX_VALUES, limit=_MAX_BYTES).traceEvents
    tracks = {e.tid: str(e.args.get("name")) for e in events if e.ph == "M" and e.name == "thread_name"}
    graph, names = problem.graph, problem.cluster.device_names
    index = {name: v for v, name in enumerate(graph.op_name)}
    number = {name: d for d, name in enumerate(names)}
    start, end = np.zeros(graph.n), np.zeros(graph.n)
    stream = np.where(graph.kernel, 0, -1).astype(np.int32)
    sent: list[tuple[int, int, int, float, float]] = []
    ran, used = set[int](), set[tuple[int, int, int]]()
    for e in events:
        if e.ph != "X":
            continue
        track, begin, until = tracks.get(e.tid, ""), e.ts / 1e6, (e.ts + e.dur) / 1e6
        v = index.get(e.name, -1)
        where = _STREAM.sub("", track)
        if v < 0:
            raise _other(path)
        if e.cat == "transfer" and " -> " in track:
            src, _, dst = _LANE.sub("", track).partition(" -> ")
            row = (_tensor(problem, v, int(e.args.get("bytes", -1)), used, number.get(src, -1), number.get(dst, -1)),
                   number.get(src, -1), number.get(dst, -1))  # fmt: skip
            if min(row) < 0:
                raise _other(path)
            used.add(row)
            sent.append((*row, begin, until))
        elif number.get(where) == int(device[v]) and graph.kernel[v]:
            found = _STREAM.search(track)
            start[v], end[v], stream[v] = begin, until, int(found[1]) if found else 0
            ran.add(v)
        else:
            raise _other(path)
    if len(ran) != int(graph.kernel.sum()):
        raise _other(path)
    columns = [np.asarray([row[i] for row in sent]) for i in range(5)]
    return Schedule(
        op_device=device,
        op_stream=stream,
        op_start_s=start,
        op_end_s=end,
        transfer_tensor=columns[0].astype(np.int32),
        transfer_src=columns[1].astype(np.int16),
        transfer_dst=columns[2].astype(np.int16),
        transfer_start_s=columns[3].astype(np.float64),
        transfer_end_s=columns[4].astype(np.float64),
        value_s=value_s,
    )


def _tensor(problem: Problem, producer: int, bytes_: int, used: set[tuple[int, int, int]], src: int, dst: int) -> int:
    """The tensor of this producer and size that was not sent to this device yet, else the first; -1 if it has none."""
    graph = problem.graph
    fitting = [t for t in graph.outputs(producer) if graph.tensor_bytes[t] == bytes_]
    return next((t for t in fitting if (t, src, dst) not in used), fitting[0] if fitting else -1)


def _other(path: Path) -> RunError:
    return RunError(f"{path} is not the trace of this placement")
