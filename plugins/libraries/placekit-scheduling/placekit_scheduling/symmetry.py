"""Identical devices."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from placekit_core import Problem


def device_classes(problem: Problem) -> list[list[int]]:
    """Classes of identical devices. Any renaming within a class changes no schedule.

    Two devices are identical if exchanging them changes no seconds, permissions, streams, memory or launches, and maps the
    routes onto each other: exchanged pairs of devices have equal seconds, and for every channel there is one of equal capacity
    on exactly the exchanged routes. Then any execution is still valid after the exchange. If this holds for a and b, and for b
    and c, it holds for a and c (exchange b and c, then a and b, then b and c). So the classes are well defined, and every
    renaming within a class is a sequence of such exchanges.
    """
    classes: list[list[int]] = []
    for d in range(problem.cluster.size):
        for devices in classes:
            if _exchangeable(problem, devices[0], d):
                devices.append(d)
                break
        else:
            classes.append([d])
    return classes


def _exchangeable(problem: Problem, a: int, b: int) -> bool:
    cluster, routes = problem.cluster, problem.cluster.routes
    same = [problem.op_s.T, problem.op_allowed.T, cluster.memory_bytes, cluster.streams]
    if not all(np.array_equal(values[a], values[b]) for values in same):
        return False
    other = np.arange(cluster.size)
    other[a], other[b] = b, a
    host, launch_s = cluster.launchers.host, cluster.launchers.launch_s
    alone = [int((host == host[d]).sum()) == 1 for d in (a, b)]
    if launch_s[a] != launch_s[b] or (launch_s[a] > 0 and host[a] != host[b] and not all(alone)):
        return False
    if not all(np.array_equal(m, m[np.ix_(other, other)]) for m in (routes.latency_s, routes.s_per_byte)):
        return False
    users: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for r in range(cluster.size**2):
        for c in routes.channel[routes.ptr[r] : routes.ptr[r + 1]].tolist():
            users[c].append(divmod(r, cluster.size))
    capacity = {c: int(routes.capacity[c]) for c in users}
    before = Counter((frozenset(pairs), capacity[c]) for c, pairs in users.items())
    after = Counter((frozenset((int(other[s]), int(other[d])) for s, d in p), capacity[c]) for c, p in users.items())
    return before == after
