"""Doppler's EnumerativeOptimizer: places meta-operations one by one, each where it costs the least transfers.

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

from placekit_core import Checkpoint, PlacekitError, Placement, Problem, ResumablePolicy, State, Task
from placekit_heuristics.best_of import best_of
from placekit_heuristics.enumerative_options import EnumerativeOptions
from placekit_heuristics.meta_operations import Step, from_columns, recovered
from placekit_heuristics.simple import accelerators

FEW_DEVICES = 4  # with more, `auto` solves the linear assignment where that is exact
MAX_ENUMERATED = math.factorial(8)  # assignments of one row
TIE = 1e-9  # relative: sums of the same transfers in another order differ in the last bits

Devices = NDArray[np.int64]


class Enumerative(ResumablePolicy):
    """Places the shard and then the reduce operations of each meta-operation, evenly over the devices, at the least cost.

    The cost of an assignment is the sum of the seconds of all transfers that it needs, each on an idle machine. Operations
    are assigned in rows of as many as there are devices, each operation of a row to a device of its own.
    """

    name = "enumerative"
    options_class = EnumerativeOptions

    def place(
        self, task: Task, rng: Generator, state: State | None = None, checkpoint: Checkpoint | None = None
    ) -> Placement:
        """The best placement; with `samples=1` nothing is evaluated. Raises PlacekitError without meta-operations."""
        problem, graph = task.problem, task.problem.graph
        steps = from_columns(graph) if self.options.meta_operations == "columns" else recovered(graph)
        priority = self._priority(problem, steps)

        def propose(i: int) -> Placement:
            work = Assignment(problem, rng if i else None)
            for ops in steps:
                work.step(ops, lambda row: self._choose(row, rng))
            return problem.placement(work.devices(), priority)

        return best_of(task, self.options.samples, propose, rng, state, checkpoint)

    def _priority(self, problem: Problem, steps: list[Step]) -> NDArray[np.float32] | None:
        if self.options.priority == "none":
            return None
        value = b_level(problem)
        if self.options.priority == "meta_op":
            for i, ops in enumerate(steps):
                value[ops] = len(steps) - i
        return group_priority(problem, value)

    def _choose(self, row: Row, rng: Generator) -> Devices:
        """[m] the device of each group of the row."""
        how, slots, m = self.options.assignment, row.slots, len(row.direct)
        count = math.perm(len(slots), m)
        if how == "auto":
            separable = row.separable and len(slots) > FEW_DEVICES
            how = "linear" if separable else "enumerate" if count <= MAX_ENUMERATED else "sample"
        if how == "linear":
            return row.linear()
        if how == "sample":
            drawn = rng.permuted(np.tile(slots, (self.options.permutations, 1)), axis=1)[:, :m]
            return row.best(np.concatenate([row.linear()[None], drawn]))
        if count > MAX_ENUMERATED:
            raise PlacekitError(
                f"policy.assignment=enumerate: {m} operations have {count} assignments to {len(slots)} devices",
                f"at most {MAX_ENUMERATED} are enumerated; policy.assignment=auto, linear or sample takes any number",
            )
        return row.best(slots[_injections(len(slots), m)].T)


@dataclass(frozen=True)
class Share:
    """A tensor of a source without a device: the source goes with group `first` of a row, and group `other` reads it too."""

    first: int
    other: int
    home: Devices
    """[D] the source's device for each device of `first`: the same one, where the source may run there."""
    bytes_: float


@dataclass(frozen=True)
class Row:
    """m groups that go to different devices, and the costs of their assignments.

    Attributes:
        slots: devices to choose from, at least m; among assignments of equal cost, the first in this order is taken.
        direct: [m, D] seconds of the transfers that each group needs on each device, whatever the others do.
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
        """Whether the assignment of least direct cost is also one of least cost.

        It is if there are no shares, or if all routes between the slots are alike: one reader then gets the source for
        nothing, and each of the others pays the same wherever it is.
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


