"""Writes schedules as traces that Perfetto and chrome://tracing can open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from placekit_core import PHASES, Problem, Schedule, write_atomically
from placekit_report.timeline import Items, tracks_of

TRACE = "schedule.trace.json"


def write_trace(path: Path, schedule: Schedule, problem: Problem) -> None:
    """Write a schedule in the Chrome trace event format, with the tracks of the report's timeline.

    A trace of a pipeline shows the tasks and messages of all micro-batches, other traces operations and transfers.
    """
    items = Items.of(problem, schedule)
    tracks, track = tracks_of(problem, items)
    run = f"{problem.graph.name} on {problem.cluster.name}"
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": run}}]
    for tid, name in enumerate(tracks["name"]):
        events.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": tid, "args": {"name": name}})
        events.append({"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": tid, "args": {"sort_index": tid}})
    for i in np.flatnonzero(items.events.ran).tolist():
        start, end, sent = float(items.events.start_s[i]), float(items.events.end_s[i]), items.events.to[i] >= 0
        own = {"type": items.kind[i], "module": items.module[i], "phase": PHASES[items.phase[i]]}
        args = {"bytes": int(items.bytes_[i])} if sent else own
        events.append(
            {
                "ph": "X",
                "cat": "transfer" if sent else items.kind[i],
                "name": items.name[i],
                "pid": 0,
                "tid": int(track[i]),
                "ts": start * 1e6,
                "dur": (end - start) * 1e6,
                "args": args,
            }
        )
    write_atomically(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode())
