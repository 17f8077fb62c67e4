"""Streaming by hand: what is copied when, how long it stays, and what that does to time and memory. Links: 1 byte per second."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from machine_model import Rules, execute
from placekit_sim.simulator import BulkSynchronous, Simulator
from pydantic import ValidationError

from placekit_core import BackendError, Cluster, CostTable, Graph, GraphBuilder, Problem, Schedule

GPU, HOST = 0, 1


def machine(**layout: object) -> Cluster:
    kind = {"flops_per_s": {"float32": 1.0}, "memory_bytes": 10**6, "memory_bytes_per_s": 1.0}
    links = [{"mesh": "*", "bytes_per_s": 1.0}]
    return Cluster.parse({"kinds": {"gpu": kind}, "devices": [{"kind": "gpu", "count": 2}], "links": links, **layout})


def network(weights: Sequence[int], reads: Sequence[int] | None = None) -> Graph:
    """A chain of operations without activations; operation i reads weight `reads[i]`, weight w has `weights[w]` bytes."""
    b = GraphBuilder("network")
    w = [b.source(f"w{i}", size) for i, size in enumerate(weights)]
    x: list[int] = []
    for i, r in enumerate(range(len(weights)) if reads is None else reads):
        x = b.add(f"op{i}", inputs=[*x, w[r]], outputs=[0])
    return b.build()


def run(
    graph: Graph, seconds: float, prefetch: int | None, home: dict[str, int] | None = None
) -> tuple[float, float, Schedule]:
    """Makespan, peak bytes of the GPU and schedule with all operations on the GPU; weights on the host, but for `home`."""
    op_s = np.where(graph.kernel, seconds, 0.0)[:, None]
    problem = Problem.of(graph, machine(), costs=CostTable(("gpu",), op_s, np.zeros(op_s.shape, np.bool_)))
    device = [(home or {}).get(n, GPU if k else HOST) for n, k in zip(graph.op_name, graph.kernel, strict=True)]
    session = Simulator(prefetch=prefetch, threads=1).open(problem)
    placement = problem.placement(device)
    measured, schedule = session.evaluate(placement.batch()), session.schedule(placement)
    expected = execute(problem, device, rules=Rules(prefetch=prefetch))
    assert measured.value_s[0] == schedule.value_s == expected.value_s
    assert measured.peak_bytes[0].tolist() == expected.peak_bytes
    return float(measured.value_s[0]), float(measured.peak_bytes[0, GPU]), schedule


def copies(schedule: Schedule) -> list[tuple[int, float, float]]:
    """(weight, start, end) of each copy, in the order in which they start."""
    columns = schedule.transfer_tensor, schedule.transfer_start_s, schedule.transfer_end_s
    return sorted(zip(*(c.tolist() for c in columns), strict=True), key=lambda c: c[1])


def test_without_prefetch_all_copies_begin_at_the_start() -> None:
    value, peak, schedule = run(network([4, 4, 4, 4]), 10, None)
    assert copies(schedule) == [(0, 0, 4), (1, 4, 8), (2, 8, 12), (3, 12, 16)]
    assert (value, peak) == (4 + 4 * 10, 16)  # the link is faster than the operations: everything piles up


def test_nothing_ahead_copies_while_nothing_else_reads() -> None:
    value, peak, schedule = run(network([4, 4, 4, 4]), 10, 0)
    assert copies(schedule) == [(0, 0, 4), (1, 14, 18), (2, 28, 32), (3, 42, 46)]
    assert (value, peak) == (4 * (4 + 10), 4)


def test_one_ahead_copies_behind_the_operation_before() -> None:
    value, peak, schedule = run(network([4, 4, 4, 4]), 10, 1)
    assert copies(schedule) == [(0, 0, 4), (1, 4, 8), (2, 14, 18), (3, 24, 28)]
    assert (value, peak) == (4 + 4 * 10, 8)


@pytest.mark.parametrize("prefetch", [None, 0, 1, 9])
def test_weights_on_the_device_are_never_copied(prefetch: int | None) -> None:
    value, peak, schedule = run(network([4, 5, 6]), 1, prefetch, {"w0": GPU, "w1": GPU, "w2": GPU})
    assert (value, peak, copies(schedule)) == (3, 15, [])
    _, peak, schedule = run(network([4, 5, 6]), 1, prefetch, {"w0": GPU, "w2": GPU})
    assert [c[0] for c in copies(schedule)] == [1]
    assert peak == 15  # w0, w2 and the copy


@pytest.mark.parametrize(("prefetch", "copied"), [(None, 3), (0, 5), (1, 5), (2, 4), (3, 4), (4, 3)])
def test_what_is_read_again_soon_stays_and_what_is_read_late_is_copied_again(prefetch: int | None, copied: int) -> None:
    """Forward and backward: w0 w1 w2 w2 w1 w0. A weight stays for readers that are at most prefetch + 1 apart."""
    _, peak, schedule = run(network([4, 4, 4], [0, 1, 2, 2, 1, 0]), 1, prefetch)
    assert len(copies(schedule)) == copied
    assert peak <= 4 * min(3, 3 if prefetch is None else prefetch + 1)


def test_copies_go_before_others_only_if_they_were_ready_before() -> None:
    """A copy that is requested in a round comes after the outputs of that round: sending y (3 s), then w1."""
    b = GraphBuilder("mixed")
    w = [b.source(f"w{i}", 2) for i in range(2)]
    x, _ = b.add("first", inputs=[w[0]], outputs=[0, 3])
    b.add("second", inputs=[x, w[1]])
    y = 3
    b.add("away", inputs=[y])
    graph = b.build()
    half = {"mesh": "*", "bytes_per_s": 1.0, "duplex": "half"}
    op_s = np.where(graph.kernel, 1.0, 0.0)[:, None]
    costs = CostTable(("gpu",), op_s, np.zeros(op_s.shape, np.bool_))
    problem = Problem.of(graph, machine(links=[half]), costs=costs)
    session = Simulator(prefetch=0, threads=1).open(problem)
    schedule = session.schedule(problem.placement([HOST, HOST, GPU, GPU, HOST]))
    assert copies(schedule) == [(0, 0, 2), (3, 3, 6), (1, 6, 8)]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8), data=st.data(), prefetch=st.integers(0, 4),
    seconds=st.sampled_from([0.25, 3.0, 30.0]),
)  # fmt: skip
def test_memory_is_that_of_the_operations_ahead(
    sizes: list[int], data: st.DataObject, prefetch: int, seconds: float
) -> None:
    """In a chain, the copies never take more than the weights of any prefetch + 1 operations in a row."""
    reads = data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=14))
    value, peak, schedule = run(network(sizes, reads), seconds, prefetch)
    windows = [set(reads[i : i + prefetch + 1]) for i in range(len(reads))]
    assert peak <= max(sum(sizes[w] for w in window) for window in windows)
    assert value >= max(seconds * len(reads), sum(sizes[w] for w in set(reads)))
    again = sum(sizes[w] for w, *_ in copies(schedule))
    assert again == sum((schedule.transfer_end_s - schedule.transfer_start_s).tolist())


def test_multicast_and_barriers_do_not_stream() -> None:
    free = {"bytes_per_s": 1e30, "concurrent": "unlimited"}
    links = [{"a": "gpu:*", "b": "net", "bytes_per_s": 1.0, "reverse": free}]
    problem = Problem.of(network([1]), machine(name="bus", multicast=True, links=links))
    message = "backend.prefetch is for machines without multicast, and 'bus' has it"
    with pytest.raises(BackendError, match=re.escape(message)):
        Simulator(prefetch=0).open(problem)
    with pytest.raises(ValidationError, match="prefetch"):
        BulkSynchronous(prefetch=0)
