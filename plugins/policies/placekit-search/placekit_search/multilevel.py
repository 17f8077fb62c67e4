"""Starts for large graphs: annealing moves the units of a multilevel coarsening by loads and delays, without a simulation.

A list schedule of units gives a unit its device when the unit's first operation is ready, and so may give a device more work
than it can do later. Loads over time show this at once. Moving a unit and updating the loads takes about a microsecond;
simulating a million operations takes a second.
"""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from placekit_partitioning.exchange import Exchange
from placekit_scheduling.compile_example import warm_up_problem
from placekit_scheduling.jit import njit
from placekit_scheduling.list_scheduling.levels import op_cost, t_level, transfer_cost

from placekit_core import Problem
from placekit_search.coarsening import allowed_for_units, coarsen
from placekit_search.random_numbers import below, uniform
from placekit_search.streaming import live_bytes

MOST_UNITS = 100_000  # finer levels are not refined, unless there is no coarser one: their moves gain little
PER_SLOT, SLOTS = 500, (32, 4096)  # operations in a slot of time, about; least and most slots
PRICES = (0.3, 0.1, 0.03)  # of a second of delay, in seconds of the step, by spread: most delays do not add up
LEAST_BUSY = 0.01  # least weight of a transfer that delays nothing, as a share of its seconds
FIRST, LATER = 500, 20  # moves per unit of the coarsest level, and of the others; ...
LEAST_MOVES, MOST_MOVES = 20_000, 5_000_000  # ... moves of the coarsest level; if it has many units, `LATER` for each
HOT, WARM, COLD = (
    1.0,
    0.02,
    0.001,
)  # first temperature of the coarsest level, of others; last; in seconds of a mean unit
ROOM = 0.9  # factor of the memory to fill after a spread that did not fit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Timeline(NamedTuple):
    """When operations run if the devices share all work that is ready, without transfers.

    Attributes:
        begin, end: [n] seconds.
        seconds: [n] seconds of each operation on its fastest device; 0 for sources.
    """

    begin: Floats
    end: Floats
    seconds: Floats

    @classmethod
    def of(cls, problem: Problem) -> Timeline:
        """The longest paths, stretched wherever more operations run at once than there are devices."""
        own = np.where(problem.graph.kernel, op_cost(problem, "min"), 0.0)
        begin = t_level(problem, "min", communication=0.0)
        n, at = problem.graph.n, np.concatenate([begin, begin + own])
        order = np.argsort(at, kind="stable")
        running = np.cumsum(np.where(order < n, 1.0, -1.0))[:-1]
        stretched = np.diff(at[order]) * np.maximum(1.0, running / problem.cluster.size)
        shared = np.empty(2 * n)
        shared[order] = np.concatenate([[0.0], np.cumsum(stretched)])
        return cls(shared[:n], shared[n:], own)


class Units(NamedTuple):
    """The units of a level; u units, D devices.

    Attributes:
        of_group: [g] unit of each group.
        allowed: [u, D] whether the device may run the whole unit.
        work: [u, D] seconds.
        bytes_: [u] memory.
        ptr, near, delay: neighbours in compressed rows, and the seconds that it costs if unit and neighbour are apart.
        slot_ptr, slot, share: slots of time in which a unit has work, in compressed rows, and the share of its work in each.
    """

    of_group: Ints
    allowed: NDArray[np.bool_]
    work: Floats
    bytes_: Floats
    ptr: Ints
    near: Ints
    delay: Floats
    slot_ptr: Ints
    slot: Ints
    share: Floats


