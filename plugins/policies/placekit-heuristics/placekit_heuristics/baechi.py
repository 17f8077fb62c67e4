"""m-TOPO, m-ETF and m-SCT: the placers of Baechi (Jeon et al., SoCC 2020, section 3)."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_scheduling import ListScheduler, b_level, group_priority, warm_up

from placekit_core import PlacekitError, Placement, Policy, Problem, Task
from placekit_heuristics.simple import accelerators

TOLERANCE = 1e-6  # HiGHS's own tolerance is 1e-7


class MTopo(Policy):
    """Fills one device after another with groups in topological order, each up to its share plus the largest group.

    Section 3.1. Shares are in proportion to the devices' memory; equal devices have equal shares, as in the paper.
    """

    name = "m_topo"

    def place(self, task: Task, rng: Generator) -> Placement:
        """The placement, with b-levels as priorities; nothing is evaluated."""
        problem = task.problem
        return problem.placement(fill(problem), group_priority(problem, b_level(problem)))


def fill(problem: Problem) -> NDArray[np.int16]:
    """[g] devices by m-TOPO. A group needs its persistent bytes and the bytes of all outputs of its kernels.

    The whole group counts when its first operation is placed. The cap of a device is its share of all needs plus the largest
    need. A device that reached its cap has more than its share, so the groups that remain for the last device are below its cap.

    A device is also full if the persistent bytes of the next group do not fit. If they do not fit on the last device, the group
    goes to the device with most room. GPUs and CPUs are filled separately, with caps for the groups of each type.
    """
    graph, group, memory = problem.graph, problem.grouping.group_of, problem.cluster.memory_bytes
    persistent = problem.group_persistent_bytes
    need = persistent.copy()
    np.add.at(need, group[graph.tensor_producer], graph.owned_bytes)
    device = np.empty(problem.g, np.int16)
    used, persistent_used = np.zeros(problem.cluster.size), np.zeros(problem.cluster.size)
    order, allowed = first_use(problem), accelerators(problem)
    for row in np.unique(allowed, axis=0):
        mine, queue = (allowed == row).all(axis=1), np.flatnonzero(row).tolist()
        cap = need[mine].sum() * memory / memory[queue].sum() + need[mine].max()
        for g in order[mine[order]].tolist():
            while len(queue) > 1 and (
                used[queue[0]] + need[g] > cap[queue[0]] or persistent_used[queue[0]] + persistent[g] > memory[queue[0]]
            ):
                queue.pop(0)
            d = queue[0]
            if persistent_used[d] + persistent[g] > memory[d]:
                d = int(np.where(row, memory - persistent_used, -np.inf).argmax())
            device[g] = d
            used[d] += need[g]
            persistent_used[d] += persistent[g]
    return device


def first_use(problem: Problem) -> NDArray[np.int64]:
    """The groups in topological order of their first operations; a source counts at the position of its first reader."""
    graph = problem.graph
    position = np.empty(graph.n, np.int64)
    position[graph.topological_order] = np.arange(graph.n)
    source = np.flatnonzero(~graph.kernel)
    position[source] = graph.n
    np.minimum.at(position, graph.tensor_producer[graph.input_tensor], position[graph.edge_op])
    first = np.full(problem.g, graph.n)
    np.minimum.at(first, problem.grouping.group_of, position)
    return np.argsort(first, kind="stable")


class MEtf(Policy):
    """Earliest task first with memory, ties in topological order. Section 3.2."""

    name = "m_etf"
    has_favourites: ClassVar[bool] = False

    def favourites(self, problem: Problem) -> NDArray[np.int64] | None:
        """[n] the child (reader) that each operation's device waits for, or -1; None if no device waits."""
        return None

    def place(self, task: Task, rng: Generator) -> Placement:
        """The placement, with b-levels as priorities; nothing is evaluated."""
        problem, order = task.problem, task.problem.graph.topological_order
        level = np.empty(len(order))
        level[order] = -np.arange(len(order))
        warm_up(task, ["etf"], favourites=self.has_favourites)
        scheduler = ListScheduler(problem, accelerators(problem), few=True)
        return scheduler.run("etf", level, favourite=self.favourites(problem)).placement(b_level(problem))


class MSct(MEtf):
    """`m_etf`, but a device waits for the favourite child of its last operation. Section 3.3.

    After the small communication times schedule of Hanen and Munier 1995.
    """

    name = "m_sct"
    has_favourites = True

    def favourites(self, problem: Problem) -> NDArray[np.int64]:
        return favourite_children(problem)


