"""Causes of a schedule without a trace, from its times: the latest end among everything that could have held an event back."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from placekit_core import Problem, Schedule, Spans
from placekit_report.events import BARRIER, DEVICE, INPUT, LINK, NONE, TRANSFER, Events

Found = tuple[NDArray[np.int32], NDArray[np.int8]]
"""[m] cause and [m] reason of each event; see `causes.Causes`."""
Candidate = tuple[int, int]
"""An event that may be the cause, and the reason."""


class _Choice:
    """Chooses causes among candidates; only an event that comes before may be one, so that no chain of causes is a circle.

    `place` [m] orders events of equal times: producers come before consumers.
    """

    def __init__(self, events: Events, place: NDArray[np.float64]) -> None:
        self.start, self.end = events.start_s.tolist(), events.end_s.tolist()
        self.place = place.tolist()
        self.cause = np.full(len(self.start), -1, np.int32)
        self.why = np.full(len(self.start), NONE, np.int8)

    def key(self, i: int) -> tuple[float, float, float]:
        """Order of the events."""
        return self.start[i], self.end[i], self.place[i]

    def choose(self, i: int, candidates: Iterable[Candidate]) -> None:
        """The candidate that ends last is the cause; of equal ones, the first."""
        own, best = self.key(i), -np.inf
        for j, why in candidates:
            if self.end[j] > best and self.key(j) < own:
                best, self.cause[i], self.why[i] = self.end[j], j, why

    def gap_s(self, i: int) -> float:
        """Seconds from the end of the cause, or from 0, to the start."""
        j = int(self.cause[i])
        return float(self.start[i] - (self.end[j] if j >= 0 else 0.0))


class _Channels:
    """Which transfer last ended on each channel before a time; `add` transfers in the order of their starts."""

    def __init__(self, problem: Problem, choice: _Choice) -> None:
        self.routes, self.size, self.choice = problem.cluster.routes, problem.cluster.size, choice
        self.ends: list[list[tuple[float, int]]] = [[] for _ in self.routes.channels]

    def _of(self, src: int, dst: int) -> list[int]:
        ptr, route = self.routes.ptr, src * self.size + dst
        return [int(c) for c in self.routes.channel[ptr[route] : ptr[route + 1]]]

    def before(self, i: int, src: int, dst: int) -> Iterable[Candidate]:
        """On each channel of the route, the transfer that ended last before event i starts."""
        for c in self._of(src, dst):
            at = bisect_right(self.ends[c], (self.choice.start[i], len(self.choice.start)))
            if at:
                yield self.ends[c][at - 1][1], LINK

    def add(self, i: int, src: int, dst: int) -> None:
        for c in self._of(src, dst):
            insort(self.ends[c], (self.choice.end[i], i))


def derived_causes(problem: Problem, schedule: Schedule, measured: bool) -> Found:
    """Causes of operations and transfers.

    In a simulation, an event that starts after everything of its own has ended, and just when something else ends, waited for
    a barrier.
    """
    graph, n, events = problem.graph, problem.graph.n, Events.of(problem, schedule)
    topological = np.empty(n)
    topological[graph.topological_order] = np.arange(n)
    producer, home = graph.tensor_producer.tolist(), schedule.op_device.tolist()
    choice = _Choice(events, np.append(topological, topological[graph.tensor_producer[schedule.transfer_tensor]] + 0.5))
    order = np.lexsort((choice.place, events.end_s, events.start_s))
    arrivals: dict[tuple[int, int], list[int]] = {}
    for i in order[order >= n].tolist():
        x = i - n
        arrivals.setdefault((int(schedule.transfer_tensor[x]), int(schedule.transfer_dst[x])), []).append(i)

    def inputs(v: int) -> Iterable[Candidate]:
        for t in graph.inputs(v).tolist():
            u = producer[t]
            if home[u] == home[v] and graph.kernel[u]:
                yield u, INPUT
            came = arrivals.get((t, home[v]))
            if came:
                yield max((i for i in came if choice.end[i] <= choice.start[v]), default=came[0]), TRANSFER

    channels, latest = _Channels(problem, choice), dict[tuple[int, int], int]()
    for i in order[events.ran[order]].tolist():
        if i < n:
            stream = home[i], int(schedule.op_stream[i])
            own = [(latest[stream], DEVICE)] if stream in latest else []
            choice.choose(i, [*inputs(i), *own])
            latest[stream] = i
        else:
            src, dst, u = int(events.device[i]), int(events.to[i]), producer[schedule.transfer_tensor[i - n]]
            written = [(u, INPUT)] if graph.kernel[u] else []
            choice.choose(i, [*written, *channels.before(i, src, dst)])
            channels.add(i, src, dst)
    if not measured:
        _barriers(choice, order[events.ran[order]].tolist())
    return choice.cause, choice.why


def _barriers(choice: _Choice, order: list[int]) -> None:
    """Replace causes that ended before the start by what ended just then, if anything did."""
    ended: dict[float, int] = {}
    for i in order:
        if choice.end[i] > choice.start[i]:
            ended.setdefault(choice.end[i], i)
    for i in order:
        if choice.start[i] in ended and choice.gap_s(i) > 0:
            choice.cause[i], choice.why[i] = ended[choice.start[i]], BARRIER


def derived_span_causes(problem: Problem, spans: Spans) -> Found:
    """Causes of the tasks and messages of a pipeline: the last task or message before, on the device or the link.

    A schedule does not say which messages a task reads, so a message that came just before counts as its input.
    """
    events = Events(spans.device, spans.to, spans.start_s, spans.end_s, np.ones(len(spans.to), np.bool_))
    choice = _Choice(events, np.arange(len(spans.to), dtype=np.float64))
    order = np.lexsort((choice.place, spans.end_s, spans.start_s)).tolist()
    size = problem.cluster.size
    came: list[list[tuple[float, int]]] = [[] for _ in range(size)]  # messages to each device, by their end
    done: list[list[tuple[float, int]]] = [[] for _ in range(size)]  # tasks of each device
    channels = _Channels(problem, choice)
    for i in order:
        into, device = (done, spans.device[i]) if spans.to[i] < 0 else (came, spans.to[i])
        into[device].append((choice.end[i], i))
    for rows in (*came, *done):
        rows.sort()

    def latest(rows: list[tuple[float, int]], i: int, why: int) -> Iterable[Candidate]:
        """The last of `rows` that ended before event i starts, and comes before it."""
        at = bisect_right(rows, (choice.start[i], len(choice.start))) - 1
        while at >= 0 and choice.key(rows[at][1]) >= choice.key(i):
            at -= 1
        if at >= 0:
            yield rows[at][1], why

    for i in order:
        d, to = int(spans.device[i]), int(spans.to[i])
        if to < 0:
            choice.choose(i, [*latest(came[d], i, TRANSFER), *latest(done[d], i, DEVICE)])
        else:
            choice.choose(i, [*latest(done[d], i, INPUT), *channels.before(i, d, to)])
            channels.add(i, d, to)
    return choice.cause, choice.why
