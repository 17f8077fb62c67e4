"""Problems and placements for the contract of backends, and checks of measurements and traces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from placekit_scheduling import BY_HOST, Kernel

from placekit_core import (
    Backend,
    Cluster,
    CostTable,
    Executable,
    Graph,
    Measurements,
    Placements,
    Problem,
    Session,
)
from placekit_testing.children import digest
from placekit_testing.strategies import TICK_S, machine, random_placements, random_problem


def seeded_problem(seed: int) -> Problem:
    """A random problem of 10 to 60 operations."""
    return random_problem(np.random.default_rng(seed), 10 + 10 * (seed % 6))


def seeded_placements(problem: Problem, b: int, seed: int = 1, priorities: bool = True) -> Placements:
    return random_placements(np.random.default_rng(seed), problem, b, priorities)


def evaluate_once(
    backend: Backend, problem: Problem, executable: Executable | None, placements: Placements
) -> Measurements:
    """Evaluate in a new session."""
    session = backend.open(problem, executable)
    result = session.evaluate(placements)
    session.close()
    return result


def values_digest(backend: Backend, seeds: Sequence[int]) -> str:
    """A digest of the backend's measurements of random problems, for comparison between processes."""
    results = [evaluate_once(backend, p, None, seeded_placements(p, 5)) for p in map(seeded_problem, seeds)]
    return digest(part for r in results for part in (r.value_s, r.peak_bytes, r.fits, r.error))


def on_one_device(problem: Problem) -> Problem:
    """The same graph and groups on a machine of one device with one stream."""
    cluster = machine(("gpu",))
    return Problem(problem.graph, problem.grouping, cluster, some_costs(problem.graph, cluster))


def least_peaks(problem: Problem, home: NDArray[np.int16], outputs: bool) -> NDArray[np.float64]:
    """[D] lower bound on the peak memory in bytes, for any order, with the operations on the devices `home` [n].

    It is the persistent bytes and, with `outputs`, the largest outputs of one kernel that are read later, because these are in
    memory when the kernel ends.
    """
    graph, size = problem.graph, problem.cluster.size
    read = np.isin(np.arange(graph.t), graph.input_tensor) & outputs
    written = np.bincount(graph.tensor_producer, graph.owned_bytes * read, minlength=graph.n)
    largest = np.asarray([written[home == d].max(initial=0.0) for d in range(size)])
    return np.asarray(np.bincount(home, graph.persistent_bytes, minlength=size) + largest)


def some_costs(graph: Graph, cluster: Cluster) -> CostTable:
    """Random costs of 1 to 4 ticks for each kernel."""
    ticks = np.random.default_rng(3).integers(1, 5, (graph.n, len(cluster.kind_names)))
    op_s = np.where(graph.kernel[:, None], ticks * TICK_S, 0.0)
    return CostTable(cluster.kind_names, op_s, np.zeros(op_s.shape, np.bool_))


def check_shapes(result: Measurements, b: int, size: int) -> None:
    """Check shapes and types of the measurements of b placements on `size` devices."""
    columns = [("value_s", (b,), np.float64), ("peak_bytes", (b, size), np.float64), ("fits", (b,), np.bool_)]
    if result.spread_s is not None:
        columns.append(("spread_s", (b,), np.float64))
    for name, shape, dtype in columns:
        column = getattr(result, name)
        assert column.shape == shape, f"{name} has shape {column.shape}, not {shape}"
        assert column.dtype == dtype, f"{name} holds {column.dtype}, not {np.dtype(dtype)}"
    assert len(result.error) == b, f"{len(result.error)} errors, not {b}"


def check_same(one: Measurements, other: Measurements) -> None:
    assert one.value_s.tobytes() == other.value_s.tobytes(), f"values {one.value_s} and {other.value_s}"
    assert one.peak_bytes.tobytes() == other.peak_bytes.tobytes(), "the peaks differ"
    assert one.fits.tolist() == other.fits.tolist(), "whether it fits differs"
    assert one.error == other.error, "the errors differ"


def check_unordered(problem: Problem, session: Session) -> None:
    """Check that priorities do not change measurements."""
    placements = seeded_placements(problem, 6)
    check_same(session.evaluate(Placements.of(placements.device)), session.evaluate(placements))


