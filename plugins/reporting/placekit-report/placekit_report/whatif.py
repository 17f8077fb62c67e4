"""What would change the value of a placement: utilisation, the binding resource, single moves, better resources.

Moves and resources are simulated with the same backend, not estimated. Their number is limited by a count and not by a
clock, so that equal runs have equal reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from placekit_core import Backend, PlacekitError, Placement, Placements, Problem, Schedule, Session, units
from placekit_report.causes import BY_THE_HOST, LAUNCHES, WAITING, Causes
from placekit_report.device_usage import covered
from placekit_report.events import Events
from placekit_report.resources import is_same, more_of_each

MOST = 2000
"""Single moves that are tried at most."""
WORK = 5_000_000
"""Operations, edges and transfers that all moves together may simulate: fewer moves of a large graph are tried."""
LEAST = 20
"""Moves that are tried of any graph, however large."""
BEST = 5
ROUNDING = 1e-9
"""Relative difference from which a value is another one."""


@dataclass(frozen=True, eq=False)
class Utilisation:
    """The share of the schedule in which each device runs something, and each link sends.

    Links are the channels of the machine that can be full, in one direction; where a route has none, pairs of devices.
    """

    name: tuple[str, ...]
    share: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Moves:
    """The single moves with the lowest values, best first: the group, its device, and the best device to move it to.

    `text` summarises all moves that were tried. Moves that do not fit into a device's memory are left out.
    """

    group: NDArray[np.int64]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    value_s: NDArray[np.float64]
    text: str


@dataclass(frozen=True, eq=False)
class Resources:
    """Values of the same placement on machines with more of one resource, best first."""

    name: tuple[str, ...]
    value_s: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Change:
    """What would change a placement. Without a simulation, `moves` and `resources` are None, and `reason` says why.

    `binds` says what takes the time; `value_s` is the present simulated value.
    """

    utilisation: Utilisation
    binds: str
    moves: Moves | None = None
    resources: Resources | None = None
    value_s: float | None = None
    reason: str = ""


def what_would_change(
    problem: Problem,
    schedule: Schedule,
    placement: Placement,
    causes: Causes,
    backend: Backend | None = None,
    session: Session | None = None,
) -> Change:
    """What would change `placement`, by `schedule` and its `causes`, and by simulating it again.

    `session` is open on `problem`; `backend`, its backend, opens machines with more of a resource.
    """
    used = utilisation(problem, schedule)
    binds = what_binds(problem, used, causes)
    if backend is None or session is None or not backend.simulated:
        return Change(
            used, binds, reason="single moves and other machines are not looked at: nothing simulates this run"
        )
    now = session.evaluate(placement.batch())
    value_s = float(now.value_s[0])
    if not np.isfinite(value_s):
        return Change(
            used, binds, reason="single moves and other machines are not looked at: the placement has no value"
        )
    critical_s, transfers = _critical_s(problem, schedule, causes), len(schedule.transfer_tensor)
    moves = _moves(problem, placement, session, value_s, critical_s, transfers)
    resources = _resources(problem, placement, backend, value_s)
    resources.sort(key=lambda row: (row[1], row[0]))
    values = np.asarray([value for _, value in resources], np.float64)
    more = Resources(tuple(name for name, _ in resources), values)
    return Change(used, binds, moves, more, value_s)


def utilisation(problem: Problem, schedule: Schedule) -> Utilisation:
    """How much of the schedule each device and each link is in use; links that send nothing are left out."""
    events, cluster = Events.of(problem, schedule), problem.cluster
    rows = [
        (name, np.flatnonzero(events.ran & (events.to < 0) & (events.device == d)))
        for d, name in enumerate(cluster.device_names)
    ]
    links: dict[tuple[int, int, int], list[int]] = {}  # channel, or after all channels a pair of devices
    routes, size = cluster.routes, cluster.size
    for i in np.flatnonzero(events.to >= 0).tolist():
        a, b = int(events.device[i]), int(events.to[i])
        held = routes.channel[routes.ptr[a * size + b] : routes.ptr[a * size + b + 1]].tolist()
        for key in [(c, -1, -1) for c in held] or [(len(routes.channels), a, b)]:
            links.setdefault(key, []).append(i)
    names = cluster.device_names
    for c, a, b in sorted(links):
        name = _spaced(routes.channels[c].name) if a < 0 else f"{names[a]} -> {names[b]}"
        rows.append((name, np.asarray(links[c, a, b])))
    busy_s = np.asarray([covered(events.start_s[own], events.end_s[own]) for _, own in rows], np.float64)
    share = busy_s / schedule.end_s if schedule.end_s > 0 else np.zeros(len(rows))
    return Utilisation(tuple(name for name, _ in rows), share)


def what_binds(problem: Problem, used: Utilisation, causes: Causes) -> str:
    """What is in use the longest, and the largest part of the critical path, in words."""
    if not causes.part_name:
        return "nothing takes time"
    most = int(used.share.argmax())
    does = "computes" if most < problem.cluster.size else "sends"
    busy = f"{used.name[most]} {does} during {units.percent(float(used.share[most]))} of the step"
    name, share = causes.part_name[0], float(causes.part_s[0] / causes.part_s.sum())
    what = {
        BY_THE_HOST: "launching operations, one after the other, by the host,",
        LAUNCHES: "launching operations",
        WAITING: "waiting, such as for the host that launches operations,",
    }.get(name, f"the {_way(problem, name)} {name}" if " -> " in name else name)
    return f"{busy}; {what} takes {units.percent(share)} of the critical path"


def _way(problem: Problem, pair: str) -> str:
    """Whether the `FROM -> TO` of a part is one link of the machine or a route over several."""
    a, b = pair.split(" -> ")
    channels = {_spaced(channel.name) for channel in problem.cluster.routes.channels}
    return "link" if {pair, f"{a} <-> {b}", f"{b} <-> {a}"} & channels else "route"


def _moves(
    problem: Problem, placement: Placement, session: Session, value_s: float, critical_s: NDArray[np.float64], transfers: int
) -> Moves:  # fmt: skip
    """Simulate single moves, groups with most seconds on the critical path first; `transfers` is their number now."""
    device, graph = placement.device, problem.graph
    possible = int(problem.allowed.sum()) - problem.g
    count = min(MOST, possible, max(LEAST, WORK // max(graph.n + graph.e + transfers, 1)))
    size = problem.cluster.size
    others = ((g, d) for g in _by_weight(problem, placement, critical_s) for d in range(size) if d != device[g])
    chosen = list(islice(((g, d) for g, d in others if problem.allowed[g, d]), count))
    group, target = (np.asarray([move[i] for move in chosen], np.int64) for i in (0, 1))
    rows = np.repeat(device[None], len(chosen), axis=0)
    rows[np.arange(len(chosen)), group] = target
    order = placement.priority
    found = session.evaluate(Placements(rows, None if order is None else np.repeat(order[None], len(chosen), axis=0)))
    values = np.where(np.isfinite(found.value_s), found.value_s, np.inf)
    fits = np.flatnonzero((found.peak_bytes <= problem.cluster.memory_bytes).all(axis=1) & np.isfinite(values))
    fits = fits[np.argsort(values[fits], kind="stable")]
    best = fits[np.sort(np.unique(group[fits], return_index=True)[1])[:BEST]]
    better = int((values[fits] < value_s * (1 - ROUNDING)).sum())
    text = f"{better or 'none'} of {len(group)} single moves that were simulated would be better"
    if len(group) < possible:
        first = "those on the critical path" if critical_s.any() else "groups with most seconds"
        text += f"; {possible} are possible, and {first} came first"
    source = device[group[best]].astype(np.int64)
    return Moves(group=group[best], source=source, target=target[best], value_s=values[best], text=text)


def _critical_s(problem: Problem, schedule: Schedule, causes: Causes) -> NDArray[np.float64]:
    """[g] seconds of each group on the critical path: its operations, and the transfers that it sends or reads; 0 if the
    schedule has tasks larger than operations.
    """
    graph, group_of = problem.graph, problem.grouping.group_of
    found = np.zeros(problem.g)
    if schedule.spans is not None:
        return found
    op = causes.critical[causes.critical < graph.n]
    np.add.at(found, group_of[op], schedule.op_end_s[op] - schedule.op_start_s[op])
    for x in (causes.critical[causes.critical >= graph.n] - graph.n).tolist():
        t = int(schedule.transfer_tensor[x])
        readers = graph.consumers(t)
        there = readers[schedule.op_device[readers] == schedule.transfer_dst[x]]
        groups = np.unique(group_of[np.append(there, graph.tensor_producer[t])])
        found[groups] += schedule.transfer_end_s[x] - schedule.transfer_start_s[x]
    return found


def _by_weight(problem: Problem, placement: Placement, critical_s: NDArray[np.float64]) -> list[int]:
    """Groups that may move, by their seconds on the critical path, then by all their seconds."""
    seconds = problem.group_s[np.arange(problem.g), placement.device]
    order = np.lexsort((-seconds, -critical_s))
    return [int(i) for i in order[problem.allowed.sum(axis=1)[order] > 1]]


def _resources(problem: Problem, placement: Placement, backend: Backend, value_s: float) -> list[tuple[str, float]]:
    """Name and value for each machine with more of one resource.

    Resources that change no second of the program are left out, and machines that the backend refuses.
    """
    rows: list[tuple[str, float]] = []
    for resource in more_of_each(problem.cluster):
        changed = resource.problem(problem)
        if is_same(problem, changed):
            continue
        try:
            session = backend.open(changed)
        except PlacekitError:  # the backend refuses this machine
            continue
        try:
            value = float(session.evaluate(placement.batch()).value_s[0])
        finally:
            session.close()
        if np.isfinite(value):
            rows.append((resource.name, value))
    return rows


def _spaced(channel: str) -> str:
    """The name of a channel with spaces around its arrow."""
    arrow = "<->" if "<->" in channel else "->"
    return f" {arrow} ".join(channel.split(arrow, 1))
