"""The timeline of a report: the events of a schedule on the tracks of devices and links, and why each of them started."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from placekit_core import PHASES, Problem, Schedule
from placekit_report.modules import colours

if TYPE_CHECKING:
    from placekit_report.causes import Causes

EVENTS = 60_000
"""Events that a timeline has at most: the critical path, then the longest."""
HIDDEN = "waited for an event that is too short to be shown"
_TASK = re.compile(r"[^\W\d](?:[^\d]*[^\W\d])?")


@dataclass(frozen=True, eq=False)
class Items:
    """What happens in a schedule, m items. Operation v is item v, transfer x is n + x; of a schedule with spans, span r is r.

    Attributes:
        shown: [m] False for sources, which take no time.
        device: [m] where it runs; of a transfer, where it comes from.
        stream: [m] its stream there.
        to: [m] where a transfer goes; -1 for computations.
        start_s, end_s: [m].
        name: m names.
        kind: m types; of a span, its name without numbers.
        module: m paths, or empty.
        phase: [m] index into `PHASES`.
        bytes_: [m] of the output, or of the message.
        colour, colours: [m] index of a colour, -1 for transfers; and the names of the colours.
    """

    shown: NDArray[np.bool_]
    device: NDArray[np.int64]
    stream: NDArray[np.int64]
    to: NDArray[np.int64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
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
        return cls._operations(problem, schedule) if schedule.spans is None else cls._spans(schedule)

    @classmethod
    def _operations(cls, problem: Problem, s: Schedule) -> Items:
        graph, x = problem.graph, len(s.transfer_tensor)
        producer = graph.tensor_producer[s.transfer_tensor]
        names, colour = colours(problem, s.op_total_s)
        output = np.bincount(graph.tensor_producer, graph.tensor_bytes, minlength=graph.n)
        return cls(
            shown=np.r_[graph.kernel, np.ones(x, np.bool_)],
            device=np.r_[s.op_device, s.transfer_src].astype(np.int64),
            stream=np.r_[np.maximum(s.op_stream, 0), np.zeros(x, np.int64)],
            to=np.r_[np.full(graph.n, -1), s.transfer_dst],
            start_s=np.r_[s.op_start_s, s.transfer_start_s],
            end_s=np.r_[s.op_end_s, s.transfer_end_s],
            name=[*graph.op_name, *(graph.op_name[v] for v in producer)],
            kind=graph.op_type.tolist() + ["transfer"] * x,
            module=graph.module.tolist() + [""] * x,
            phase=np.r_[graph.phase, graph.phase[producer]].astype(np.int64),
            bytes_=np.r_[output, graph.tensor_bytes[s.transfer_tensor]].astype(np.int64),
            colour=np.r_[colour, np.full(x, -1)],
            colours=names,
        )

    @classmethod
    def _spans(cls, s: Schedule) -> Items:
        spans = s.spans
        assert spans is not None
        kind = [match[0] if (match := _TASK.search(name)) else name for name in spans.name]
        seconds: dict[str, float] = {}
        for name, task, length in zip(kind, spans.is_task, spans.end_s - spans.start_s, strict=True):
            if task:
                seconds[name] = seconds.get(name, 0.0) + float(length)
        names = sorted(seconds, key=lambda name: (-seconds[name], name))
        index = {name: i for i, name in enumerate(names)}
        count = len(kind)
        return cls(
            shown=np.ones(count, np.bool_),
            device=spans.device.astype(np.int64),
            stream=np.zeros(count, np.int64),
            to=spans.to.astype(np.int64),
            start_s=spans.start_s,
            end_s=spans.end_s,
            name=list(spans.name),
            kind=kind,
            module=[""] * count,
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
    """[x] lane of each transfer, from 0: the first that is free among those of its `pair` of devices."""
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
    sent = np.flatnonzero(items.to >= 0)
    pair = items.device[sent] * size + items.to[sent]
    key = items.device << 32 | items.stream
    key[sent] = (pair + size) << 32 | lanes(items.start_s[sent], items.end_s[sent], pair)
    used = np.unique(np.r_[key[items.shown], np.arange(size) << 32])  # a device that runs nothing has a track, too
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
    """`timeline` of a report. `causes` counts items as `Items` does; `why` has the sentences of `causes.why`."""
    items = Items.of(problem, schedule)
    tracks, track = tracks_of(problem, items)
    kept = _kept(items, causes.critical)
    order = kept[np.lexsort((items.end_s[kept], items.start_s[kept], track[kept]))]
    event = np.full(len(items.shown), -1)
    event[order] = np.arange(len(order))
    cause = causes.cause[order]
    shown = np.where(cause >= 0, event[cause], -1)
    texts = Texts()
    sentence = [
        HIDDEN if c >= 0 and e < 0 and items.shown[c] else why[w]
        for c, e, w in zip(cause.tolist(), shown.tolist(), causes.why[order].tolist(), strict=True)
    ]
    events = {
        "track": track[order],
        "start_s": items.start_s[order],
        "duration_s": (items.end_s - items.start_s)[order],
        "name": [texts(items.name[i]) for i in order],
        "module": [texts(items.module[i]) if items.module[i] else -1 for i in order],
        "type": [texts(items.kind[i]) for i in order],
        "colour": items.colour[order],
        "phase": items.phase[order],
        "bytes": items.bytes_[order],
        "why": [texts(text) for text in sentence],
        "cause": shown,
    }
    critical = event[causes.critical]
    left_out = int(items.shown.sum()) - len(kept)
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


def _kept(items: Items, critical: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """The items that are shown: all if there are at most `EVENTS`, else those of the critical path and the longest."""
    found = np.flatnonzero(items.shown)
    if len(found) <= EVENTS:
        return found
    length = items.end_s - items.start_s
    length[critical] = np.inf
    return np.sort(found[np.argsort(-length[found], kind="stable")[:EVENTS]])
