"""A bound from memory: parameters that do not fit on fast devices are copied to them or read on slower ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placekit_core import UNLIMITED, Problem
from placekit_scheduling.bounds.routes import concurrent_transfers, least_transfer_s
from placekit_scheduling.bounds.work import best_prices

Ints = NDArray[np.int64]
RESIDENT, COPIED, ELSEWHERE = range(3)


def offload_bound(problem: Problem) -> float:
    """Seconds that no placement that fits can beat, because parameters are copied or read on slower devices.

    Let H be the devices of one kind, and G all others, with M bytes of memory together. Assign to each source s one operation
    v(s) that reads a tensor x(s) of it, and no operation to two sources. In a schedule of length T of a placement that fits,
    each source

    - is on G with v(s) on G: the sources take at most M bytes in all, the operations at most R T seconds on the R streams of
      G; or
    - is on H with v(s) on G. Then x(s) is sent from H to G. If every route from H to G has one of the channels C, of total
      capacity c, such transfers take at most c T seconds in all, each at least as long as on the fastest of these routes; or
    - is read by v(s) on H, whose S streams give at most S T seconds to all these operations.

    The least T of a fractional choice among these three is a linear program of the form of `makespan.work_bound`, with three
    kinds: any multipliers give a bound. The result is the highest over all kinds H, and 0 on machines of one kind.
    """
    kinds = np.unique(problem.cluster.kind_of)
    if len(kinds) < 2:
        return 0.0
    chosen = _one_reader_each(problem)
    return max(_bound(problem, problem.cluster.kind_of == kind, *chosen) for kind in kinds)


def _one_reader_each(problem: Problem) -> tuple[Ints, Ints, Ints]:
    """[s] sources, an operation that reads each, and the tensor that it reads. Large tensors are assigned first."""
    graph = problem.graph
    edge = np.flatnonzero(~graph.kernel[graph.tensor_producer[graph.input_tensor]])
    edge = edge[np.argsort(-graph.tensor_bytes[graph.input_tensor[edge]], kind="stable")]
    taken, rows = set[int](), dict[int, tuple[int, int]]()
    for v, x in zip(graph.edge_op[edge].tolist(), graph.input_tensor[edge].tolist(), strict=True):
        s = int(graph.tensor_producer[x])
        if s not in rows and v not in taken:
            rows[s] = v, x
            taken.add(v)
    pairs = np.asarray(list(rows.values()), np.int64).reshape(-1, 2)
    return np.asarray(list(rows), np.int64), pairs[:, 0], pairs[:, 1]


def _bound(problem: Problem, there: NDArray[np.bool_], source: Ints, reader: Ints, tensor: Ints) -> float:
    """The bound with the devices `there` [D] as H."""
    graph, cluster, routes = problem.graph, problem.cluster, problem.cluster.routes
    here, group = ~there, problem.grouping.group_of
    of_source, of_reader = problem.allowed[group[source]], problem.allowed[group[reader]]
    pairs = [(a, b) for a in np.flatnonzero(there).tolist() for b in np.flatnonzero(here).tolist()]
    copying = least_transfer_s(routes, pairs, graph.tensor_bytes[tensor].astype(np.float64))
    concurrent = min(concurrent_transfers(routes, pairs, ends=(0, -1)), float(UNLIMITED))
    working = np.where(of_reader[:, there], problem.op_s[reader][:, there], np.inf).min(axis=1)
    apart = group[source] != group[reader]
    seconds = np.full((len(source), 3), np.inf)
    both = of_source[:, here].any(axis=1)
    seconds[both, RESIDENT] = np.where(of_reader[:, here], problem.op_s[reader][:, here], np.inf).min(axis=1)[both]
    can = apart & of_source[:, there].any(axis=1) & of_reader[:, here].any(axis=1)
    seconds[can, COPIED] = copying[can]
    seconds[:, ELSEWHERE] = working
    bytes_ = graph.persistent_bytes[source].astype(np.float64)
    used = float(graph.persistent_bytes.sum()) + 1.0
    room = np.asarray([float(cluster.memory_bytes[here].sum()), used, used])
    streams = np.asarray([cluster.streams[here].sum(), concurrent, cluster.streams[there].sum()], np.float64)
    must_stay = ~np.isfinite(seconds[:, [COPIED, ELSEWHERE]]).any(axis=1)
    if bytes_.sum() <= room[RESIDENT] or bytes_[must_stay].sum() > room[RESIDENT]:
        return 0.0  # everything fits on G; or nothing fits, and any bound holds
    return best_prices(seconds, streams, bytes_, room).bound_s
