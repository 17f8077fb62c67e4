"""Lower bounds for loads, from work and groups without communication."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling import ROUNDING
from placekit_scheduling.bounds.makespan import group_bound, work_bound
from placekit_scheduling.bounds.relaxation import Relaxation
from placekit_scheduling.bounds.work import best_prices

from placekit_core import Cluster, CostTable, Problem, launches_of


def load_bound(problem: Problem) -> float:
    """A lower bound on the largest sum of seconds on a device, for every placement that fits.

    It holds because the proofs of `work_bound` and `group_bound` only use that a device with one stream takes the sum of its
    operations' seconds.
    """
    serial = one_stream(problem)
    if not serial.g:
        return 0.0
    return max(work_bound(Relaxation.of(serial)), group_bound(serial)) * (1 - ROUNDING)


def divided_load_bound(problem: Problem, devices: Sequence[int]) -> float:
    """Like `load_bound` if several of `devices` may divide the micro-batches of a group, and no others run anything.

    The proof of `work_bound` holds for fractions of groups, without the limits of memory.
    """
    possible = problem.allowed[:, list(devices)]
    group_s = np.where(possible, problem.group_s[:, list(devices)], np.inf)[possible.any(axis=1)]
    if not len(group_s):
        return 0.0
    seconds, count = np.unique(group_s, axis=1, return_counts=True)  # equal devices
    none, room = np.zeros(len(seconds)), np.ones(len(count))
    return best_prices(seconds, count.astype(np.float64), none, room).bound_s * (1 - ROUNDING)


def weights_only(problem: Problem) -> Problem:
    """The problem with tensors of no bytes, for backends that only count persistent bytes as memory."""
    graph = problem.graph.replace(tensor_bytes=np.zeros_like(problem.graph.tensor_bytes))
    return Problem(graph, problem.grouping, problem.cluster, problem.costs)


def one_stream(problem: Problem) -> Problem:
    """The problem on a machine whose devices run one operation at a time."""
    cluster = problem.cluster
    if (cluster.streams == 1).all():
        return problem
    kinds = {name: {**kind.model_dump(), "streams": 1} for name, kind in cluster.kinds.items()}
    machine = Cluster.parse({**cluster.model_dump(), "kinds": kinds}, cluster.name)
    return Problem(problem.graph, problem.grouping, machine, problem.costs)


def with_launches(problem: Problem) -> Problem:
    """The problem where an operation takes at least as long as its launch.

    A stage has a process of its own, which launches its operations while those before run. So the slower of the two decides,
    for each operation. Of devices of one kind, the host that takes longest counts.
    """
    cluster, graph = problem.cluster, problem.graph
    launch_s, kinds = cluster.launchers.launch_s, cluster.kind_names
    if not cluster.launchers.any:
        return problem
    own = [
        launch_s[[k == kind for k in cluster.device_kind]].max() if kind in kinds else 0.0
        for kind in problem.costs.kinds
    ]
    least = np.where(graph.kernel, launches_of(graph), 0.0)[:, None] * np.asarray(own)
    costs = CostTable(problem.costs.kinds, np.maximum(problem.costs.op_s, least), problem.costs.measured)
    return Problem(problem.graph, problem.grouping, cluster, costs)


def with_seconds(problem: Problem, factor: NDArray[np.float64]) -> Problem:
    """The problem with the seconds of operation v multiplied by `factor[v]`."""
    costs = CostTable(problem.costs.kinds, problem.costs.op_s * factor[:, None], problem.costs.measured)
    return Problem(problem.graph, problem.grouping, problem.cluster, costs)
