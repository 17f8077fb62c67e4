"""Doppler's EnumerativeOptimizer: places meta-operations one by one, each with the least transfers.

Yao et al. 2026, Doppler: Dual-Policy Learning for Device Assignment in Asynchronous Dataflow Graphs (ICLR 2026),
Appendix A, Algorithm 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import permutations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_scheduling import b_level, group_priority

from placekit_core import Checkpoint, Placement, Problem, ResumablePolicy, State, Task
from placekit_heuristics.best_of import best_of
from placekit_heuristics.enumerative_options import EnumerativeOptions
from placekit_heuristics.meta_operations import from_columns, recovered
from placekit_heuristics.simple import accelerators

FEW_DEVICES = 4  # with more devices, solve the linear assignment problem if this is exact
MAX_ENUMERATED = math.factorial(8)  # most assignments of one row to enumerate
PERMUTATIONS = 1000  # random assignments to compare if there are more
TIE = 1e-9  # relative difference of equal costs: sums in another order differ in the last bits

Devices = NDArray[np.int64]


class Enumerative(ResumablePolicy):
    """Places the shard operations and then the reduce operations of each meta-operation, evenly over the devices.

    The cost of an assignment is the sum of the seconds of all its transfers, each on an idle machine. Operations are assigned
    in rows of as many operations as there are devices, each to a different device.
    """

    name = "enumerative"
    options_class = EnumerativeOptions

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        """The best placement; with `samples=1` nothing is evaluated. Raises PlacekitError without meta-operations."""
        problem, graph = task.problem, task.problem.graph
        steps = from_columns(graph) if self.options.meta_operations == "columns" else recovered(graph)
        priority, costs = group_priority(problem, b_level(problem)), Costs(problem)

        def propose(i: int) -> Placement:
            work = Assignment(costs, rng if i else None)
            for ops in steps:
                work.step(ops, lambda row: _choose(row, rng))
            return problem.placement(work.devices(), priority)

        return best_of(task, self.options.samples, propose, rng, state, checkpoint)


def _choose(row: Row, rng: Generator) -> Devices:
    """[m] the device of each group of the row: the best of all assignments, or of random ones if there are too many."""
    slots, m = row.slots, len(row.direct)
    if row.separable and len(slots) > FEW_DEVICES:
        return row.linear()
    if math.perm(len(slots), m) <= MAX_ENUMERATED:
        return row.best(slots[_injections(len(slots), m)].T)
    drawn = rng.permuted(np.tile(slots, (PERMUTATIONS, 1)), axis=1)[:, :m]
    return row.best(np.concatenate([row.linear()[None], drawn]))


@dataclass(frozen=True)
class Share:
    """A tensor of a source without a device that two groups of a row read: the source goes with `first`, and `other` reads it."""

    first: int
    other: int
    home: Devices
    """[D] the source's device for each device of `first`: the same one, if the source may be there."""
    bytes_: float


