"""Lower bounds on the times at which operations are launched; see "Hosts" in docs/machine-model.md."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placekit_core import Problem, launches_of


def earliest_launch_s(problem: Problem) -> NDArray[np.float64]:
    """[n] lower bound on the launch of each operation in any placement, seconds; 0 for sources.

    If one host launches for all devices, this is the end of the operation's launch. If there are several hosts, other operations
    may be launched elsewhere, and only its own launch counts, on the fastest host.
    """
    launchers, graph = problem.cluster.launchers, problem.graph
    if (launchers.host == launchers.host[0]).all():
        return problem.launched_s(np.full(graph.n, int(launchers.launch_s.argmin())))
    return np.where(graph.kernel, launches_of(graph) * launchers.launch_s.min(), 0.0)


def all_launched_s(problem: Problem) -> float:
    """Lower bound on the last launch in any placement, seconds: all launches, divided among the hosts by their speed."""
    launchers = problem.cluster.launchers
    if (launchers.launch_s == 0).any():
        return 0.0
    count = float(np.where(problem.graph.kernel, launches_of(problem.graph), 0.0).sum())
    hosts = {int(h): float(s) for h, s in zip(launchers.host, launchers.launch_s, strict=True)}
    return count / sum(1.0 / s for s in hosts.values())
