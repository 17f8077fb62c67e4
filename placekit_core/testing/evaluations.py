"""What the contract of backends evaluates, and how it compares measurements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from placekit_core.cluster import Cluster
from placekit_core.costs import CostTable
from placekit_core.graph import Graph, GraphBuilder
from placekit_core.interfaces import Backend, Executable, Session
from placekit_core.measurement import Kernel, Measurements
from placekit_core.placement import Placements
from placekit_core.problem import Problem
from placekit_core.testing.children import digest
from placekit_core.testing.strategies import TICK_S, machine, random_placements, random_problem


def seeded_problem(seed: int) -> Problem:
    """A random problem of 10 to 60 operations."""
    return random_problem(np.random.default_rng(seed), 10 + 10 * (seed % 6))


def seeded_placements(problem: Problem, b: int, seed: int = 1, priorities: bool = True) -> Placements:
    return random_placements(np.random.default_rng(seed), problem, b, priorities)


def evaluate_once(
    backend: Backend, problem: Problem, executable: Executable | None, placements: Placements
) -> Measurements:
    """In a session of its own."""
    session = backend.open(problem, executable)
    result = session.evaluate(placements)
    session.close()
    return result


def values_digest(backend: Backend, seeds: Sequence[int]) -> str:
    """A digest of what it says about random problems."""
    results = [evaluate_once(backend, p, None, seeded_placements(p, 5)) for p in map(seeded_problem, seeds)]
    return digest(part for r in results for part in (r.value_s, r.peak_bytes, r.fits, r.error))


def on_one_device(problem: Problem) -> Problem:
    """The same graph and groups on a machine of one device with one stream."""
    cluster = machine(("gpu",))
    return Problem(problem.graph, problem.grouping, cluster, some_costs(problem.graph, cluster))


def too_large_for_one() -> Problem:
    """400 bytes of parameters, on two devices of 200 each."""
    b = GraphBuilder("too large for one device")
    for i in range(4):
        b.add(f"use{i}", inputs=[b.source(f"w{i}", 100)], outputs=[4])
    return Problem.of(b.build(), machine(("gpu",), devices=2, memory_bytes=200))


def least_peaks(problem: Problem, home: NDArray[np.int16]) -> NDArray[np.float64]:
    """[D] bytes that are in use at some time, whatever the order, with the operations on the devices `home` [n].

    What is persistent, and with it all that one kernel writes and some operation reads: it is there when the kernel ends.
    """
    graph, size = problem.graph, problem.cluster.size
    own = graph.kernel[graph.tensor_producer] & (graph.tensor_storage == np.arange(graph.t))
    read = np.isin(np.arange(graph.t), graph.input_tensor)
    written = np.bincount(graph.tensor_producer, graph.tensor_bytes * (own & read), minlength=graph.n)
    largest = np.asarray([written[home == d].max(initial=0.0) for d in range(size)])
    return np.asarray(np.bincount(home, graph.persistent_bytes, minlength=size) + largest)


def some_costs(graph: Graph, cluster: Cluster) -> CostTable:
    """1 to 4 ticks for each kernel."""
    ticks = np.random.default_rng(3).integers(1, 5, (graph.n, len(cluster.kind_names)))
    op_s = np.where(graph.kernel[:, None], ticks * TICK_S, 0.0)
    return CostTable(cluster.kind_names, op_s, np.zeros(op_s.shape, np.bool_))


def check_shapes(result: Measurements, b: int, size: int) -> None:
    expected: list[tuple[str, NDArray[np.generic], tuple[int, ...], type]] = [
        ("value_s", result.value_s, (b,), np.float64),
        ("peak_bytes", result.peak_bytes, (b, size), np.float64),
        ("fits", result.fits, (b,), np.bool_),
    ]
    if result.spread_s is not None:
        expected.append(("spread_s", result.spread_s, (b,), np.float64))
    for name, column, shape, dtype in expected:
        assert column.shape == shape, f"{name} has shape {column.shape}, not {shape}"
        assert column.dtype == dtype, f"{name} holds {column.dtype}, not {np.dtype(dtype)}"
    assert len(result.error) == b, f"{len(result.error)} errors, not {b}"


def check_same(one: Measurements, other: Measurements) -> None:
    assert one.value_s.tobytes() == other.value_s.tobytes(), f"values {one.value_s} and {other.value_s}"
    assert one.peak_bytes.tobytes() == other.peak_bytes.tobytes(), "the peaks differ"
    assert one.fits.tolist() == other.fits.tolist(), "whether it fits differs"
    assert one.error == other.error, "the errors differ"


def check_kernel(problem: Problem, session: Session, kernel: Kernel) -> None:
    """Values and peaks of the compiled evaluation are those of `session`, to the bit."""
    ints, floats = np.empty(kernel.scratch_ints, np.int32), np.empty(kernel.scratch_floats)
    for priorities in (False, True):
        placements = seeded_placements(problem, 5, priorities=priorities)
        expected = session.evaluate(placements)
        for row in range(5):
            device, priority = placements.one(row)
            order = np.empty(0, np.float32) if priority is None else priority
            peak = np.empty(problem.cluster.size)
            value = kernel.function(device, order, kernel.ints, kernel.floats, ints, floats, peak)
            assert value == expected.value_s[row], f"{value} s, and {expected.value_s[row]} s from evaluate"
            assert np.array_equal(peak, expected.peak_bytes[row]), "other peaks than from evaluate"