@dataclass(frozen=True)
class Row:
    """m groups that go to different devices, and the costs of their assignments.

    Attributes:
        slots: at least m devices to choose from; the first assignment in this order wins ties.
        direct: [m, D] seconds of the transfers of each group on each device that do not depend on the other groups.
        shares: the transfers that depend on two groups.
        latency_s, s_per_byte: [D, D] of the routes.
    """

    slots: Devices
    direct: NDArray[np.float64]
    shares: list[Share]
    latency_s: NDArray[np.float64]
    s_per_byte: NDArray[np.float64]

    @property
    def separable(self) -> bool:
        """Whether the assignment of least direct cost also has the least cost.

        This holds if there are no shares, or if all routes between the slots are equal: then one reader has the source on its
        device, and each of the others pays the same on any device.
        """
        if not self.shares:
            return True
        off = ~np.eye(len(self.slots), dtype=np.bool_)
        between = [table[np.ix_(self.slots, self.slots)][off] for table in (self.latency_s, self.s_per_byte)]
        alike = all((values == values[0]).all() for values in between)
        return alike and all((share.home[self.slots] == self.slots).all() for share in self.shares)

    def cost(self, rows: Devices) -> NDArray[np.float64]:
        """[p] seconds of all transfers, for assignments [p, m]."""
        of = np.ascontiguousarray(rows.T)  # a group's devices in all assignments lie side by side
        total = np.zeros(len(rows))
        for direct, device in zip(self.direct, of, strict=True):
            total += direct[device]
        tables: dict[tuple[int, int], NDArray[np.float64]] = {}
        for share in self.shares:
            seconds = self.latency_s[share.home] + share.bytes_ * self.s_per_byte[share.home]
            pair = share.first, share.other
            tables[pair] = tables[pair] + seconds if pair in tables else seconds
        for (first, other), seconds in tables.items():
            total += seconds.ravel()[of[first] * len(seconds) + of[other]]
        return total

    def best(self, rows: Devices) -> Devices:
        """[m] the first of the assignments [p, m] that cost the least."""
        cost = self.cost(rows)
        return np.asarray(rows[np.flatnonzero(cost <= cost.min() * (1 + TIE))[0]])

    def linear(self) -> Devices:
        """[m] an assignment of least direct cost: the linear assignment problem."""
        from scipy.optimize import linear_sum_assignment

        return np.asarray(self.slots[linear_sum_assignment(self.direct[:, self.slots])[1]])


class Costs:
    """Data that all assignments of a problem share. They are Python lists, because their rows hold only a few numbers.

    Attributes:
        group: [t] group of each tensor's producer; `source`: [t] whether the producer is a source; `bytes_`: [t] size.
        pool: [g] pool of each group; `pools`: the devices of each pool, on which its groups may be.
        group_s: [g][D] seconds of each group.
    """

    def __init__(self, problem: Problem) -> None:
        graph = problem.graph
        self.problem, self.op_group = problem, problem.grouping.group_of.tolist()
        self.group: list[int] = problem.grouping.group_of[graph.tensor_producer].tolist()
        self.source: list[bool] = (~graph.kernel[graph.tensor_producer]).tolist()
        self.bytes_: list[float] = graph.tensor_bytes.astype(np.float64).tolist()
        pools, of = np.unique(accelerators(problem), axis=0, return_inverse=True)
        self.pool: list[int] = of.reshape(-1).tolist()
        self.pools: list[list[int]] = [np.flatnonzero(pool).tolist() for pool in pools]
        self.group_s: list[list[float]] = problem.group_s.tolist()
        self._reads: dict[bytes, dict[int, list[int]]] = {}
        self._sent: dict[tuple[int, float], list[float]] = {}
        self._homes: dict[int, Devices] = {}

    def reads(self, ops: NDArray[np.int64]) -> dict[int, list[int]]:
        """The groups of `ops`, in this order, with the tensors that they read, ascending."""
        key = ops.tobytes()
        if key not in self._reads:
            found: dict[int, set[int]] = {}
            for v in ops.tolist():
                found.setdefault(self.op_group[v], set()).update(self.problem.graph.inputs(v).tolist())
            self._reads[key] = {group: sorted(tensors) for group, tensors in found.items()}
        return self._reads[key]

    def sent(self, source: int, bytes_: float) -> list[float]:
        """[D] seconds of sending `bytes_` from a device along the routes; 0 to itself."""
        found = self._sent.get((source, bytes_))
        if found is None:
            routes = self.problem.cluster.routes
            found = self._sent[source, bytes_] = (
                routes.latency_s[source] + bytes_ * routes.s_per_byte[source]
            ).tolist()
        return found

    def home(self, group: int) -> Devices:
        """[D] device of a group of sources for each device of its first reader: the same one, or the nearest allowed one."""
        if group not in self._homes:
            allowed = self.problem.allowed[group]
            nearest = np.where(allowed[:, None], self.problem.cluster.routes.latency_s, np.inf).argmin(axis=0)
            self._homes[group] = np.where(allowed, np.arange(len(allowed)), nearest)
        return self._homes[group]


