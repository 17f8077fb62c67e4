"""Schedules as traces, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from placekit_core import Problem, Schedule, write_atomically

TRACE = "schedule.trace.json"


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