class Edges(NamedTuple):
    """Distinct pairs of kernels, where `target` reads from `source`, with the seconds to send their largest tensor."""

    source: NDArray[np.int64]  # [e]
    target: NDArray[np.int64]  # [e]
    seconds: NDArray[np.float64]  # [e] 0 within a group


def edges(problem: Problem) -> Edges:
    """The edges of the linear program. Sources have none, because they are placed with their consumers."""
    graph, group, size = problem.graph, problem.grouping.group_of, problem.cluster.size
    d = np.flatnonzero(accelerators(problem).any(axis=0))
    apart = np.ix_(d, d) if len(d) > 1 else np.ix_(range(size), range(size))
    pairs = max(len(apart[0]) * (len(apart[0]) - 1), 1)
    routes = problem.cluster.routes
    producer, reader = graph.tensor_producer[graph.input_tensor].astype(np.int64), graph.edge_op
    between = graph.kernel[producer]
    seconds = (
        routes.latency_s[apart].sum() + graph.tensor_bytes[graph.input_tensor] * routes.s_per_byte[apart].sum()
    ) / pairs
    seconds[group[producer] == group[reader]] = 0.0
    key, row = np.unique((producer * graph.n + reader)[between], return_inverse=True)
    longest = np.zeros(len(key))
    np.maximum.at(longest, row, seconds[between])
    return Edges(key // graph.n, key % graph.n, longest)


def favourite_children(problem: Problem, threshold: float = 0.5, lp_seconds: float = 60.0) -> NDArray[np.int64]:
    """[n] favourite child of each operation by the relaxed program of section 3.3; -1 if it has none.

    Minimize w over starts s and y in [0, 1] (1 - x of the paper): s_i + k_i + c_ij (1 - y_ij) <= s_j and s_i + k_i <= w,
    where the y of an operation's children, and those of its parents, add up to 1 at most. A child is the favourite if
    its x is below `threshold`, at most 1/2. Edges within a group take no time and have no y. Raises PlacekitError if
    HiGHS finds no optimum in `lp_seconds`.
    """
    # imported here, because it takes long and `m_topo` and `m_etf`, which start searches, do not need it
    from scipy.optimize import linprog
    from scipy.sparse import coo_array, vstack

    n, (source, target, seconds) = problem.graph.n, edges(problem)
    favourite = np.full(n, -1)
    free = np.flatnonzero(problem.grouping.group_of[source] != problem.grouping.group_of[target])
    m, e = len(free), len(source)
    if m == 0:
        return favourite
    allowed = accelerators(problem)[problem.grouping.group_of]
    own = np.where(allowed, problem.op_s, 0.0).sum(axis=1) / allowed.sum(axis=1)
    unit = max(float(np.concatenate([own, seconds]).mean()), 1e-300)  # tolerances are absolute
    own, seconds = own / unit, seconds / unit
    last, rows, columns = m + n, np.arange(e), np.arange(m)  # variables: y of the free edges, s, w
    ends = np.setdiff1d(np.flatnonzero(problem.graph.kernel), source)

    def block(values: list[Any], row: list[Any], column: list[Any], count: int) -> coo_array:
        entries = [np.broadcast_to(v, len(r)) for v, r in zip(values, row, strict=True)]
        where = (np.concatenate(row), np.concatenate(column))
        return coo_array((np.concatenate(entries), where), shape=(count, last + 1))

    matrix = vstack([
        block([1, -1, -seconds[free]], [rows, rows, free], [m + source, m + target, columns], e),
        block([1, -1], [np.arange(len(ends))] * 2, [m + ends, np.full(len(ends), last)], len(ends)),
        block([1], [source[free]], [columns], n),
        block([1], [target[free]], [columns], n),
    ]).tocsr()  # fmt: skip
    limit = np.concatenate([-own[source] - seconds, -own[ends], np.ones(2 * n)])
    bounds = np.zeros((last + 1, 2))
    bounds[:m, 1], bounds[m:, 1] = 1, np.inf
    # by simplex: interior point and the dual program are slower on some graphs, and find another of many optima
    result = linprog(
        np.arange(last + 1) == last, matrix, limit, bounds=bounds, method="highs", options={"time_limit": lp_seconds}
    )
    if result.status != 0:
        why = f" in {lp_seconds:g} s" if result.status == 1 else f": {result.message}"
        raise PlacekitError(
            f"m_sct: no optimum of the linear program of {m} edges between groups{why}",
            "use policy=m_etf, which is the same without favorite children",
        )
    chosen = free[result.x[:m] > 1 - threshold + TOLERANCE]
    favourite[source[chosen]] = target[chosen]
    return favourite
