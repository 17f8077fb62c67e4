"""A search over the devices of roles, for benchmarks/bounds.py: what placements of networks of repeated cells can reach.

A recurrent network repeats its cells step by step, and its operations are called `cells.0@12/addmm:backward`. A *role* is all
that a cell does in one phase in all steps: forward; backward; the gradients of its weights, which are as large as the
weights; updates. With every role on one device, a few dozen numbers decide where thousands of operations run. Their order is
that of their b-levels.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling import b_level, group_priority

from placekit_core import Placements, Problem, installed

LARGE = 1_000_000  # bytes of a parameter whose gradients are a role of their own
HOT, COLD = 0.02, 0.0005  # first and last temperature, as a share of the value


def roles_of(problem: Problem) -> NDArray[np.int64] | None:
    """[g] number of the role of each group; groups with several roles unite them. None if no operation names a step."""
    graph = problem.graph
    if not any("@" in name for name in graph.op_name):
        return None
    sources = ~graph.kernel[graph.tensor_producer]
    sizes = set(graph.tensor_bytes[sources & (graph.tensor_bytes > LARGE)].tolist())
    largest = np.zeros(graph.n, np.int64)
    np.maximum.at(largest, graph.tensor_producer, graph.tensor_bytes)
    parent = list(range(problem.g))

    def root(group: int) -> int:
        while parent[group] != group:
            group = parent[group]
        return group

    first: dict[tuple[str, str], int] = {}
    for i, name in enumerate(graph.op_name):
        cell = re.sub(r"\.(weight|bias)$", "", re.sub(r"@\d+", "", name.split("/")[0]))
        phase = "update" if ":update" in name else "backward" if ":backward" in name else "forward"
        if phase == "backward" and int(largest[i]) in sizes:
            phase = "gradient"
        group = int(problem.grouping.group_of[i])
        parent[root(group)] = root(first.setdefault((cell, phase), group))
    _, role = np.unique([root(group) for group in range(problem.g)], return_inverse=True)
    return role.astype(np.int64)


def search_roles(problem: Problem, evaluations: int, seed: int = 0) -> float | None:
    """Simulated annealing (Kirkpatrick et al. 1983) over the roles' devices: the best makespan, seconds; None without roles.

    A step moves one or two roles, or lets two change places; roles of more work are chosen more often.
    """
    role = roles_of(problem)
    if role is None:
        return None
    entry, rng, devices = installed().get("backend", "simulator"), np.random.default_rng(seed), problem.cluster.size
    session = entry.build(entry.component.config(threads=1)).open(problem)
    priority = group_priority(problem, b_level(problem)).astype(np.float32)[None]
    count = int(role.max()) + 1
    work = np.bincount(role, problem.group_s.min(axis=1), count)
    likely = work / work.sum() + 0.3 / count
    likely /= likely.sum()

    def value(device: NDArray[np.int16]) -> float:
        measured = session.evaluate(Placements.of(device[role][None], priority))
        return float(measured.value_s[0]) if measured.fits[0] else np.inf

    now = rng.integers(devices, size=count).astype(np.int16)
    now_s = best_s = value(now)
    for i in range(evaluations - 1):
        device = now.copy()
        if rng.random() < 0.8:
            device[rng.choice(count, int(rng.integers(1, 3)), p=likely)] = rng.integers(devices)
        else:
            a, b = rng.choice(count, 2, replace=False, p=likely)
            device[[a, b]] = device[[b, a]]
        device_s = value(device)
        heat = HOT * (COLD / HOT) ** (i / evaluations)
        if device_s <= now_s or (now_s < np.inf and rng.random() < np.exp((now_s - device_s) / (heat * now_s))):
            now, now_s = device, device_s
            best_s = min(best_s, now_s)
    session.close()
    return best_s