def check_kernel(problem: Problem, session: Session, kernel: Kernel) -> None:
    """Check that values and peaks of the compiled evaluation equal those of `session`, to the bit."""
    ints, floats = np.zeros(kernel.scratch_ints, np.int32), np.zeros(kernel.scratch_floats)
    for priorities in (False, True):
        placements = seeded_placements(problem, 5, priorities=priorities)
        expected = session.evaluate(placements)
        for row in range(5):
            value, peak = _run(kernel, problem, placements, row, ints, floats)
            if expected.error[row] is not None:
                assert np.isposinf(value), f"{value} s for a placement without a value, not infinity"
                continue
            assert value == expected.value_s[row], f"{value} s, and {expected.value_s[row]} s from evaluate"
            assert np.array_equal(peak, expected.peak_bytes[row]), "other peaks than from evaluate"


def _run(
    kernel: Kernel,
    problem: Problem,
    placements: Placements,
    row: int,
    ints: NDArray[np.int32],
    floats: NDArray[np.float64],
) -> tuple[float, NDArray[np.float64]]:
    """Value and peaks of one placement; `ints` and `floats` are the kernel's working memory."""
    device, priority = placements.one(row)
    peak, order = np.empty(problem.cluster.size), np.empty(0, np.float32) if priority is None else priority
    return float(kernel.function(device, order, kernel.ints, kernel.floats, ints, floats, peak)), peak


def check_trace(problem: Problem, session: Session, kernel: Kernel) -> None:
    """If a compiled evaluation records a trace, check its times against the schedule, and check its causes."""
    trace, graph = kernel.trace, problem.graph
    if trace is None:
        return
    kernels, placements = np.flatnonzero(graph.kernel), seeded_placements(problem, 5)
    ints, floats = np.full(kernel.scratch_ints, -2, np.int32), np.full(kernel.scratch_floats, np.nan)
    for row in range(5):
        _run(kernel, problem, placements, row, ints, floats)
        schedule = session.schedule(problem.placement(*placements.one(row)))
        start, end = floats[trace.times : trace.times + 2 * trace.tasks].reshape(2, trace.tasks)
        tensors, targets = (ints[at : at + ints[trace.copies]].tolist() for at in (trace.copy_tensor, trace.copy_dst))
        copies = list(zip(tensors, targets, strict=True))
        first: dict[object, int] = {}  # by copy, or by tensor with multicast: the task that delivers it
        shared = problem.cluster.multicast
        makes = [first.setdefault(copy[0] if shared else k, graph.n + k) for k, copy in enumerate(copies)]
        for what, here, of_ops in (("starts", start, schedule.op_start_s), ("ends", end, schedule.op_end_s)):
            same = np.array_equal(here[kernels], of_ops[kernels])
            assert same, f"the {what} in the trace are not those of the schedule"
        columns = (schedule.transfer_tensor, schedule.transfer_dst, schedule.transfer_start_s, schedule.transfer_end_s)
        sent = zip(*(c.tolist() for c in columns), strict=True)
        traced = [(*copy, start[m], end[m]) for copy, m in zip(copies, makes, strict=True)]
        assert sorted(traced) == sorted(sent), "the copies in the trace are not the transfers of the schedule"
        tasks = [*kernels.tolist(), *makes]
        last = int(ints[trace.last])
        assert last in tasks if tasks else last == -1, f"the last task is {last}, which did not run"
        assert not tasks or end[last] == end[tasks].max(), f"task {last} is not the last one to end"
        launched_s = problem.launched_s(schedule.op_device)
        _check_causes(set(tasks), ints[trace.cause : trace.cause + trace.tasks].tolist(), start, end, graph, launched_s)


def _check_causes(
    tasks: set[int], cause: Sequence[int], start: NDArray[np.float64], end: NDArray[np.float64], graph: Graph,
    launched_s: NDArray[np.float64],
) -> None:  # fmt: skip
    """Check that each task starts when its cause ends, at its launch, or at 0, where chains of causes end."""
    for first in sorted(tasks):
        task, path = first, set[int]()
        while task in tasks:
            assert task not in path, f"task {task} is a cause of its own cause"
            path.add(task)
            why = cause[task]
            if why in tasks:
                assert start[task] == end[why], f"task {task} starts at {start[task]} s, its cause ends at {end[why]} s"
            elif why == BY_HOST:
                assert start[task] == launched_s[task], (
                    f"task {task} starts at {start[task]} s, not when it is launched"
                )
            else:
                assert why == -1 or (0 <= why < graph.n and not graph.kernel[why]), f"task {why}, a cause, did not run"
                assert start[task] == 0, f"task {task} starts at {start[task]} s without a cause"
            task = why