class Multilevel:
    """The levels of a problem, and placements from moves of their units.

    Attributes:
        levels: [g] the unit of each group, the finest level first; see `coarsen`.
        units: the levels whose units move, the coarsest first.
        slot_s: seconds of each slot of time.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.timeline = problem, Timeline.of(problem)
        self.edges, self.tick_s = _delays(problem, self.timeline)
        graph, group, line = problem.graph, problem.grouping.group_of.astype(np.int64), self.timeline
        some = np.flatnonzero(graph.kernel)
        first, last = np.full(problem.g, math.inf), np.full(problem.g, -math.inf)
        np.minimum.at(first, group[some], line.begin[some])
        np.maximum.at(last, group[some], line.end[some])
        self.levels = coarsen(problem, self.edges, (first, last))
        self.slots = int(np.clip(graph.n // PER_SLOT, *SLOTS))
        self.slot_s = float(line.end.max(initial=0.0)) / self.slots or 1.0
        slot = ((line.begin + line.end)[some] / 2 / self.slot_s).astype(np.int64)
        key, row = np.unique(group[some] * self.slots + np.minimum(slot, self.slots - 1), return_inverse=True)
        self.entries = key // self.slots, key % self.slots, np.bincount(row, line.seconds[some], len(key))
        written = np.bincount(group[graph.tensor_producer], graph.owned_bytes, problem.g)
        live = live_bytes(graph) / max(float(graph.owned_bytes.sum()), 1.0)
        self.bytes_ = problem.group_persistent_bytes + live * written
        moved = [of for of in self.levels[::-1] if of.max() < MOST_UNITS]
        if not moved:  # few groups have a neighbour that they can join, as in a star
            moved = self.levels[-1:] or [np.arange(problem.g)]
        self.units = [self._level(of) for of in moved]

    def _level(self, of: Ints) -> Units:
        """The units of one level."""
        problem, (group, slot, seconds) = self.problem, self.entries
        allowed = allowed_for_units(problem, of)
        count = len(allowed)
        key, row = np.unique(of[group] * self.slots + slot, return_inverse=True)
        unit, work = key // self.slots, np.bincount(row, seconds, len(key))
        total = np.bincount(unit, work, count)
        own = [np.bincount(of, np.where(problem.allowed[:, d], s, 0.0), count) for d, s in enumerate(problem.group_s.T)]
        edges = self.edges.merged(of, count)
        return Units(
            of_group=of,
            allowed=allowed,
            work=np.stack(own, axis=1),
            bytes_=np.bincount(of, self.bytes_, count).astype(np.float64),
            ptr=edges.ptr,
            near=edges.neighbour,
            delay=edges.bytes_.astype(np.float64) * self.tick_s,
            slot_ptr=np.concatenate([[0], np.cumsum(np.bincount(unit, minlength=count))]),
            slot=key % self.slots,
            share=work / np.maximum(total[unit], 1e-300),
        )

    def spread(self, seed: np.uint64, price: float, room: Floats) -> NDArray[np.int16]:
        """[g] the device of each group. The units of the coarsest level are placed first, then smaller ones move, level by level.

        Annealing lowers an estimate of the step's seconds: each slot of time lasts as long as its busiest device works, at least
        `slot_s`, and each second of delay between devices costs `price`. No move fills a device beyond `room` [D] bytes.
        """
        state, before = np.array([seed], np.uint64), np.empty(0, np.int64)
        for units in self.units:
            count = len(units.allowed)
            if len(before):
                device = np.empty(count, np.int64)
                device[units.of_group] = before
            else:
                device = _roomiest(units, room)
            first, last = units.slot_ptr[:-1], units.slot_ptr[1:]
            row = np.repeat(np.arange(count), last - first)
            load = np.zeros((self.slots, len(room)))
            np.add.at(load, (units.slot, device[row]), units.share * units.work[row, device[row]])
            used = np.bincount(device, units.bytes_, len(room))
            mean_s = float(units.work.max(axis=1).mean())
            moves, hot = LATER * count, WARM
            if not len(before):
                moves, hot = max(moves, LEAST_MOVES, min(FIRST * count, MOST_MOVES)), HOT
            heat = np.array([hot * mean_s, COLD * mean_s])
            _anneal(state, device, units, load, used, room, self.slot_s, price, heat, moves)
            before = device[units.of_group]
        return before.astype(np.int16)


def _delays(problem: Problem, line: Timeline) -> tuple[Exchange, float]:
    """The cost of putting two groups on different devices, in ticks (as `bytes_`), and the seconds of a tick.

    A transfer costs the seconds by which it is late for its reader; what a source sends is never late. Because it occupies
    channels, it also costs a share of its own seconds: the share of the step for which the transfers of all tensors would
    occupy all channels.
    """
    graph, group, routes = problem.graph, problem.grouping.group_of.astype(np.int64), problem.cluster.routes
    sent = transfer_cost(problem)
    tensor, reader = graph.input_tensor, graph.edge_op
    producer = graph.tensor_producer[tensor]
    hops = len(routes.channel) / max(problem.cluster.size * (problem.cluster.size - 1), 1)
    lanes = float(routes.capacity[np.unique(routes.channel)].sum())
    busy = float(sent.sum()) * hops / max(lanes * float(line.end.max(initial=0.0)), 1e-300)
    late = np.maximum(0.0, sent[tensor] - (line.begin[reader] - line.end[producer]))
    cost = np.where(graph.kernel[producer], late, 0.0) + float(np.clip(busy, LEAST_BUSY, 1.0)) * sent[tensor]
    one, other = np.minimum(group[producer], group[reader]), np.maximum(group[producer], group[reader])
    apart = one != other
    pair, row = np.unique(one[apart] * problem.g + other[apart], return_inverse=True)
    seconds = np.bincount(row, cost[apart], len(pair))
    tick_s = max(float(seconds.sum()), 1e-300) / 2**50  # so that sums of them are exact
    ticks = np.maximum(1, np.rint(seconds / tick_s)).astype(np.int64)
    return Exchange.from_edges(problem.g, pair // problem.g, pair % problem.g, ticks), tick_s


def _roomiest(units: Units, room: Floats) -> Ints:
    """[u] devices: the largest units first, each on the allowed device with most room; units without bytes by least work."""
    left, busy = room.copy(), np.zeros(len(room))
    device = np.empty(len(units.allowed), np.int64)
    for u in np.lexsort((-units.work.max(axis=1), -units.bytes_)).tolist():
        free = np.where(left >= units.bytes_[u], 1.0 if units.bytes_[u] == 0 else left, left - room.max() - 1.0)
        d = np.lexsort((busy, -free, ~units.allowed[u]))[0]
        device[u], left[d], busy[d] = d, left[d] - units.bytes_[u], busy[d] + units.work[u, d]
    return device


@njit(cache=True, nogil=True)
def _anneal(
    state: Any, device: Any, units: Any, load: Any, used: Any, room: Any, slot_s: float, price: float, heat: Any, moves: int
) -> None:  # fmt: skip
    """Propose `moves` moves of units, see `Multilevel.spread`. Updates `device` [u], `load` [slots, D] and `used` [D].

    Half of the units move to the device of a neighbour. `heat` holds the first and the last temperature, in seconds.
    """
    size, temperature = load.shape[1], heat[0]
    factor = (heat[1] / heat[0]) ** (1.0 / moves) if heat[0] > 0 else 1.0
    for _ in range(moves):
        temperature *= factor
        u = below(state, len(device))
        old, degree = device[u], units.ptr[u + 1] - units.ptr[u]
        new = below(state, size)
        if degree > 0 and uniform(state) < 0.5:
            new = device[units.near[units.ptr[u] + below(state, degree)]]
        if new == old or not units.allowed[u, new]:
            continue
        if used[new] + units.bytes_[u] > room[new] and units.bytes_[u] > 0:
            continue
        more = 0.0
        for k in range(units.slot_ptr[u], units.slot_ptr[u + 1]):
            before = after = slot_s
            for d in range(size):
                here = load[units.slot[k], d]
                before = max(before, here)
                if d == old:
                    here -= units.share[k] * units.work[u, old]
                elif d == new:
                    here += units.share[k] * units.work[u, new]
                after = max(after, here)
            more += after - before
        for k in range(units.ptr[u], units.ptr[u + 1]):
            there = device[units.near[k]]
            if there == old:
                more += price * units.delay[k]
            elif there == new:
                more -= price * units.delay[k]
        if more <= 0 or (temperature > 0 and uniform(state) < math.exp(-more / temperature)):
            device[u] = new
            used[old] -= units.bytes_[u]
            used[new] += units.bytes_[u]
            for k in range(units.slot_ptr[u], units.slot_ptr[u + 1]):
                load[units.slot[k], old] -= units.share[k] * units.work[u, old]
                load[units.slot[k], new] += units.share[k] * units.work[u, new]


@cache
def warm_up_levels() -> None:
    """Compile the loops of this module, or load them from the disk."""
    problem = warm_up_problem()
    Multilevel(problem).spread(np.uint64(0), 1.0, problem.cluster.memory_bytes.astype(np.float64))
