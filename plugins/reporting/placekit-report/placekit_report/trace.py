"""Schedules as traces, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from placekit_core import Problem, Schedule, Spans, write_atomically

TRACE = "schedule.trace.json"


@dataclass(frozen=True)
class _Event:
    """Something on a track; `pair` are the devices of a transfer."""

    track: str
    category: str
    name: str
    start_s: float
    end_s: float
    args: dict[str, Any]
    pair: tuple[int, int] | None = None


def write_trace(path: Path, schedule: Schedule, problem: Problem) -> None:
    """Write a schedule in the Chrome trace event format: a track per device and stream, and per pair of devices and lane.

    If the schedule has spans, the tracks show these, so all micro-batches of a step; else operations and transfers. Events
    that overlap on one pair of devices go on lanes of their own: viewers reject overlap within a track.
    """
    found = list(_operations(schedule, problem) if schedule.spans is None else _spans(schedule.spans, problem))
    tracks = {name: i for i, name in enumerate(_device_tracks(schedule, problem))}  # first, in the order of the cluster
    events: list[dict[str, Any]] = []
    for e in _in_lanes(found):
        tid = tracks.setdefault(e.track, len(tracks))
        us, duration = e.start_s * 1e6, (e.end_s - e.start_s) * 1e6
        events.append(
            {
                "ph": "X",
                "cat": e.category,
                "name": e.name,
                "pid": 0,
                "tid": tid,
                "ts": us,
                "dur": duration,
                "args": e.args,
            }
        )
    heads: list[dict[str, Any]] = [
        {
            "ph": "M",
            "name": "process_name",
            "pid": 0,
            "args": {"name": f"{problem.graph.name} on {problem.cluster.name}"},
        }
    ]
    for track, tid in tracks.items():
        heads.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": tid, "args": {"name": track}})
        heads.append({"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": tid, "args": {"sort_index": tid}})
    write_atomically(path, json.dumps({"traceEvents": heads + events, "displayTimeUnit": "ms"}).encode())


def _device_tracks(schedule: Schedule, problem: Problem) -> Iterable[str]:
    """Names of the tracks of devices and their streams that ran something."""
    for d, name in enumerate(problem.cluster.device_names):
        for s in sorted(set(schedule.op_stream[(schedule.op_device == d) & problem.graph.kernel].tolist())):
            yield name if s == 0 else f"{name} stream {s}"


def _operations(schedule: Schedule, problem: Problem) -> Iterable[_Event]:
    """The operations of a schedule, then its transfers by their start."""
    devices, graph = problem.cluster.device_names, problem.graph
    for v in np.flatnonzero(graph.kernel):
        d, s = devices[schedule.op_device[v]], int(schedule.op_stream[v])
        args = {"type": graph.op_type[v], "module": graph.module[v]}
        start, end = float(schedule.op_start_s[v]), float(schedule.op_end_s[v])
        yield _Event(d if s == 0 else f"{d} stream {s}", graph.op_class[v], graph.op_name[v], start, end, args)
    for x in np.argsort(schedule.transfer_start_s, kind="stable"):
        pair = int(schedule.transfer_src[x]), int(schedule.transfer_dst[x])
        start, end = float(schedule.transfer_start_s[x]), float(schedule.transfer_end_s[x])
        t = int(schedule.transfer_tensor[x])
        name = graph.op_name[graph.tensor_producer[t]]
        yield _Event(_way(devices, pair), "transfer", name, start, end, {"bytes": int(graph.tensor_bytes[t])}, pair)


def _spans(spans: Spans, problem: Problem) -> Iterable[_Event]:
    """The tasks of all micro-batches, then the messages between devices by their start."""
    devices = problem.cluster.device_names
    for r in np.flatnonzero(spans.is_task).tolist():
        start, end = float(spans.start_s[r]), float(spans.end_s[r])
        yield _Event(devices[spans.device[r]], spans.name[r].rstrip(" 0123456789"), spans.name[r], start, end, {})
    for r in np.argsort(spans.start_s, kind="stable").tolist():
        if spans.to[r] >= 0:
            pair = int(spans.device[r]), int(spans.to[r])
            start, end = float(spans.start_s[r]), float(spans.end_s[r])
            yield _Event(
                _way(devices, pair), "transfer", spans.name[r], start, end, {"bytes": int(spans.bytes_[r])}, pair
            )


def _way(devices: Sequence[str], pair: tuple[int, int]) -> str:
    return f"{devices[pair[0]]} -> {devices[pair[1]]}"


def _in_lanes(events: Iterable[_Event]) -> Iterable[_Event]:
    """Events of pairs of devices on the first lane of the pair that is free."""
    lanes: dict[tuple[int, int], list[float]] = {}
    for e in events:
        if e.pair is None:
            yield e
            continue
        free = lanes.setdefault(e.pair, [])
        lane = next((i for i, until in enumerate(free) if until <= e.start_s), len(free))
        free[lane : lane + 1] = [e.end_s]
        yield replace(e, track=e.track + (f" ({lane})" if lane else ""))
