"""Finds out why each event of a schedule started when it did, and the critical path.

The cause of an event is the event that it waited for last: it produced or delivered the last input, or released the device or
link. The critical path is the chain of causes of the event that ends last. Simulators record causes
(`placekit_scheduling.Trace`); for other schedules `derived_causes` infers them from the times.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling import BY_HOST
from placekit_scheduling.tracing import Traced, run_traced

from placekit_core import BackendError, Placement, Problem, Schedule, Session
from placekit_report.events import AHEAD, DEVICE, HOST, INPUT, LINK, NONE, TRANSFER, WHY as WHY, Events
from placekit_report.resources import launch_share

BY_THE_HOST, LAUNCHES, WAITING = "launching by the host", "launch overhead", "waiting"
CLOCKS_S = 2e-5
"""Seconds by which the clocks of two devices may differ in a measured step."""


@dataclass(frozen=True, eq=False)
class Causes:
    """Causes of the m events of a schedule, numbered as in `events.Events`, and the critical path.

    Attributes:
        cause: [m] the event that each event waited for last, or -1.
        why: [m] index into `WHY`, the beginning of a sentence that ends with the name of the cause.
        critical: [c] events of the critical path, in order of time.
        part_name, part_s: where the critical path spends its time, most seconds first: `computing on DEVICE`, `FROM -> TO`,
            `launch overhead` (if seconds are estimated), `launching by the host`, `waiting`. They add up to the end of the
            schedule.
        derived: the causes were inferred from the times, not recorded by the backend.
    """

    cause: NDArray[np.int32]
    why: NDArray[np.int8]
    critical: NDArray[np.int32]
    part_name: tuple[str, ...]
    part_s: NDArray[np.float64]
    derived: bool


def explain(
    problem: Problem,
    schedule: Schedule,
    placement: Placement | None = None,
    session: Session | None = None,
    measured: bool = False,
) -> Causes:
    """The causes of a schedule.

    With the schedule's `placement` and `session`, the backend's trace is used if it has one; otherwise causes are inferred
    from the times. `measured`: the times come from the devices' clocks. Raises BackendError if trace and schedule disagree.
    """
    events = Events.of(problem, schedule)
    kernel = None if session is None or placement is None or schedule.spans is not None else session.kernel()
    traced = placement is not None and kernel is not None and kernel.trace is not None
    if traced:
        assert placement is not None
        assert kernel is not None
        run = run_traced(kernel, problem, placement.device, placement.priority)
        cause, why, last = _traced(problem, schedule, run)
    else:
        cause, why = derived_causes(events, CLOCKS_S if measured else 0.0)
        last = int(np.where(events.ran, events.end_s, -1.0).argmax()) if events.ran.any() else -1
    path = [last] if last >= 0 else []
    while path and cause[path[-1]] >= 0:
        path.append(int(cause[path[-1]]))
    critical = np.asarray(path[::-1], np.int32)
    launched = len(critical) > 0 and bool(why[critical[0]] == HOST)
    names, seconds = _parts(problem, schedule, events, critical, measured, BY_THE_HOST if launched else WAITING)
    return Causes(
        cause=cause,
        why=why,
        critical=critical,
        part_name=names,
        part_s=seconds,
        derived=not traced,
    )


def derived_causes(events: Events, slack_s: float = 0.0) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
    """[m] cause and [m] reason of each event, inferred from the times: the latest event that it could have waited for.

    A computation can wait for transfers to its device and for computations there, a transfer for computations on its source
    and for transfers between the same devices. A cause may end up to `slack_s` after the start.
    """
    start, end = events.start_s.tolist(), events.end_s.tolist()
    device, to = events.device.tolist(), events.to.tolist()
    ended: dict[tuple[str, int, int], list[tuple[float, float, int]]] = {}
    for i in np.flatnonzero(events.ran).tolist():
        own = (end[i], start[i], i)
        if to[i] < 0:
            ended.setdefault(("computed", device[i], -1), []).append(own)
        else:
            ended.setdefault(("arrived", to[i], -1), []).append(own)
            ended.setdefault(("sent", device[i], to[i]), []).append(own)
    for rows in ended.values():
        rows.sort()
    cause, why = np.full(len(start), -1, np.int32), np.full(len(start), NONE, np.int8)
    for i in np.flatnonzero(events.ran).tolist():
        if to[i] < 0:
            choices = [(("arrived", device[i], -1), TRANSFER), (("computed", device[i], -1), DEVICE)]
        else:
            choices = [(("computed", device[i], -1), INPUT), (("sent", device[i], to[i]), LINK)]
        latest = -1.0
        for key, reason in choices:
            rows = ended.get(key, [])
            at = bisect_right(rows, (start[i] + slack_s, np.inf, 0)) - 1
            while at >= 0 and rows[at] >= (end[i], start[i], i):  # keeps chains of causes free of cycles
                at -= 1
            if at >= 0 and rows[at][0] > latest:
                latest, cause[i], why[i] = rows[at][0], rows[at][2], reason
    return cause, why


def copies_of(problem: Problem, schedule: Schedule, run: Traced) -> NDArray[np.int64]:
    """[x] which copy in `run` each transfer of the schedule is. Raises BackendError if run and schedule disagree."""
    start_s = run.start_s[run.copy_task]
    ours = np.lexsort((schedule.transfer_start_s, schedule.transfer_dst, schedule.transfer_tensor))
    theirs = np.lexsort((start_s, run.copy_dst, run.copy_tensor))
    kernel = problem.graph.kernel
    agree = np.array_equal(run.start_s[: problem.graph.n][kernel], schedule.op_start_s[kernel])
    for here, there in (
        (schedule.transfer_tensor, run.copy_tensor), (schedule.transfer_dst, run.copy_dst), (schedule.transfer_start_s, start_s)
    ):  # fmt: skip
        agree = agree and np.array_equal(here[ours], there[theirs])
    if not agree:
        raise BackendError(
            "the trace of this backend is not that of its schedule", "report this to the backend's author"
        )
    copy = np.empty(len(ours), np.int64)
    copy[ours] = theirs
    return copy


def _traced(problem: Problem, schedule: Schedule, run: Traced) -> tuple[NDArray[np.int32], NDArray[np.int8], int]:
    """Recorded cause and reason of each event, and the event that ended last."""
    graph, n = problem.graph, problem.graph.n
    task = np.concatenate([np.arange(n), run.copy_task[copies_of(problem, schedule, run)]])
    device = np.concatenate([schedule.op_device, schedule.transfer_dst]).astype(np.int64)
    ran = np.concatenate([graph.kernel, np.ones(len(task) - n, np.bool_)])
    event_of = np.full(len(run.cause), -1, np.int32)
    event_of[task[::-1]] = np.arange(len(task), dtype=np.int32)[
        ::-1
    ]  # a multicast is represented by its first transfer
    because = np.where(ran, run.cause[task], -1)
    because = np.where((because >= 0) & (because < n) & ~graph.kernel[np.clip(because, 0, n - 1)], -1, because)
    cause = np.where(because >= 0, event_of[because], -1).astype(np.int32)
    own = {(int(task[i]), int(device[i])): i for i in range(n, len(task))}
    is_op, by_transfer = np.arange(len(task)) < n, because >= n
    for v in np.flatnonzero(is_op & by_transfer).tolist():  # but its readers wait for the transfer to their own device
        cause[v] = own.get((int(because[v]), int(device[v])), cause[v])
    producer, consumer = graph.op_edges
    pair = because[:n].astype(np.int64) * n + np.arange(n)
    gives = np.zeros(len(task), np.bool_)
    gives[:n] = np.isin(pair, producer.astype(np.int64) * n + consumer)
    gives[n:] = because[n:] == graph.tensor_producer[schedule.transfer_tensor]
    other = np.where(is_op, DEVICE, AHEAD)
    why = np.where(by_transfer, np.where(is_op, TRANSFER, LINK), np.where(gives, INPUT, other))
    last = int(event_of[run.last]) if run.last >= 0 else -1
    without = np.where(run.cause[task] == BY_HOST, HOST, NONE)
    return cause, np.where(because < 0, without, why).astype(np.int8), last


def _parts(
    problem: Problem, schedule: Schedule, events: Events, critical: NDArray[np.int32], measured: bool, before: str
) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Names and seconds of the parts of the critical path; `before` is what happens until it begins."""
    names = problem.cluster.device_names
    share = np.zeros(0)
    if schedule.spans is None and not measured:
        share = launch_share(problem)[np.arange(problem.graph.n), schedule.op_device]
    parts: dict[str, float] = {}
    until = 0.0
    for i in critical.tolist():
        start, end = float(events.start_s[i]), float(events.end_s[i])
        took = max(0.0, end - max(start, until))  # clocks of devices may differ a little
        launch = took * float(share[i]) if i < len(share) else 0.0
        here, to = names[events.device[i]], int(events.to[i])
        what = f"computing on {here}" if to < 0 else f"{here} -> {names[to]}"
        waited = WAITING if until else before
        for name, seconds in ((waited, max(0.0, start - until)), (LAUNCHES, launch), (what, took - launch)):
            parts[name] = parts.get(name, 0.0) + seconds
        until = max(until, end)
    found = sorted(((name, s) for name, s in parts.items() if s > 0), key=lambda part: (-part[1], part[0]))
    return tuple(name for name, _ in found), np.asarray([s for _, s in found], np.float64)
