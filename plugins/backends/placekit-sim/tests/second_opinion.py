"""Random executions on a simulating backend, each compared with the second opinion (`machine_model`) to the last bit.

`placekit doctor --thorough` and the tests of placekit-sim draw trials, and ask `differences` of each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from machine_model import Execution, Rules, execute
from numpy.random import Generator
from placekit_testing.strategies import TICK_S, pick, random_placements, random_problem

from placekit_core import Backend, Cluster, Measurements, Placements, Problem, Schedule

ORDERS = ("priority", "fifo", "breadth_first", "depth_first", "random", "arrival")
ROUNDING = 1e-9  # relative: a bound is a sum in another order
MOST_PLACEMENTS = 300
"""A problem with no more placements than these has all of them executed."""

Open = Callable[[str, dict[str, Any]], Backend]
"""Builds a backend by its name, `simulator` or `bulk_synchronous`, with these options."""


@dataclass(frozen=True)
class Trial:
    """A problem, placements of it, and rules of execution."""

    problem: Problem
    placements: Placements
    rules: Rules

    @property
    def backend(self) -> str:
        """The name of the backend that implements the rules."""
        return "bulk_synchronous" if self.rules.bulk else "simulator"

    @property
    def options(self) -> dict[str, Any]:
        """The options of this backend."""
        rules = self.rules
        streamed = {} if rules.bulk else {"prefetch": rules.prefetch}
        return {"ready_order": rules.ready_order, "seed": rules.seed, "noise": rules.noise, "threads": 1, **streamed}

    def __str__(self) -> str:
        options = ", ".join(f"{key}={value}" for key, value in self.options.items() if value is not None)
        graph, cluster = self.problem.graph, self.problem.cluster
        how = f"{cluster.name}{', multicast' if cluster.multicast else ''}, {len(cluster.hosts)} hosts, {cluster.launching}"
        machine = f"{cluster.size} devices ({how})"
        return f"{self.backend} with {options}: {graph.n} operations on {machine}"


def draw(rng: Generator, n: int = 24, max_devices: int = 5) -> Trial:
    """A trial of up to `n` operations: all machines, orders, and kinds of execution of the machine model."""
    problem = with_hosts(rng, random_problem(rng, int(rng.integers(1, n + 1)), max_devices))
    problem = slowed(problem, pick(rng, [1.0, 1.024, 1 / 3]))  # ticks of 1/1024 s, of 1 ms, and none
    bulk = bool(rng.random() < 0.25)
    streams = not bulk and not problem.cluster.multicast and rng.random() < 0.4
    rules = Rules(
        ready_order=pick(rng, ORDERS),
        bulk=bulk,
        prefetch=int(rng.integers(0, 5)) if streams else None,
        seed=int(rng.integers(0, 2**31)),
        noise=pick(rng, [0.0, 0.0, 0.3]),
    )
    return Trial(problem, random_placements(rng, problem, 2, bool(rng.random() < 0.7)), rules)


def with_hosts(rng: Generator, problem: Problem) -> Problem:
    """The problem on a machine with no host, one, or two, which launch in any way; some operations are several launches."""
    graph, cluster = problem.graph, problem.cluster
    count = int(rng.integers(0, min(2, cluster.size) + 1))
    first = int(rng.integers(1, cluster.size)) if cluster.size > 1 else 1
    names = list(cluster.device_names)
    parts = [names] if count == 1 else [names[:first], names[first:]] if rng.random() < 0.8 else [names[:first]]
    once = 0 if cluster.multicast else 1  # one transfer for all destinations takes as long to each
    hosts = [
        {
            "devices": part, "launch_s": pick(rng, [0, 0.5, 1, 3]) * TICK_S,
            "handover_s": pick(rng, [0, 0, 1]) * once * TICK_S, "graph_handover_s": pick(rng, [0, 2]) * once * TICK_S,
        }
        for part in parts if count and part
    ]  # fmt: skip
    launching = pick(rng, ["eager", "eager", "per_device", "graph"])
    data = {**cluster.model_dump(), "hosts": hosts, "launching": launching}
    launches = rng.choice([0.25, 1.0, 1.0, 2.0], graph.n)
    if rng.random() < 0.3:
        graph = replace(graph, columns={**graph.columns, "launches": launches})
    return Problem(graph, problem.grouping, Cluster.parse(data), problem.costs)


def slowed(problem: Problem, factor: float) -> Problem:
    """The problem with all durations multiplied by a factor."""
    data, costs = problem.cluster.model_dump(), problem.costs
    for way in [*data["links"], *(link["reverse"] for link in data["links"] if link["reverse"])]:
        way |= {"bytes_per_s": way["bytes_per_s"] / factor, "latency_s": way["latency_s"] * factor}
    for host in data["hosts"]:
        host |= {key: host[key] * factor for key in ("launch_s", "handover_s", "graph_handover_s")}
    return replace(problem, cluster=Cluster.parse(data), costs=replace(costs, op_s=costs.op_s * factor))


def tiny(rng: Generator) -> Trial:
    """A trial with every placement of a problem that has few of them."""
    while True:
        drawn = draw(rng, 8, 3)
        choices = [np.flatnonzero(row).tolist() for row in drawn.problem.allowed]
        if np.prod([len(c) for c in choices], dtype=np.float64) <= MOST_PLACEMENTS:
            every = Placements.of(np.asarray(list(product(*choices)), np.int16).reshape(-1, drawn.problem.g))
            return Trial(drawn.problem, every, drawn.rules)


def differences(trial: Trial, build: Open) -> list[str]:
    """What a backend says differently from the second opinion: values, peak bytes, events; and values below its bound."""
    found: list[str] = []
    with contextlib.closing(build(trial.backend, trial.options).open(trial.problem)) as session:
        measured, bound_s = session.evaluate(trial.placements), session.lower_bound()
        for i in range(len(trial.placements)):
            placement = trial.problem.placement(*trial.placements.one(i))
            priority = None if placement.priority is None else placement.priority.tolist()
            expected = execute(trial.problem, placement.device.tolist(), priority, trial.rules)
            found += _evaluated(expected, measured, i)
            if len(trial.placements) <= 2:
                found += _events(expected, session.schedule(placement), trial.problem)
            if bound_s is not None and measured.fits[i] and bound_s > expected.value_s * (1 + ROUNDING):
                found.append(f"the bound is {bound_s!r} s, and placement {i} takes {expected.value_s!r} s")
    return found


def _evaluated(expected: Execution, measured: Measurements, i: int) -> Iterator[str]:
    if measured.value_s[i] != expected.value_s:
        yield f"placement {i} takes {float(measured.value_s[i])!r} s, and {expected.value_s!r} s by the page"
    if measured.peak_bytes[i].tolist() != expected.peak_bytes:
        yield f"placement {i} needs {measured.peak_bytes[i].tolist()} bytes, and {expected.peak_bytes} by the page"


def _events(expected: Execution, schedule: Schedule, problem: Problem) -> Iterator[str]:
    if schedule.value_s != expected.value_s:
        yield f"the schedule takes {schedule.value_s!r} s, and {expected.value_s!r} s by the page"
    for v in np.flatnonzero(problem.graph.kernel).tolist():
        event = (int(schedule.op_device[v]), float(schedule.op_start_s[v]), float(schedule.op_end_s[v]))
        if event != expected.operations[v]:
            name = str(problem.graph.op_name[v])
            yield f"operation {name} runs at {event} (device, start, end), and {expected.operations[v]} by the page"
    columns = (schedule.transfer_tensor, schedule.transfer_dst, schedule.transfer_start_s, schedule.transfer_end_s)
    transfers = sorted(zip(*(c.tolist() for c in columns), strict=True))
    if transfers != expected.transfers:
        yield f"transfers are {transfers} (tensor, to, start, end), and {expected.transfers} by the page"
