"""The timeline of a report: events on tracks of devices and links, with the reason why each started."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from placekit_core import PHASES, Problem, Schedule
from placekit_report.events import Events
from placekit_report.modules import colours

if TYPE_CHECKING:
    from placekit_report.causes import Causes

EVENTS = 60_000
"""Events that a timeline has at most: the critical path, then the longest."""
HIDDEN = "waited for an event that is too short to be shown"
_TASK = re.compile(r"[^\W\d](?:[^\d]*[^\W\d])?")


@dataclass(frozen=True, eq=False)
class Items:
    """The events of a schedule, with the properties that pictures and traces show.

    Attributes:
        events: the m events.
        stream: [m] stream on the device.
        name: m names.
        kind: m types; the kind of a span is its name without numbers.
        module: m paths, or empty.
        phase: [m] index into `PHASES`.
        bytes_: [m] of the output, or of the message.
        colour, colours: [m] index of a colour, -1 for transfers; and the names of the colours.
    """

    events: Events
    stream: NDArray[np.int64]
    name: list[str]
    kind: list[str]
    module: list[str]
    phase: NDArray[np.int64]
    bytes_: NDArray[np.int64]
    colour: NDArray[np.int64]
    colours: list[str]

    @classmethod
    def of(cls, problem: Problem, schedule: Schedule) -> Items:
        """The items of a schedule."""
        events = Events.of(problem, schedule)
        return cls._operations(events, problem, schedule) if schedule.spans is None else cls._spans(events, schedule)

    @classmethod
    def _operations(cls, events: Events, problem: Problem, s: Schedule) -> Items:
        graph, x = problem.graph, len(s.transfer_tensor)
        producer = graph.tensor_producer[s.transfer_tensor]
        names, colour = colours(problem, s.op_total_s)
        output = np.bincount(graph.tensor_producer, graph.tensor_bytes, minlength=graph.n)
        return cls(
            events=events,
            stream=np.r_[np.maximum(s.op_stream, 0), np.zeros(x, np.int64)],
            name=[*graph.op_name, *(graph.op_name[v] for v in producer)],
            kind=graph.op_type.tolist() + ["transfer"] * x,
            module=graph.module.tolist() + [""] * x,
            phase=np.r_[graph.phase, graph.phase[producer]].astype(np.int64),
            bytes_=np.r_[output, graph.tensor_bytes[s.transfer_tensor]].astype(np.int64),
            colour=np.r_[colour, np.full(x, -1)],
            colours=names,
        )

    @classmethod
    def _spans(cls, events: Events, s: Schedule) -> Items:
        spans = s.spans
        assert spans is not None
        kind = [match[0] if (match := _TASK.search(name)) else name for name in spans.name]
        seconds: dict[str, float] = {}
        for name, task, length in zip(kind, spans.is_task, spans.end_s - spans.start_s, strict=True):
            if task:
                seconds[name] = seconds.get(name, 0.0) + float(length)
        names = sorted(seconds, key=lambda name: (-seconds[name], name))
        index = {name: i for i, name in enumerate(names)}
        return cls(
            events=events,
            stream=np.zeros(len(kind), np.int64),
            name=list(spans.name),
            kind=kind,
            module=[""] * len(kind),
            phase=np.asarray([_phase(name) for name in kind], np.int64),
            bytes_=spans.bytes_.astype(np.int64),
            colour=np.asarray([index[k] if t else -1 for k, t in zip(kind, spans.is_task, strict=True)], np.int64),
            colours=names,
        )


def _phase(kind: str) -> int:
    """The phase that a task or message of a pipeline belongs to, by its name."""
    if "update" in kind:
        return PHASES.index("update")
    return PHASES.index("backward" if kind.startswith(("backward", "weight", "gradient")) else "forward")


def lanes(
    start_s: NDArray[np.float64], end_s: NDArray[np.float64], pair: NDArray[np.integer[Any]]
) -> NDArray[np.int64]:
    """[x] lane of each transfer, from 0: the first free lane of its `pair` of devices."""
    found = np.zeros(len(pair), np.int64)
    busy: dict[int, list[float]] = {}
    for x in np.argsort(start_s, kind="stable").tolist():
        free = busy.setdefault(int(pair[x]), [])
        lane = next((i for i, until in enumerate(free) if until <= start_s[x]), len(free))
        free[lane : lane + 1] = [float(end_s[x])]
        found[x] = lane
    return found


def tracks_of(problem: Problem, items: Items) -> tuple[dict[str, list[Any]], NDArray[np.int64]]:
    """`tracks` of a report, and [m] the track of each item: devices with their streams, then pairs of devices and lanes."""
    size, names = problem.cluster.size, problem.cluster.device_names
    sent = np.flatnonzero(items.events.to >= 0)
    pair = items.events.device[sent] * size + items.events.to[sent]
    key = items.events.device << 32 | items.stream
    key[sent] = (pair + size) << 32 | lanes(items.events.start_s[sent], items.events.end_s[sent], pair)
    used = np.unique(np.r_[key[items.events.ran], np.arange(size) << 32])  # idle devices have tracks, too
    tracks: dict[str, list[Any]] = {"name": [], "kind": [], "device": []}
    for where, lane in zip((used >> 32).tolist(), (used & 0xFFFFFFFF).tolist(), strict=True):
        link = where >= size
        a, b = divmod(where - size, size)
        text = f"{names[a]} -> {names[b]}" if link else names[where]
        more = (f" ({lane})" if link else f" stream {lane}") if lane else ""
        tracks["name"].append(text + more)
        tracks["kind"].append("link" if link else "device")
        tracks["device"].append(-1 if link else where)
    return tracks, np.searchsorted(used, key)


class Texts:
    """A table of strings, each once."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """The index of `text`."""
        return self.index.setdefault(text, len(self.index))


def timeline(problem: Problem, schedule: Schedule, causes: Causes, why: tuple[str, ...]) -> dict[str, Any]:
    """`timeline` of a report; `why` has the sentences of `causes.why`."""
    items = Items.of(problem, schedule)
    tracks, track = tracks_of(problem, items)
    kept = _kept(items, causes.critical)
    order = kept[np.lexsort((items.events.end_s[kept], items.events.start_s[kept], track[kept]))]
    event = np.full(len(items.events.ran), -1)
    event[order] = np.arange(len(order))
    cause = causes.cause[order]
    shown = np.where(cause >= 0, event[cause], -1)
    texts = Texts()
    sentence = [
        HIDDEN if c >= 0 and e < 0 and items.events.ran[c] else why[w]
        for c, e, w in zip(cause.tolist(), shown.tolist(), causes.why[order].tolist(), strict=True)
    ]
    events: dict[str, list[Any]] = {
        "track": track[order].tolist(),
        "start_s": items.events.start_s[order].tolist(),
        "duration_s": (items.events.end_s - items.events.start_s)[order].tolist(),
        "name": [texts(items.name[i]) for i in order],
        "module": [texts(items.module[i]) if items.module[i] else -1 for i in order],
        "type": [texts(items.kind[i]) for i in order],
        "colour": items.colour[order].tolist(),
        "phase": items.phase[order].tolist(),
        "bytes": items.bytes_[order].tolist(),
        "why": [texts(text) for text in sentence],
        "cause": shown.tolist(),
    }
    if not causes.derived:
        _add_hosts(problem, schedule, tracks, events, texts)
    critical = event[causes.critical]
    left_out = int(items.events.ran.sum()) - len(kept)
    return {
        "end_s": schedule.end_s,
        "micro_batches": schedule.spans is not None,
        "tracks": tracks,
        "texts": list(texts.index),
        "colours": {"module": items.colours},
        "events": events,
        "critical": critical[critical >= 0],
        "critical_parts": {"name": list(causes.part_name), "seconds": causes.part_s},
        "complete": left_out == 0,
        "left_out": left_out,
    }


def _add_hosts(
    problem: Problem, schedule: Schedule, tracks: dict[str, list[Any]], events: dict[str, list[Any]], texts: Texts
) -> None:
    """Add a track for each host, on which its launches are one event: it makes no pause between them."""
    launched_s, launchers = problem.launched_s(schedule.op_device), problem.cluster.launchers
    host = np.where(problem.graph.kernel & (launched_s > 0), launchers.host[schedule.op_device], -1)
    for h in np.unique(host[host >= 0]).tolist():
        one = len(problem.cluster.hosts) == 1 and problem.cluster.launching == "eager"
        events["track"].append(len(tracks["name"]))
        tracks["name"].append("host" if one else f"host {h}")
        tracks["kind"].append("host")
        tracks["device"].append(-1)
        launches = f"launches of {int((host == h).sum()):,} operations"
        row = {"start_s": 0.0, "duration_s": float(launched_s[host == h].max()), "name": texts(launches), "module": -1}
        row |= {"type": texts("launches"), "colour": -1, "phase": 0, "bytes": 0, "why": texts(""), "cause": -1}
        for key, value in row.items():
            events[key].append(value)


def _kept(items: Items, critical: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """The items to show: at most `EVENTS`, the critical path first, then the longest."""
    found = np.flatnonzero(items.events.ran)
    if len(found) <= EVENTS:
        return found
    length = items.events.end_s - items.events.start_s
    length[critical] = np.inf
    return np.sort(found[np.argsort(-length[found], kind="stable")[:EVENTS]])
