"""The trace of the compiled kernel: causes are what the machine model says, and end when what they cause starts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from placekit_scheduling.tracing import run_traced
from placekit_sim.simulator import BulkSynchronous, Simulator
from placekit_testing.strategies import Case, problems, random_placements, random_problem

from placekit_core import BackendError, Cluster, CostTable, GraphBuilder, Problem


class Traced(NamedTuple):
    """What the kernel left of one run; `copies` are the (tensor, destination) that were received."""

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    cause: list[int]
    last: int
    copies: list[tuple[int, int]]


def traced(problem: Problem, device: NDArray[np.int16], priority: NDArray[np.float32] | None = None) -> Traced:
    kernel = Simulator().open(problem).kernel()
    assert kernel is not None
    trace = kernel.trace
    assert trace is not None
    ints, floats = np.full(kernel.scratch_ints, -2, np.int32), np.full(kernel.scratch_floats, np.nan)
    order, peak = np.empty(0, np.float32) if priority is None else priority, np.empty(problem.cluster.size)
    kernel.function(device, order, kernel.ints, kernel.floats, ints, floats, peak)
    tensor, dst = (ints[at : at + ints[trace.copies]].tolist() for at in (trace.copy_tensor, trace.copy_dst))
    start, end = floats[trace.times : trace.times + 2 * trace.tasks].reshape(2, trace.tasks)
    again = run_traced(kernel, problem, device, priority)
    assert (again.last, again.copy_tensor.tolist(), again.copy_dst.tolist()) == (ints[trace.last], tensor, dst)
    return Traced(
        start,
        end,
        ints[trace.cause : trace.cause + trace.tasks].tolist(),
        int(ints[trace.last]),
        list(zip(tensor, dst, strict=True)),
    )


@settings(max_examples=150, deadline=None)
@given(case=problems(max_n=24, max_devices=5), priorities=st.booleans())
def test_causes_bring_inputs_or_release_streams_and_channels(case: Case, priorities: bool) -> None:
    problem = case.problem
    graph, routes, size, multicast = (
        problem.graph,
        problem.cluster.routes,
        problem.cluster.size,
        problem.cluster.multicast,
    )
    device, priority = random_placements(case.rng, problem, 1, priorities).one(0)
    run, home = traced(problem, device, priority), problem.expand(device)

    def channels(tensor: int, to: int) -> set[int]:
        route = int(home[graph.tensor_producer[tensor]]) * size + to
        return set(routes.channel[routes.ptr[route] : routes.ptr[route + 1]].tolist())

    for v in np.flatnonzero(graph.kernel).tolist():
        why, read = run.cause[v], graph.inputs(v).tolist()
        if why == -1:
            assert not read
            assert run.start[v] == 0
        elif why >= graph.n:
            tensor, to = run.copies[why - graph.n]
            assert tensor in read
            assert to == home[v] or multicast
        else:  # on the same device, it wrote an input or released the stream
            assert home[why] == home[v]
            assert graph.kernel[why] or why in graph.tensor_producer[read]
        assert why == -1 or run.start[v] == run.end[why]
    for k, (tensor, to) in enumerate(run.copies):
        if multicast and k > 0 and run.copies[k - 1][0] == tensor:
            continue  # made by the task of the first
        why = run.cause[graph.n + k]
        assert run.start[graph.n + k] == run.end[why]
        if why < graph.n:
            assert why == graph.tensor_producer[tensor]
        else:
            assert channels(tensor, to) & channels(*run.copies[why - graph.n])


def test_one_multicast_is_the_cause_of_what_starts_on_several_devices() -> None:
    """g:0 sends w, and x and y that `a` writes at 1 s, 4 s each and one after another, to g:1 and g:2 at once."""
    b = GraphBuilder("multicast")
    w = b.source("w", 4)
    x, y = b.add("a", outputs=[4, 4])
    for tensor in (w, x, y):
        for d in (1, 2):
            b.add(f"read {tensor} on {d}", inputs=[tensor])
    graph = b.build()
    kind = {"flops_per_s": {"float32": 1.0}, "memory_bytes": 1000, "memory_bytes_per_s": 1.0}
    egress = {"a": "g:*", "b": "hub", "bytes_per_s": 1, "reverse": {"bytes_per_s": 1, "concurrent": "unlimited"}}
    cluster = Cluster.parse(
        {"kinds": {"g": kind}, "devices": [{"kind": "g", "count": 3}], "links": [egress], "multicast": True}
    )
    seconds = np.where(graph.kernel, 1.0, 0.0)[:, None]
    problem = Problem.of(graph, cluster, None, CostTable(("g",), seconds, np.zeros(seconds.shape, np.bool_)))
    run = traced(problem, np.array([0, 0, 1, 2, 1, 2, 1, 2], np.int16))
    assert run.copies == [(w, 1), (w, 2), (x, 1), (x, 2), (y, 1), (y, 2)]
    send_w, send_x, send_y = (graph.n + k for k in (0, 2, 4))
    kernel = Simulator().open(problem).kernel()
    assert kernel is not None
    recorded = run_traced(kernel, problem, np.array([0, 0, 1, 2, 1, 2, 1, 2], np.int16), None)
    assert recorded.copy_task.tolist() == [send_w, send_w, send_x, send_x, send_y, send_y]
    assert (recorded.value_s, recorded.peak_bytes.tolist()[0]) == (13, 12), "w stays; x and y until they are sent"
    assert run.start[[send_w, send_x, send_y]].tolist() == [0, 4, 8]
    assert [run.cause[task] for task in (send_w, send_x, send_y)] == [0, send_w, send_x], "a source, then the channel"
    assert run.start[1:8].tolist() == [0, 4, 4, 8, 8, 12, 12]
    assert run.cause[:8] == [-1, -1, send_w, send_w, send_x, send_x, send_y, send_y]
    assert run.last in (6, 7)


def test_a_barrier_leaves_no_trace() -> None:
    problem = random_problem(np.random.default_rng(0), 10, 2)
    kernel = BulkSynchronous().open(problem).kernel()
    assert kernel is not None
    assert kernel.trace is None
    with pytest.raises(BackendError, match="records no trace"):
        run_traced(kernel, problem, np.zeros(problem.g, np.int16), None)
