"""The simplest placements, for a program of which the budget ended before a placement that fits was found."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from placekit_core.contracts.problem import Problem
from placekit_core.run.evaluator import BudgetedEvaluator
from placekit_core.run.lifecycle import reason


def place_simply(evaluate: BudgetedEvaluator, policy: str) -> str:
    """Make the first of the `simplest` placements that fits the best of `evaluate`, with a note. Returns what it is, or ``.

    Its evaluations take nothing of the budget and are in no history: the policy did not make them.
    """
    try:
        for text, device in simplest(evaluate.problem):
            if evaluate.prefer(evaluate.problem.placement(device), 0.0):
                evaluate.note(
                    f"policy {policy!r} found no placement that fits within its budget: the run placed {text} instead,"
                    " which is no result of the policy"
                )
                return text
    except (Exception, SystemExit) as e:  # it comes after a search that may have taken hours
        evaluate.note(f"the run could not evaluate the simplest placements: {reason(e)}")
    return ""


def simplest(problem: Problem) -> Iterator[tuple[str, NDArray[np.int16]]]:
    """What is placed, in words, and the device of each group [g].

    First as much as may run there on one device, the fastest first, one of each kind; then the groups in the order in which
    they run, cut into a part for each device in proportion to its memory: by all bytes that they write or hold, and by
    those that stay for the whole step only.
    """
    cluster, allowed = problem.cluster, problem.allowed
    order = np.lexsort((np.where(allowed, problem.group_s, 0.0).sum(axis=0), -allowed.sum(axis=0)))
    seen = set[tuple[str, float, int]]()
    for d in order.tolist():
        alike = (cluster.device_kind[d], float(cluster.memory_bytes[d]), int(allowed[:, d].sum()))
        if alike not in seen:
            seen.add(alike)
            yield f"all that may run there on {cluster.device_names[d]}", _nearest(allowed, np.full(problem.g, d))
    graph, group = problem.graph, problem.grouping.group_of
    written = np.bincount(graph.tensor_producer, graph.owned_bytes, minlength=graph.n)
    for text, bytes_ in (("bytes", graph.persistent_bytes + written), ("parameters", graph.persistent_bytes)):
        own = np.bincount(group, bytes_, minlength=problem.g)
        turn = np.argsort(_first_use(problem), kind="stable")
        before = np.empty(problem.g)
        before[turn] = np.cumsum(own[turn]) - own[turn] / 2
        ends = np.cumsum(cluster.memory_bytes[order] / cluster.memory_bytes.sum()) * max(float(own.sum()), 1.0)
        part = np.minimum(np.searchsorted(ends, before), cluster.size - 1)
        yield (
            f"its groups in order on all devices, their {text} in proportion to memory,",
            _nearest(allowed, order[part]),
        )


def _nearest(allowed: NDArray[np.bool_], device: NDArray[np.integer]) -> NDArray[np.int16]:
    """[g] the device asked for where the group may run there, else the first on which it may."""
    may = allowed[np.arange(len(allowed)), device]
    return np.where(may, device, allowed.argmax(axis=1)).astype(np.int16)


def _first_use(problem: Problem) -> NDArray[np.int64]:
    """[g] position of the first kernel of each group; of a group of sources, that of their first reader."""
    graph = problem.graph
    position = np.empty(graph.n, np.int64)
    position[graph.topological_order] = np.arange(graph.n)
    own = np.where(graph.kernel, position, graph.n)
    read = ~graph.kernel[graph.tensor_producer[graph.input_tensor]]
    np.minimum.at(own, graph.tensor_producer[graph.input_tensor[read]], position[graph.edge_op[read]])
    first = np.full(problem.g, graph.n)
    np.minimum.at(first, problem.grouping.group_of, own)
    return first
