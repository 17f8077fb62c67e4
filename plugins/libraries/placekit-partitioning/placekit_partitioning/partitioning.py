"""Base class of policies that partition the graph: groups are vertices, and devices are targets with speeds.

A partitioner cuts the graph of groups into one part per device, so that every part is as large as its device is fast and
little is exchanged between parts. It ignores the order in time, memory, and which device may run which group.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_scheduling import b_level, group_priority

from placekit_core import NotApplicable, Placement, Policy, Problem, Task
from placekit_partitioning.exchange import Exchange, Transfers
from placekit_partitioning.repair import repair

TOTAL = 100_000_000
"""Sum of integer weights: partitioners compute in integers, and go wrong silently from about 1e10 on."""


@dataclass(frozen=True, eq=False)
class Parts:
    """The input of a partitioner: k vertices (groups) and p targets (devices).

    Attributes:
        problem: the problem with these groups and devices.
        groups: [k] the groups that at least one target may run, ascending.
        targets: [p] devices to place them on, ascending.
        load: [k] integers of about `TOTAL` in all: seconds on the fastest target; for a group that may not run there, its
            seconds on the targets that may run it, converted by the targets' speeds.
        speed: [p] work that each target does in the time in which the fastest does 1, on this graph; see `speeds`.
        exchange: the graph of the k vertices.
    """

    problem: Problem
    groups: NDArray[np.int64]
    targets: NDArray[np.int64]
    load: NDArray[np.int64]
    speed: NDArray[np.float64]
    exchange: Exchange

    @classmethod
    def of(cls, problem: Problem, targets: NDArray[np.int64]) -> Parts:
        """The groups that may run on one of `targets` at least."""
        groups = np.flatnonzero(problem.allowed[:, targets].any(axis=1))
        seconds, allowed = problem.group_s[np.ix_(groups, targets)], problem.allowed[np.ix_(groups, targets)]
        streams = np.minimum(problem.cluster.streams[targets], max(len(groups), 1))
        speed = speeds(seconds, allowed, streams)
        work = np.where(allowed, seconds * speed / streams, 0.0).sum(axis=1) / np.maximum(allowed.sum(axis=1), 1)
        fastest = int(speed.argmax())
        work = np.where(allowed[:, fastest], seconds[:, fastest] / streams[fastest], work)
        return cls(problem, groups, targets, integers(work), speed, Exchange.of(problem).among(groups))

    @property
    def fixed(self) -> NDArray[np.int64]:
        """[k] index of the only target that may run the vertex; -1 where there are several."""
        allowed = self.problem.allowed[np.ix_(self.groups, self.targets)]
        return np.where(allowed.sum(axis=1) == 1, allowed.argmax(axis=1), -1)


def speeds(
    seconds: NDArray[np.float64], allowed: NDArray[np.bool_], streams: NDArray[np.integer]
) -> NDArray[np.float64]:
    """[p] relative speeds of targets; the fastest has 1.

    Two targets are compared by the groups that both may run and that take time on both: by their total seconds, divided by
    streams. Targets are added one by one, starting with the first: always the one that shares most such groups with a target
    added before, and it is compared with that one. A target that shares none is assumed to be as fast per stream as the first.

    Args:
        seconds: [k, p] of each group on each target.
        allowed: [k, p] whether the target may run the group.
        streams: [p] groups that each target runs at the same time.
    """
    timed = allowed & (seconds > 0)
    shared = timed.T.astype(np.float64) @ timed.astype(np.float64)  # numbers of groups: exact
    p = len(streams)
    speed, most, with_ = np.zeros(p), np.zeros(p), np.zeros(p, np.int64)
    for _ in range(p):
        d = int(np.where(speed > 0, -1.0, most).argmax())
        if most[d] > 0:
            r = int(with_[d])
            both, pair = np.flatnonzero(timed[:, d] & timed[:, r]), np.array([d, r])
            rate = streams[pair] / seconds[np.ix_(both, pair)].sum(axis=0)
            speed[d] = speed[r] * (rate[0] / rate[1])
        else:
            speed[d] = streams[d] / streams[0]
        nearer = shared[d] > most
        most[nearer], with_[nearer] = shared[d][nearer], d
    return np.asarray(speed / speed.max())


def integers(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Non-negative values as integers that sum to about `TOTAL`; all 1 if all are 0."""
    total = float(values.sum())
    return np.rint(values * (TOTAL / total)).astype(np.int64) if total > 0 else np.ones(len(values), np.int64)


def to_allowed(problem: Problem, device: NDArray[np.int16]) -> NDArray[np.int16]:
    """[g] `device`, but groups that may not run there, or have no device (-1), are moved to the best one that may run them.

    The longest group comes first. Its best device is the one with the least seconds of work, its own included, and of transfers
    to its neighbours.
    """
    device, rows = device.copy(), np.arange(problem.g)
    right = (device >= 0) & problem.allowed[rows, device]
    transfers, streams = Transfers.of(problem), problem.cluster.streams
    busy = np.bincount(device[right], problem.group_s[rows, device][right], problem.cluster.size)
    least = np.where(problem.allowed, problem.group_s, np.inf).min(axis=1)
    device[~right] = -1
    wrong = np.flatnonzero(~right)
    for i in wrong[np.argsort(-least[wrong], kind="stable")].tolist():
        cost = (busy + problem.group_s[i]) / streams + transfers.seconds_of(device, i)
        device[i] = np.where(problem.allowed[i], cost, np.inf).argmin()
        busy[device[i]] += problem.group_s[i, device[i]]
    return device


class Partitioning(Policy):
    """A policy that partitions. Subclasses implement `parts`, which assigns groups to targets."""

    @abstractmethod
    def parts(self, parts: Parts, rng: Generator) -> NDArray[np.int64]:
        """[k] index of a target for every vertex; there are at least two targets and one vertex."""

    def targets(self, problem: Problem) -> NDArray[np.int64]:
        """[p] the devices to partition over. Raises NotApplicable if there are none."""
        return np.arange(problem.cluster.size)

    def place(self, task: Task, rng: Generator) -> Placement:
        """The placement, with b-levels as priorities. With `repair` it is evaluated, and again after every repair."""
        problem = task.problem
        parts = Parts.of(problem, self.targets(problem))
        device = np.full(problem.g, -1, np.int16)
        if len(parts.groups):
            found = np.zeros(len(parts.groups), np.int64) if len(parts.targets) == 1 else self.parts(parts, rng)
            device[parts.groups] = parts.targets[found]
        wrong = int((~problem.allowed[np.arange(problem.g), device] & (device >= 0)).sum())
        if wrong:
            task.evaluate.note(
                f"{self.name} put {wrong} of {problem.g} groups on devices that may not run them; they were moved"
            )
        device = to_allowed(problem, device)
        priority = group_priority(problem, b_level(problem))
        if self.options.repair:
            device = repair(task, device, priority)
        return problem.placement(device, priority)


def gpus(problem: Problem, policy: str, hint: str) -> NDArray[np.int64]:
    """The GPUs of the machine. Raises NotApplicable, with `hint`, if it has none."""
    found = [d for d in range(problem.cluster.size) if problem.device_type(d) == "gpu"]
    if not found:
        raise NotApplicable(f"policy {policy!r} needs GPUs, and {problem.cluster.name!r} has none", hint)
    return np.asarray(found)
