"""The constraint program of policy `exact`: `placekit_scheduling.loads.Loads` for CP-SAT of OR-tools, in ticks.

Variables: a literal per group and allowed device; a literal per transfer that charges some resource, true if it takes place;
the largest load. If devices stand in an order, a literal per group and position ("here or before"), and unless all devices
are identical, a literal per device and position.

The optimum, and any bound on it, is a lower bound on every value: each placement that fits is a solution, and all seconds and
bytes are rounded down. Of placements that differ only in the names of identical devices, one is kept. Nothing else is
constrained.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model
from placekit_scheduling import device_classes
from placekit_scheduling.loads import Charge, Loads

from placekit_core import Problem

Bool = Any  # a Boolean variable, or the negation of one
Key = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # nets, devices of producers and of readers


class LoadModel:
    """The program for `problem`, with ticks of `tick_s` seconds and largest loads of `least` to `most` ticks.

    `floor_s` is a bound that is known from the beginning: channels that cannot be busier are left out. `without` [r, g]
    excludes placements.
    """

    def __init__(
        self,
        problem: Problem,
        loads: Loads,
        tick_s: float,
        least: int,
        most: int,
        floor_s: float,
        without: NDArray[np.int16],
    ) -> None:
        self.problem, self.loads, self.tick_s = problem, loads, tick_s
        self.cp = cp = cp_model.CpModel()
        self.on: list[dict[int, Bool]] = []  # of each group, by device
        for row in problem.allowed:
            self.on.append({d: cp.new_bool_var("") for d in np.flatnonzero(row).tolist()})
            cp.add_exactly_one(self.on[-1].values())
        self.highest = cp.new_int_var(least, most, "")
        self.takes_place: dict[Key, Bool | None] = {}
        self.place: list[list[Bool]] = []  # of each group: whether it is at this position or before
        self.at: list[dict[int, Bool]] = self.on  # of each group, by position
        self.device_at: dict[tuple[int, int], Bool] = {}  # by device and position; empty if devices stand in order
        self._load(floor_s)
        self._memory()
        if loads.ahead:
            self._order()
        else:
            self._name_identical()
        for device in without:
            self._exclude(device)
        cp.minimize(self.highest)

    def _ticks(self, seconds: float) -> int:
        return math.floor(seconds / self.tick_s)

    def _load(self, floor_s: float) -> None:
        """The load of each resource is at most the largest load."""
        terms: dict[int, list[Any]] = defaultdict(list)
        for g, on in enumerate(self.on):
            for d, here in on.items():
                terms[d].append(self._ticks(float(self.loads.seconds[g, d])) * here)
        charges: dict[int, list[Charge]] = defaultdict(list)
        for charge in self.loads.charges:
            charges[charge.resource].append(charge)
        for resource, own in charges.items():
            if resource >= self.problem.cluster.size and _at_most(own) <= floor_s:
                continue
            for charge in own:
                ticks = self._ticks(charge.seconds)
                there = self._takes_place((charge.nets, charge.senders, charge.receivers)) if ticks else None
                if there is not None:
                    terms[resource].append(ticks * there)
        for own_terms in terms.values():
            self.cp.add(sum(own_terms) <= self.highest)

    def _takes_place(self, key: Key) -> Bool | None:
        """A literal that is true if one of the nets goes from devices `source` to devices `target`; None if it cannot."""
        if key not in self.takes_place:
            nets, source, target = key
            clauses = []
            for x in nets:
                net = self.loads.nets[x]
                not_from = self._not_on(net.producer, source)
                for reader in net.readers:
                    not_to = self._not_on(reader, target)
                    if not_from is not None and not_to is not None:
                        clauses.append([*not_from, *not_to])
            there: Bool = self.cp.new_bool_var("") if clauses else None
            for clause in clauses:
                self.cp.add_bool_or([there, *clause])
            self.takes_place[key] = there
        return self.takes_place[key]

    def _not_on(self, group: int, devices: tuple[int, ...]) -> list[Bool] | None:
        """Literals, one of which is true if `group` is on none of `devices`; None if it can never be on them."""
        on = self.on[group]
        inside = [d for d in on if d in devices]
        if not inside:
            return None
        if len(inside) == 1:
            return [on[inside[0]].negated()]
        return [here for d, here in on.items() if d not in inside]

    def _memory(self) -> None:
        loads = self.loads
        for d, room in enumerate(self.problem.cluster.memory_bytes.tolist()):
            here = {g: on[d] for g, on in enumerate(self.on) if d in on}
            stores = [s for s in loads.stores if math.floor(s.bytes_) and any(h in here for h in s.holders)]
            work = max((math.floor(loads.work_bytes[g]) for g in here), default=0)
            own = {g: math.floor(loads.bytes_[g]) for g in here}
            if sum(own.values()) + sum(math.floor(s.bytes_) for s in stores) + work <= room:
                continue
            terms = [bytes_ * here[g] for g, bytes_ in own.items() if bytes_]
            for s in stores:
                held = self.cp.new_bool_var("")
                for h in s.holders:
                    if h in here:
                        self.cp.add_implication(here[h], held)
                terms.append(math.floor(s.bytes_) * held)
            if work:
                largest = self.cp.new_int_var(0, work, "")
                for g, there in here.items():
                    if loads.work_bytes[g] >= 1:
                        self.cp.add(largest >= math.floor(loads.work_bytes[g]) * there)
                terms.append(largest)
            self.cp.add(sum(terms) <= math.floor(room))

    def _name_identical(self) -> None:
        """Name identical devices by value precedence: the first group on a device comes after one on the device before it."""
        for devices in identical_devices(self.problem):
            for before, d in pairwise(devices):
                earlier: list[Bool] = []
                for g in self._longest():
                    if d in self.on[g]:
                        self.cp.add_bool_or([*earlier, self.on[g][d].negated()])
                        earlier.append(self.on[g][before])

    def _longest(self) -> list[int]:
        """Groups, the longest first."""
        longest = np.argsort(-self.loads.seconds.max(axis=1), kind="stable")
        return longest.tolist()  # type: ignore[no-any-return]

    @property
    def _all_identical(self) -> bool:
        return any(len(devices) == self.problem.cluster.size for devices in identical_devices(self.problem))

    def _order(self) -> None:
        """Put the devices in an order that the data flow follows.

        Stages that do not wait for each other have such an order. Identical devices are renamed so that they stand in it by
        their numbers; empty devices stand last.
        """
        cp, size = self.cp, self.problem.cluster.size
        if not self._all_identical:
            self._places()
        used = [[on[k] for on in self.at if k in on] for k in range(size)]
        for before, k in pairwise(range(size)):
            for here in used[k]:
                cp.add_bool_or([*used[before], here.negated()])
        for on in self.at:
            here_or_before = [cp.new_bool_var("") for _ in range(size)]
            self.place.append(here_or_before)
            for k, literal in enumerate(here_or_before):
                cp.add(literal == (here_or_before[k - 1] if k else 0) + on.get(k, 0))
        for u, v in self.loads.ahead:
            for k in range(size):
                cp.add_implication(self.place[v][k], self.place[u][k])

    def _places(self) -> None:
        """Allow any order of the devices, with a literal per group and position."""
        cp, size = self.cp, self.problem.cluster.size
        for d in range(size):
            for k in range(size):
                self.device_at[d, k] = cp.new_bool_var("")
            cp.add_exactly_one([self.device_at[d, k] for k in range(size)])
        for k in range(size):
            cp.add_exactly_one([self.device_at[d, k] for d in range(size)])
        for devices in identical_devices(self.problem):
            for a, b in pairwise(devices):
                for k in range(size):  # if b is at k, a is before
                    cp.add_bool_or([self.device_at[b, k].negated(), *(self.device_at[a, i] for i in range(k))])
        at = self.at = list[dict[int, Bool]]()
        for on in self.on:
            at.append({k: cp.new_bool_var("") for k in range(size)})
            cp.add_exactly_one(at[-1].values())
            for d, here in on.items():
                for k in range(size):
                    there = self.device_at[d, k].negated()
                    cp.add_bool_or([here.negated(), there, at[-1][k]])
                    cp.add_bool_or([at[-1][k].negated(), there, here])
            for d in range(size):
                if d not in on:
                    for k in range(size):
                        cp.add_bool_or([at[-1][k].negated(), self.device_at[d, k].negated()])

    def _exclude(self, device: NDArray[np.int16]) -> None:
        """Exclude this placement."""
        self.cp.add_bool_or([on[d].negated() for on, d in zip(self.on, device.tolist(), strict=True)])

    def hint(self, device: NDArray[np.int16], highest: int) -> None:
        """Start the search from a placement [g] that is named as by `named`."""
        cp, home = self.cp, device.tolist()
        for on, place in zip(self.on, home, strict=True):
            for d, here in on.items():
                cp.add_hint(here, d == place)
        for (nets, source, target), there in self.takes_place.items():
            if there is not None:
                cp.add_hint(there, any(self.loads.crosses(x, home, source, target) for x in nets))
        cp.add_hint(self.highest, highest)
        if self.loads.ahead:
            self._hint_order(device)

    def _hint_order(self, device: NDArray[np.int16]) -> None:
        """Hint the positions of the devices in a placement [g]; empty devices are last."""
        cp, size = self.cp, self.problem.cluster.size
        used = device[_along(device, self.loads.ahead)].tolist()
        place = {d: k for k, d in enumerate([*used, *(d for d in range(size) if d not in used)])}
        for (d, k), there in self.device_at.items():
            cp.add_hint(there, place[d] == k)
        for g, d in enumerate(device.tolist()):
            k_of_group = d if not self.device_at else place[d]
            for k, here_or_before in enumerate(self.place[g]):
                cp.add_hint(here_or_before, k_of_group <= k)
            for k, here in self.at[g].items() if self.device_at else ():
                cp.add_hint(here, k_of_group == k)

    def named(self, device: NDArray[np.int16]) -> NDArray[np.int16]:
        """A placement [g] with identical devices renamed as the model names them."""
        name = np.arange(self.problem.cluster.size)
        first = self._longest() if not self.loads.ahead else _along(device, self.loads.ahead)
        order = list(dict.fromkeys(device[first].tolist()))
        for devices in identical_devices(self.problem):
            used = [d for d in order if d in devices]
            name[[*used, *(d for d in devices if d not in used)]] = devices
        return name[device].astype(np.int16)

    def solution(self, values: cp_model.CpSolverSolutionCallback) -> NDArray[np.int16]:
        """[g] the devices in the solution that the solver passes to a callback."""
        found = [next(d for d, here in on.items() if values.boolean_value(here)) for on in self.on]
        return np.asarray(found, np.int16)


def _at_most(charges: list[Charge]) -> float:
    """An upper limit on all charges together: a net is sent from one device only."""
    by_source: dict[tuple[int, ...], dict[tuple[int, ...], float]] = defaultdict(lambda: defaultdict(float))
    several = 0.0
    for c in charges:
        if len(c.nets) == 1:
            by_source[c.nets][c.senders] += c.seconds
        else:
            several += c.seconds
    return several + sum(max(seconds.values()) for seconds in by_source.values())


def _along(device: NDArray[np.int16], ahead: tuple[tuple[int, int], ...]) -> list[int]:
    """A group of each used device, in an order of the devices that the data flow follows, if there is one."""
    group_of = {int(d): g for g, d in reversed(list(enumerate(device.tolist())))}
    before = {(int(device[u]), int(device[v])) for u, v in ahead if device[u] != device[v]}
    left, order = sorted(group_of), list[int]()
    while left:
        free = [d for d in left if not any(a in left and b == d for a, b in before)]
        order.append(free[0] if free else left[0])
        left.remove(order[-1])
    return [group_of[d] for d in order]


def identical_devices(problem: Problem) -> list[list[int]]:
    """The classes of two or more identical devices."""
    return [devices for devices in device_classes(problem) if len(devices) > 1]
