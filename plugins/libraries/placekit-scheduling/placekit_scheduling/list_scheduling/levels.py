"""Priorities of operations for the rules of scheduler.py: b-levels, t-levels, and those of CPOP and PEFT."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from placekit_core import Problem


def op_cost(problem: Problem, cost: Literal["mean", "min"] = "mean") -> NDArray[np.float64]:
    """[n] seconds of each operation: the mean or least over its allowed devices."""
    allowed = problem.expand(problem.allowed.T).T
    if cost == "min":
        return np.asarray(np.where(allowed, problem.op_s, np.inf).min(axis=1, initial=np.inf))
    return np.asarray(np.where(allowed, problem.op_s, 0.0).sum(axis=1) / allowed.sum(axis=1))


def transfer_cost(problem: Problem) -> NDArray[np.float64]:
    """[t] mean seconds of sending each tensor, over all ordered pairs of devices; 0 for sources, which go to their consumers.

    HEFT's mean communication cost (Topcuoglu et al. 2002, Eq. 2), with each pair's own latency and bandwidth.
    """
    graph, size = problem.graph, problem.cluster.size
    if size == 1:
        return np.zeros(graph.t)
    routes, pairs = problem.cluster.routes, size * (size - 1)
    seconds = routes.latency_s.sum() / pairs + graph.tensor_bytes * (routes.s_per_byte.sum() / pairs)
    return np.where(graph.kernel[graph.tensor_producer], seconds, 0.0)


def b_level(problem: Problem, cost: Literal["mean", "min"] = "mean", communication: float = 1.0) -> NDArray[np.float64]:
    """[n] seconds on the longest path from each operation to an exit, including its own (bottom level).

    `communication` scales the transfers on the path (`transfer_cost`). With 1, this is the b-level of Kwok and Ahmad (1999) and
    HEFT's upward rank. With 0, it is the static level: ETF breaks ties by it (Hwang et al. 1989), and the bounds use it.
    """
    from placekit_scheduling.jit import by_size
    from placekit_scheduling.list_scheduling.level_kernel import to_exit

    graph, level = problem.graph, np.zeros(problem.graph.n)
    own, sent = op_cost(problem, cost), communication * transfer_cost(problem)
    longest = by_size(to_exit, graph.n)
    longest(graph.topological_order, graph.output_ptr, graph.consumer_ptr, graph.consumer_op, own, sent, level)
    return level


def t_level(problem: Problem, cost: Literal["mean", "min"] = "mean", communication: float = 1.0) -> NDArray[np.float64]:
    """[n] seconds on the longest path from an entry to each operation, without its own (top level)."""
    from placekit_scheduling.jit import by_size
    from placekit_scheduling.list_scheduling.level_kernel import from_entry

    graph, level = problem.graph, np.zeros(problem.graph.n)
    own, sent = op_cost(problem, cost), communication * transfer_cost(problem)
    longest = by_size(from_entry, graph.n)
    longest(graph.topological_order, graph.input_ptr, graph.input_tensor, graph.tensor_producer, own, sent, level)
    return level


def group_priority(problem: Problem, value: NDArray[np.float64]) -> NDArray[np.float32]:
    """[g] the highest value of each group's kernels, or of its sources if it has no kernels; `value` is [n].

    So a group is as urgent as its most urgent operation. With b-levels this is a forward operation of the group.
    """
    graph, group = problem.graph, problem.grouping.group_of
    result = np.full(problem.g, -np.inf)
    np.maximum.at(result, group[graph.kernel], value[graph.kernel])
    empty = np.isneginf(result)
    sources = ~graph.kernel & empty[group]
    np.maximum.at(result, group[sources], value[sources])
    return result.astype(np.float32)


def critical_path(problem: Problem) -> NDArray[np.int64]:
    """The kernels of a longest path, entry first, by mean costs and mean transfers; ties by the lower index.

    CPOP's critical path (Topcuoglu et al. 2002, section 4.2).
    """
    graph = problem.graph
    level, sent = b_level(problem), transfer_cost(problem)
    entries = np.flatnonzero(graph.kernel & (t_level(problem) == 0))
    path: list[int] = []
    v = int(entries[level[entries].argmax()]) if len(entries) else -1
    while v >= 0:
        path.append(v)
        readers, seconds = _readers(problem, v, sent)
        longest = seconds + level[readers]
        v = int(readers[np.isclose(longest, longest.max(), rtol=1e-12, atol=0)].min()) if len(readers) else -1
    return np.asarray(path, np.int64)


def critical_path_device(problem: Problem, path: NDArray[np.int64]) -> int:
    """The device that runs `path` fastest, among the devices that may run most of it; ties by the lower index (CPOP)."""
    allowed = problem.allowed[problem.grouping.group_of[path]]
    seconds = np.where(allowed, problem.op_s[path], 0.0).sum(axis=0)
    return int(np.lexsort((seconds, -allowed.sum(axis=0)))[0])


def optimistic_cost(problem: Problem) -> NDArray[np.float64]:
    """[n, D] seconds from the end of each operation on each device to the end of the step, if devices were never busy.

    The optimistic cost table of PEFT (Arabnejad and Barbosa 2014, Eq. 4): the longest time over all successors, each on its
    best device. If this is another device, the transfer counts with its mean time (`transfer_cost`).
    """
    graph, sent = problem.graph, transfer_cost(problem)
    allowed = problem.allowed[problem.grouping.group_of]
    table = np.zeros((graph.n, problem.cluster.size))
    whole = np.where(allowed, problem.op_s, np.inf)  # with the operation's own seconds
    least = np.zeros(graph.n)
    for v in graph.topological_order[::-1].tolist():
        readers, seconds = _readers(problem, v, sent)
        if len(readers):
            table[v] = np.minimum(whole[readers], (least[readers] + seconds)[:, None]).max(axis=0)
            whole[v] += table[v]
        least[v] = whole[v].min()
    return table


def mean_optimistic_cost(problem: Problem, table: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n] PEFT's rank (Eq. 5): the mean of each row of `optimistic_cost` over the operation's allowed devices."""
    allowed = problem.allowed[problem.grouping.group_of]
    return np.asarray(np.where(allowed, table, 0.0).sum(axis=1) / allowed.sum(axis=1))


def _readers(problem: Problem, op: int, sent: NDArray[np.float64]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The readers of an operation's outputs, once per tensor, and the seconds `sent` [t] of this tensor."""
    graph = problem.graph
    first, last = graph.output_ptr[op], graph.output_ptr[op + 1]
    rows = graph.consumer_ptr[first : last + 1]
    return graph.consumer_op[rows[0] : rows[-1]], np.repeat(sent[first:last], np.diff(rows))
