"""What a move changes first, so that an evaluation may go on from a mark of the current placement's run."""
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from placekit_scheduling import Kernel
from placekit_scheduling.jit import counted_inner, njit

from placekit_core import Problem
from placekit_search.moves import DEVICES, PRIORITIES
from placekit_search.neighbourhood import Ints, rows

MANY = 64  # a tensor of a source with more readers than this counts as one that is sent


class Reuse(NamedTuple):
    """The graph, and where marks are (`placekit_scheduling.Trial`); n operations, g groups.

    Attributes:
        op_ptr, op: operations of each group, in compressed rows.
        input_ptr, input_tensor: tensors that each operation reads.
        ends: where the recorded ends of tasks begin.
        go_on, kernel_go_on, limit_s, worked, marks, mark_s: those of the trial; `possible` is False without one.
    """

    op_ptr: Ints
    op: Ints
    input_ptr: Ints
    input_tensor: Ints
    ends: int
    go_on: int
    kernel_go_on: int
    limit_s: int
    worked: int
    marks: int
    mark_s: int
    possible: bool


def reuse(problem: Problem, kernel: Kernel | None = None) -> Reuse:
    """The graph of `problem`, and where marks of the trial of `kernel` are, if it has one."""
    graph = problem.graph
    op_ptr, op = rows(problem.grouping.group_of.astype(np.int64), problem.g)
    places = dict.fromkeys(("go_on", "kernel_go_on", "limit_s", "worked", "marks", "mark_s"), 0)
    ends, possible = 0, False
    if kernel is not None and kernel.trace is not None and kernel.trial is not None:
        trial, ends, possible = kernel.trial(), kernel.trace.times + kernel.trace.tasks, True
        places = {name: getattr(trial, name) for name in places}
    return Reuse(
        op_ptr=op_ptr,
        op=op,
        input_ptr=np.array(graph.input_ptr, np.int32),
        input_tensor=np.array(graph.input_tensor, np.int32),
        ends=ends,
        possible=possible,
        **places,
    )


@counted_inner
def _stays(flow: Any, device: Any, log: Any, tensor: Any) -> Any:
    """Whether a tensor of a source is read only where the source is, before the move and after it."""
    first, end = flow.consumer_ptr[tensor], flow.consumer_ptr[tensor + 1]
    if end - first > MANY:
        return False
    source = flow.group_of[flow.producer[tensor]]
    for k in range(first, end):
        reader = flow.group_of[flow.consumer_op[k]]
        if device[reader] != device[source] or log.before[reader] != log.before[source]:
            return False
    return True


@counted_inner
def _first_of(flow: Any, graph: Any, device: Any, log: Any, work_floats: Any, group: Any, least: Any) -> Any:
    """The least of `least` and the time of the first event that a group's move may change."""
    for i in range(graph.op_ptr[group], graph.op_ptr[group + 1]):
        v = graph.op[i]
        if not flow.kernel[v]:
            for x in range(flow.output_ptr[v], flow.output_ptr[v + 1]):
                if not _stays(flow, device, log, x):
                    return 0.0
            continue
        waits = False
        for j in range(graph.input_ptr[v], graph.input_ptr[v + 1]):
            x = graph.input_tensor[j]
            u = flow.producer[x]
            if flow.kernel[u]:
                waits = True
                least = min(least, work_floats[graph.ends + u])
            elif not _stays(flow, device, log, x):
                return 0.0
        if not waits:
            return 0.0
    return least


@njit(cache=True, nogil=True)
def mark_before(flow: Any, graph: Any, device: Any, log: Any, work_ints: Any, work_floats: Any) -> Any:
    """The number of the last mark before anything that the move in `log` changes, plus 1; 0 if there is none.

    An operation on another device changes what happens when an input of it is ready: where that is sent. One whose priority
    changes may be taken earlier or later once it is ready, and so may what is sent for it.
    """
    least = np.inf
    for i in range(log.counts[DEVICES]):
        least = _first_of(flow, graph, device, log, work_floats, log.group[i], least)
        if least == 0.0:
            return 0
    for i in range(log.counts[PRIORITIES]):
        least = _first_of(flow, graph, device, log, work_floats, log.ranked[i], least)
        if least == 0.0:
            return 0
    mark = work_ints[graph.marks]
    while mark > 0 and work_floats[graph.mark_s + mark - 1] > least:
        mark -= 1
    return mark