class Assignment:
    """The devices of the groups so far, and the devices that each tensor was sent to.

    Ties go to the devices with the fewest seconds of kernels so far; with `rng`, the order of the devices is random.
    """

    def __init__(self, costs: Costs, rng: Generator | None = None) -> None:
        self.rng, self.costs, self.problem = rng, costs, costs.problem
        self.device = [-1] * costs.problem.g
        self.sent: dict[int, set[int]] = {}
        self.busy_s = [0.0] * costs.problem.cluster.size  # of the kernels of the groups on each device

    def step(self, ops: NDArray[np.int64], choose: Callable[[Row], Devices]) -> None:
        """Assign the groups of `ops` that have no device evenly over the devices, and send all groups of `ops` their inputs."""
        costs, device = self.costs, self.device
        reads = costs.reads(ops)
        self._send([g for g in reads if device[g] >= 0], reads)
        for number in sorted({costs.pool[g] for g in reads}):
            pool = costs.pools[number]
            while left := [g for g in reads if costs.pool[g] == number and device[g] < 0]:
                count = [0] * len(self.busy_s)
                for g in reads:
                    if device[g] >= 0:
                        count[device[g]] += 1
                least = min(count[d] for d in pool)
                slots = [d for d in pool if count[d] == least]
                if self.rng is None:
                    slots.sort(key=self.busy_s.__getitem__)
                else:
                    slots = [slots[i] for i in self.rng.permutation(len(slots)).tolist()]
                row = left[: len(slots)]
                for g, d in zip(row, choose(self._row(row, reads, slots)).tolist(), strict=True):
                    device[g] = d
                    self.busy_s[d] += costs.group_s[g][d]
                self._send(row, reads)

    def devices(self) -> NDArray[np.int16]:
        """[g] the devices; groups of unread sources go to the device with most free memory."""
        device, problem = np.asarray(self.device), self.problem
        placed = device >= 0
        used = np.bincount(device[placed], problem.group_persistent_bytes[placed], len(self.busy_s))
        for g in np.flatnonzero(~placed):
            device[g] = np.where(problem.allowed[g], problem.cluster.memory_bytes - used, -np.inf).argmax()
            used[device[g]] += problem.group_persistent_bytes[g]
        return device.astype(np.int16)

    def _row(self, groups: list[int], reads: Mapping[int, list[int]], slots: list[int]) -> Row:
        """The costs of assigning `groups` to `slots`. A source without a device goes with its first reader among `groups`."""
        costs, direct, shares = self.costs, list[list[float]](), list[Share]()
        leader = {g: i for i, g in enumerate(groups)}  # the row's group that each owner of tensors goes with
        for i, group in enumerate(groups):
            total = [0.0] * len(self.busy_s)
            for t in reads[group]:
                owner, bytes_ = costs.group[t], costs.bytes_[t]
                at = self.device[owner]
                if at >= 0:
                    there = self.sent.get(t, ())
                    for d, seconds in enumerate(costs.sent(at, bytes_)):
                        if d not in there:
                            total[d] += seconds
                    continue
                first, home = leader.setdefault(owner, i), costs.home(owner)
                if first == i:
                    for d, at in enumerate(home.tolist()):
                        total[d] += costs.sent(at, bytes_)[d]
                else:
                    shares.append(Share(first, i, home, bytes_))
            direct.append(total)
        routes = self.problem.cluster.routes
        return Row(np.asarray(slots), np.asarray(direct), shares, routes.latency_s, routes.s_per_byte)

    def _send(self, groups: list[int], reads: Mapping[int, list[int]]) -> None:
        """Send `groups`, which have devices, their inputs; free sources go to their first reader."""
        costs = self.costs
        for group in groups:
            device = self.device[group]
            for t in reads[group]:
                owner = costs.group[t]
                if self.device[owner] < 0 and costs.source[t]:
                    self.device[owner] = int(costs.home(owner)[device])
                self.sent.setdefault(t, set()).add(device)


@cache
def _injections(slots: int, m: int) -> Devices:
    """[m, p] all ways to give each of m groups a different slot, in lexicographic order."""
    return np.ascontiguousarray(np.asarray(list(permutations(range(slots), m)), np.int64).T)