class Assignment:
    """The devices of the groups so far, and the devices that each tensor was sent to.

    Among assignments of equal cost, the first groups go to the devices with the fewest seconds of kernels so far; with
    `rng`, the order of the devices is random.
    """

    def __init__(self, problem: Problem, rng: Generator | None = None) -> None:
        self.rng = rng
        self.problem, self.graph, self.group = problem, problem.graph, problem.grouping.group_of
        size, routes = problem.cluster.size, problem.cluster.routes
        self.latency_s, self.s_per_byte = routes.latency_s, routes.s_per_byte
        self.device = np.full(problem.g, -1)
        self.sent = np.zeros((self.graph.t, size), np.bool_)
        self.busy_s = np.zeros(size)  # of the kernels of the groups on each device
        self.pool = accelerators(problem)

    def step(self, ops: NDArray[np.int64], choose: Callable[[Row], Devices]) -> None:
        """Assign the groups of `ops` without a device, evenly over the devices, and send all groups of `ops` what they read."""
        reads: dict[int, set[int]] = {}
        for v in ops.tolist():
            reads.setdefault(int(self.group[v]), set()).update(self.graph.inputs(v).tolist())
        groups = np.asarray(list(reads))
        self._send(groups[self.device[groups] >= 0], reads)
        for pool in np.unique(self.pool[groups], axis=0):
            alike = groups[(self.pool[groups] == pool).all(axis=1)]
            while len(left := alike[self.device[alike] < 0]):
                placed = self.device[groups]
                count = np.bincount(placed[placed >= 0], minlength=len(pool))
                slots = np.flatnonzero(pool & (count == count[pool].min()))
                order = np.argsort(self.busy_s[slots], kind="stable")
                slots = slots[order if self.rng is None else self.rng.permutation(len(slots))]
                row = left[: len(slots)]
                chosen = choose(self._row(row, reads, slots))
                self.device[row] = chosen
                self.busy_s[chosen] += self.problem.group_s[row, chosen]
                self._send(row, reads)

    def devices(self) -> NDArray[np.int16]:
        """[g] the devices; groups of sources that nothing reads go where most memory is free."""
        device, problem = self.device.copy(), self.problem
        placed = device >= 0
        used = np.bincount(device[placed], problem.group_persistent_bytes[placed], len(self.busy_s))
        for g in np.flatnonzero(~placed):
            device[g] = np.where(problem.allowed[g], problem.cluster.memory_bytes - used, -np.inf).argmax()
            used[device[g]] += problem.group_persistent_bytes[g]
        return device.astype(np.int16)

    def _row(self, groups: Devices, reads: Mapping[int, set[int]], slots: Devices) -> Row:
        """The costs of assigning `groups` to `slots`. A source without a device goes with its first reader among `groups`."""
        direct, shares = np.zeros((len(groups), len(self.busy_s))), []
        leader = {g: i for i, g in enumerate(groups.tolist())}  # the row's group that each owner of tensors goes with
        everywhere = np.arange(len(self.busy_s))
        for i, group in enumerate(groups.tolist()):
            for t in sorted(reads[group]):
                owner, bytes_ = int(self.group[self.graph.tensor_producer[t]]), float(self.graph.tensor_bytes[t])
                if self.device[owner] >= 0:
                    direct[i] += np.where(self.sent[t], 0.0, self._seconds(self.device[owner], everywhere, bytes_))
                    continue
                first, home = leader.setdefault(owner, i), self._home(owner)
                if first == i:
                    direct[i] += self._seconds(home, everywhere, bytes_)
                else:
                    shares.append(Share(first, i, home, bytes_))
        return Row(slots, direct, shares, self.latency_s, self.s_per_byte)

    def _send(self, groups: Devices, reads: Mapping[int, set[int]]) -> None:
        """Let `groups`, which have devices, read: free sources go where they are read first, other tensors are sent."""
        for group in groups.tolist():
            device = self.device[group]
            for t in sorted(reads[group]):
                producer = self.graph.tensor_producer[t]
                owner = self.group[producer]
                if self.device[owner] < 0 and not self.graph.kernel[producer]:
                    self.device[owner] = self._home(owner)[device]
                self.sent[t, device] = True

    def _home(self, group: int) -> Devices:
        """[D] device of a group of sources for each device of its first reader: the same one, or the nearest allowed one."""
        allowed = self.problem.allowed[group]
        nearest = np.where(allowed[:, None], self.latency_s, np.inf).argmin(axis=0)
        return np.where(allowed, np.arange(len(allowed)), nearest)

    def _seconds(self, source: Devices, target: Devices, bytes_: float) -> NDArray[np.float64]:
        """Seconds of sending `bytes_` along the routes; 0 from a device to itself."""
        return np.asarray(self.latency_s[source, target] + bytes_ * self.s_per_byte[source, target])


@cache
def _injections(slots: int, m: int) -> Devices:
    """[m, p] all ways to give each of m groups a slot of its own, in lexicographic order."""
    return np.ascontiguousarray(np.asarray(list(permutations(range(slots), m)), np.int64).T)
